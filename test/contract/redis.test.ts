import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import { conformance } from '../../src/testing/index.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

let server: RedisServer
const clients: Redis[] = []

beforeAll(async () => {
  server = await startRedis()
})

afterAll(async () => {
  for (const client of clients) client.disconnect()
  await server.stop()
})

conformance(
  () => {
    const client = new Redis(server.port)
    clients.push(client)
    return redisBackend(client)
  },
  { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership: true },
  { describe, it },
)
