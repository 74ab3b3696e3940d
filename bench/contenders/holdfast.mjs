import { createLocks } from '../../dist/index.js'
import { redisBackend } from '../../dist/backends/redis/index.js'
import { CLIENTS } from '../lib/clients.mjs'

/** `clientName` is the library underneath, `lock` the options of each call. */
export async function open(url, { ttlMs, prefix, clientName = 'ioredis', client: clientOptions, lock }) {
  const client = await CLIENTS[clientName](url, clientOptions)
  const locks = createLocks(redisBackend(client), { prefix, ttlMs })
  return {
    acquire: (key) => locks.lock(key, lock),
    release: (held) => held.release()
  }
}
