/** The same contract through every client that there is for a single Redis. */
import { Redis as Valkey } from 'iovalkey'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisBackend, type RedisDriver } from '../../src/backends/redis/index.js'
import { conformance } from '../../src/testing/index.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

let server: RedisServer
const closing: (() => void)[] = []

beforeAll(async () => {
  server = await startRedis()
})
afterAll(async () => {
  for (const close of closing) close()
  await server.stop()
})

const CLIENTS: Record<string, () => RedisDriver | Promise<RedisDriver>> = {
  iovalkey: () => {
    const client = new Valkey(server.port)
    closing.push(() => client.disconnect())
    return client
  },
  'node-redis': async () => nodeRedis(3),
  'node-redis with RESP2': async () => nodeRedis(2),
}

async function nodeRedis(RESP: 2 | 3): Promise<RedisDriver> {
  const client = await createClient({ url: server.url, RESP }).on('error', () => {}).connect()
  closing.push(() => client.destroy())
  return client
}

for (const [name, open] of Object.entries(CLIENTS)) {
  describe(name, () => {
    conformance(
      async () => redisBackend(await open()),
      { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership: true },
      { describe, it },
      { withSessions: name === 'node-redis' },
    )
  })
}
