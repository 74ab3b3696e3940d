import { Mutex } from 'redis-semaphore'
import { CLIENTS } from '../lib/clients.mjs'

export async function open(url, { ttlMs, prefix, client: clientOptions, mutex: settings }) {
  const client = await CLIENTS.ioredis(url, clientOptions)
  return {
    acquire: async (key) => {
      // One object for each acquisition: it holds the identity of its holder.
      const mutex = new Mutex(client, `${prefix}:${key}`, { lockTimeout: ttlMs, ...settings })
      await mutex.acquire()
      return mutex
    },
    release: (mutex) => mutex.release()
  }
}
