import { LockFactory } from '@verrou/core'
import { kyselyStore } from '@verrou/core/drivers/kysely'
import { Kysely, MysqlDialect } from 'kysely'
import { createPool } from 'mysql2'

export async function open(url, { ttlMs, prefix, verrou: settings }) {
  const connection = new Kysely({ dialect: new MysqlDialect({ pool: createPool(url) }) })
  const factory = new LockFactory(kyselyStore({ connection }).factory(), settings)
  return {
    acquire: async (key) => {
      const lock = factory.createLock(`${prefix}:${key}`, ttlMs)
      if (!(await lock.acquire())) throw new Error(`${key} was not acquired`)
      return lock
    },
    release: (lock) => lock.release()
  }
}
