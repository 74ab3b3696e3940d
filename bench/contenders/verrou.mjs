import { LockFactory } from '@verrou/core'
import { redisStore } from '@verrou/core/drivers/redis'
import { CLIENTS } from '../lib/clients.mjs'

export async function open(url, { ttlMs, prefix, client: clientOptions, verrou: settings }) {
  const client = await CLIENTS['ioredis-5'](url, clientOptions)
  const factory = new LockFactory(redisStore({ connection: client }).factory(), settings)
  return {
    acquire: async (key) => {
      const lock = factory.createLock(`${prefix}:${key}`, ttlMs)
      if (!(await lock.acquire())) throw new Error(`${key} was not acquired`)
      return lock
    },
    release: (lock) => lock.release()
  }
}
