import { createLocks } from '../../dist/index.js'
import { redisBackend } from '../../dist/backends/redis/index.js'
import { CLIENTS } from '../lib/clients.mjs'
import { doing } from '../lib/doing.mjs'

/** `clientName` is the library underneath, `lock` the options of each call. */
export async function open(url, options) {
  const { ttlMs, prefix, clientName = 'ioredis', client: clientOptions } = options
  const client = await CLIENTS[clientName](url, clientOptions)
  const locks = createLocks(redisBackend(client), { prefix, ttlMs })
  return doing(locks, options)
}
