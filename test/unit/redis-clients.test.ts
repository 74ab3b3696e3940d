/** What redisBackend() takes, and what it says of the rest. No server is needed: nothing is sent. */
import { Cluster, Redis } from 'ioredis'
import { Cluster as ValkeyCluster, Redis as Valkey } from 'iovalkey'
import { createClient, createClientPool, createCluster, createSentinel } from 'redis'
import { describe, expect, it } from 'vitest'
import { redisBackend, type RedisDriver } from '../../src/backends/redis/index.js'
import { ConfigurationError, ConnectorError, createLocks } from '../../src/index.js'

const lazy = { lazyConnect: true } as const
const waitReplicas = { count: 1, timeoutMs: 100 }
const sentinels = { name: 'm', sentinelRootNodes: [{ host: 'localhost', port: 26379 }] }

const SINGLE: Record<string, () => RedisDriver> = {
  ioredis: () => new Redis(lazy),
  'ioredis with Sentinel': () => new Redis({ ...lazy, sentinels: [{ host: 'localhost' }], name: 'm' }),
  iovalkey: () => new Valkey(lazy),
  'node-redis': () => createClient(),
  'node-redis with RESP2': () => createClient({ RESP: 2 }),
  'node-redis with options of commands': () => createClient().withCommandOptions({ asap: true }),
}
const SEVERAL: Record<string, () => RedisDriver> = {
  'ioredis Cluster': () => new Cluster(['localhost'], lazy),
  'iovalkey Cluster': () => new ValkeyCluster(['localhost'], lazy),
  'node-redis Cluster': () => createCluster({ rootNodes: [] }),
  'node-redis Sentinel': () => createSentinel(sentinels),
}

describe('redisBackend()', () => {
  it.each(Object.entries({ ...SINGLE, ...SEVERAL }))('takes %s', (_, make) => {
    expect(redisBackend(make())).toBeTypeOf('function')
  })

  it.each(Object.entries(SINGLE))('can wait for replicas with %s', (_, make) => {
    expect(redisBackend(make(), { waitReplicas })).toBeTypeOf('function')
    expect(() => redisBackend(make(), { waitReplicas: { count: 0, timeoutMs: 1 } })).toThrow(ConfigurationError)
  })

  it.each(Object.entries(SEVERAL))('cannot wait for replicas with %s, and says so', (_, make) => {
    expect(() => redisBackend(make(), { waitReplicas })).toThrow(ConfigurationError)
  })

  const prefixed: Record<string, () => RedisDriver> = {
    ioredis: () => new Redis({ ...lazy, keyPrefix: 'p:' }),
    'ioredis Cluster': () => new Cluster(['localhost'], { ...lazy, keyPrefix: 'p:' }),
    'ioredis Cluster, of its nodes': () => new Cluster(['localhost'], { ...lazy, redisOptions: { keyPrefix: 'p:' } }),
    iovalkey: () => new Valkey({ ...lazy, keyPrefix: 'p:' }),
  }
  it.each(Object.entries(prefixed))('takes no keyPrefix of %s', (_, make) => {
    expect(() => redisBackend(make())).toThrow(/keyPrefix "p:"/)
  })

  it('takes no prefix that tears the keys of a lock apart in a cluster', () => {
    for (const prefix of ['{', 'a{b', '{}', 'a{}b{c}']) {
      expect(() => createLocks(redisBackend(new Cluster(['localhost'], lazy)), { prefix })).toThrow(ConfigurationError)
    }
    for (const prefix of ['a', '{a}', 'a{b}c', '}', '}{a}{']) {
      expect(() => createLocks(redisBackend(new Cluster(['localhost'], lazy)), { prefix })).not.toThrow()
    }
    expect(() => createLocks(redisBackend(new Redis(lazy)), { prefix: '{' })).not.toThrow()
  })

  it.each([
    ['undefined', undefined],
    ['null', null],
    ['a URL', 'redis://localhost'],
    ['an object', {}],
    ['a function', () => {}],
    ['a class', Redis],
    ['a Map', new Map()],
    ['the legacy mode of node-redis', createClient().legacy()],
  ])('does not take %s', (_, driver) => {
    expect(() => redisBackend(driver as unknown as RedisDriver)).toThrow(ConnectorError)
  })

  it('does not take a pool of node-redis, nor a client of an old one, and says what it takes', () => {
    expect(() => redisBackend(createClientPool() as unknown as RedisDriver)).toThrow(/no pool/)
    const old = { isOpen: true, sendCommand() {}, duplicate() {}, connect() {}, disconnect() {} }
    expect(() => redisBackend(old as unknown as RedisDriver)).toThrow(/from version 5 on/)
  })
})

it('a client of node-redis that is not open is said to be so', async () => {
  await using locks = createLocks(redisBackend(createClient()))
  const error = await locks.tryLock('k').catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(ConnectorError)
  expect((error as Error).message).toContain('await client.connect()')
})
