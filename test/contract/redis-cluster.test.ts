/** The same contract on a cluster, through every client that there is for one. */
import { Cluster } from 'ioredis'
import { Cluster as ValkeyCluster } from 'iovalkey'
import { createCluster } from 'redis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisBackend, type RedisDriver } from '../../src/backends/redis/index.js'
import type { BackendFactory } from '../../src/core/backend.js'
import { conformance } from '../../src/testing/index.js'
import { startRedisCluster, type RedisCluster } from '../support/redis-cluster.js'

let cluster: RedisCluster
const closing: (() => void)[] = []

beforeAll(async () => {
  cluster = await startRedisCluster({ replicas: 0 })
}, 60_000)
afterAll(async () => {
  for (const close of closing) close()
  await cluster.stop()
})

const nodes = () => cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port }))

const CLIENTS: Record<string, () => RedisDriver | Promise<RedisDriver>> = {
  ioredis: () => {
    const client = new Cluster(nodes())
    closing.push(() => client.disconnect())
    return client
  },
  iovalkey: () => {
    const client = new ValkeyCluster(nodes())
    closing.push(() => client.disconnect())
    return client
  },
  'node-redis': async () => {
    const client = createCluster({ rootNodes: nodes().map((socket) => ({ socket })) })
    await client.connect()
    closing.push(() => client.destroy())
    return client
  },
}

// With a tag in the prefix everything is in one slot, and so on one node.
describe('in one slot', () => {
  const tagged = (factory: BackendFactory): BackendFactory => (scope) => factory({ ...scope, prefix: `{${scope.prefix}}` })
  conformance(
    async () => tagged(redisBackend(await CLIENTS['ioredis']!())),
    { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership: true },
    { describe, it },
  )
})

for (const [name, open] of Object.entries(CLIENTS)) {
  describe(name, () => {
    conformance(
      async () => redisBackend(await open()),
      { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership: false },
      { describe, it },
      { withSessions: name === 'ioredis' },
    )
  })
}
