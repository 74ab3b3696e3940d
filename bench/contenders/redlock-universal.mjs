import { createLock, IoredisAdapter } from 'redlock-universal'
import { CLIENTS } from '../lib/clients.mjs'
import { holdInside } from '../lib/hold-inside.mjs'

export async function open(url, { ttlMs, prefix, client: clientOptions, lock: settings }) {
  const client = await CLIENTS.ioredis(url, clientOptions)
  const adapter = new IoredisAdapter(client)
  // A lock object pings the server when it is first used, so they are kept: in its favour.
  const locks = new Map()
  const lockOf = (key) => {
    let lock = locks.get(key)
    if (!lock) locks.set(key, (lock = createLock({ adapter, key: `${prefix}:${key}`, ttl: ttlMs, ...settings })))
    return lock
  }
  return {
    acquire: async (key) => {
      const lock = lockOf(key)
      return { lock, handle: await lock.acquire() }
    },
    release: ({ lock, handle }) => lock.release(handle),
    hold: (key) => holdInside((routine) => lockOf(key).using(routine))
  }
}
