import { LockFactory } from '@verrou/core'
import { kyselyStore } from '@verrou/core/drivers/kysely'
import { Kysely, PostgresDialect } from 'kysely'
import { makeTables, openPool } from '../lib/pg.mjs'

/** What it would make itself; but of several processes that do so at once all but one may fail for good. */
const TABLE = 'CREATE TABLE IF NOT EXISTS verrou (key varchar(255) PRIMARY KEY, owner varchar(255) NOT NULL, expiration bigint)'

export async function open(url, { ttlMs, prefix, verrou: settings }) {
  const pool = openPool(url)
  await makeTables(pool, TABLE)
  const connection = new Kysely({ dialect: new PostgresDialect({ pool }) })
  const factory = new LockFactory(kyselyStore({ connection, autoCreateTable: false }).factory(), settings)
  return {
    acquire: async (key) => {
      const lock = factory.createLock(`${prefix}:${key}`, ttlMs)
      if (!(await lock.acquire())) throw new Error(`${key} was not acquired`)
      return lock
    },
    release: (lock) => lock.release()
  }
}
