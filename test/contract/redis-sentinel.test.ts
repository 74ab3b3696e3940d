/** The same contract on a group with Sentinel, through every client that there is for one; and what a URL makes of it. */
import { Redis } from 'ioredis'
import { createSentinel } from 'redis'
import * as nodeRedis from 'redis'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { RedisBackend } from '../../src/backends/redis/backend.js'
import { openNodeRedis } from '../../src/backends/redis/clients/open-node-redis.js'
import { redisBackend, type RedisDriver } from '../../src/backends/redis/index.js'
import { parseRedisUrl } from '../../src/backends/redis/url.js'
import { connect, createLocks } from '../../src/index.js'
import { conformance } from '../../src/testing/index.js'
import { startRedisSentinel, type RedisSentinel } from '../support/redis-sentinel.js'

let group: RedisSentinel
const closing: (() => void)[] = []

beforeAll(async () => {
  group = await startRedisSentinel({ replicas: 1 })
}, 60_000)
afterAll(async () => {
  for (const close of closing) close()
  await group.stop()
})

const sentinels = () => group.sentinels.map(({ port }) => ({ host: '127.0.0.1', port }))

const CLIENTS: Record<string, () => RedisDriver | Promise<RedisDriver>> = {
  ioredis: () => {
    const client = new Redis({ sentinels: sentinels(), name: group.name })
    closing.push(() => client.disconnect())
    return client
  },
  'node-redis': async () => {
    const client = createSentinel({ sentinelRootNodes: sentinels(), name: group.name })
    client.on('error', () => {})
    await client.connect()
    closing.push(() => void client.destroy())
    return client
  },
}

for (const [name, open] of Object.entries(CLIENTS)) {
  describe(name, () => {
    conformance(
      async () => redisBackend(await open()),
      { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership: true },
      { describe, it },
      { withSessions: false },
    )
  })
}

describe('by its URL', () => {
  it('ioredis locks', async () => {
    await using locks = await connect(group.url)
    expect(await locks.withLock('k', ({ fence }) => typeof fence)).toBe('bigint')
  })

  it('node-redis locks', async () => {
    const own = openNodeRedis(nodeRedis, parseRedisUrl(group.url), 5_000)
    await using locks = createLocks((scope) => new RedisBackend(own.client, scope, {}, own))
    await locks.ready()
    expect(await locks.withLock('k', ({ fence }) => typeof fence)).toBe('bigint')
  })

  it('a master of another name is not found in time', async () => {
    const error = await connect(`${group.url}-of-another`, { connectTimeoutMs: 500 }).catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ code: 'CONNECTOR' })
    expect((error as Error).message).toContain('sentinel')
  })
})
