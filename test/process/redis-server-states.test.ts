import { Redis } from 'ioredis'
import { inspect } from 'node:util'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import { BackendError, ConfigurationError, connect, ConnectorError, createLocks, type LockManager } from '../../src/index.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

let redis: RedisServer
let locks: LockManager

beforeAll(async () => {
  redis = await startRedis()
})
afterAll(() => redis.stop())
beforeEach(async () => {
  await redis.cli('FLUSHALL')
  locks = await connect(redis.url, { prefix: 'test', ttlMs: 2_000 })
})
afterEach(() => locks.close())

describe('fences', () => {
  it('go on growing after FLUSHALL, even if the server clock was behind', async () => {
    await redis.cli('SET', 'test:fence', '1893456000000000') // in the year 2030
    const before = await locks.withLock('k', ({ fence }) => fence)
    await redis.cli('FLUSHALL')
    const after = await locks.withLock('k', ({ fence }) => fence)
    expect(before).toBe(1_893_456_000_000_001n << 10n)
    expect(after).toBe(1_893_456_000_000_002n << 10n)
  })

  it('of other processes go on growing after FLUSHALL', async () => {
    const before = await locks.withLock('k', ({ fence }) => fence)
    await redis.cli('FLUSHALL')
    await using others = await connect(redis.url, { prefix: 'test' })
    expect(await others.withLock('k', ({ fence }) => fence)).toBeGreaterThan(before)
  })

  it('pass 2^53 without rounding', async () => {
    const start = 2n ** 53n - 1n
    await redis.cli('SET', 'test:fence', String(start))
    const fences: bigint[] = []
    for (let i = 0; i < 5; i++) fences.push(await locks.withLock('k', ({ fence }) => fence))
    expect(fences).toEqual([1n, 2n, 3n, 4n, 5n].map((i) => (start + i) << 10n))
    // Handed over, too: by the server, and in memory.
    const first = await locks.lock('k')
    const waiting = locks.lock('k', { fairness: 'strict' })
    await sleep(50)
    await first.release()
    const second = await waiting
    expect(second.fence).toBe((start + 7n) << 10n)
    await second.release()
    const third = await locks.lock('k')
    const fourth = locks.lock('k')
    await third.release()
    expect((await fourth).fence).toBe(((start + 8n) << 10n) + 1n)
  })
})

describe('a server that cannot serve', () => {
  it('because a key has another type: an error for that key alone', async () => {
    await redis.cli('RPUSH', 'test:lock:k', 'x')
    await expect(locks.lock('k', { waitMs: 1_000 })).rejects.toThrow(/WRONGTYPE/)
    await expect(locks.tryLock('other')).resolves.not.toBeNull()
  })

  it('because it is out of memory: hands over all the same, and says so to newcomers', async () => {
    const first = await locks.lock('k')
    const waiting = locks.lock('k', { waitMs: 5_000 })
    await sleep(100)
    await redis.cli('CONFIG', 'SET', 'maxmemory', '1')
    try {
      await expect(locks.tryLock('new')).rejects.toThrow(/OOM/)
      expect(await first.release()).toBe(true)
      expect(await (await waiting).release()).toBe(true)
    } finally {
      await redis.cli('CONFIG', 'SET', 'maxmemory', '0')
    }
    expect(await locks.tryLock('new')).not.toBeNull()
  })

  it.each([
    ['NOREPLICAS', ['min-replicas-to-write', '1'], ['min-replicas-to-write', '0']],
    ['READONLY', ['replicaof', '127.0.0.1 1'], ['replicaof', 'no one']],
  ])('for a moment (%s): a wait with waitMs outlives it, a try says it', async (code, on, off) => {
    const set = ([name, value]: string[]) =>
      name === 'replicaof' ? redis.cli('REPLICAOF', ...value!.split(' ')) : redis.cli('CONFIG', 'SET', name!, value!)
    await set(on)
    try {
      const error = await locks.tryLock('k').catch((reason: unknown) => reason)
      expect(error).toBeInstanceOf(BackendError)
      expect(error).toMatchObject({ transient: true, message: expect.stringContaining(code) as string })
      const waiting = locks.lock('k', { waitMs: 5_000 })
      await sleep(200)
      await set(off)
      expect(await (await waiting).release()).toBe(true)
    } finally {
      await set(off)
    }
  })

  it('is not sent the script a second time: EVAL is for NOSCRIPT alone', async () => {
    await locks.withLock('warm up', () => {})
    await redis.cli('CONFIG', 'SET', 'min-replicas-to-write', '1')
    const monitor = await redis.monitor()
    try {
      await expect(locks.tryLock('k')).rejects.toThrow(/NOREPLICAS/)
      await monitor.flush()
      expect(monitor.commands.filter(({ name }) => name === 'eval')).toEqual([])
      expect(monitor.commands.filter(({ name }) => name === 'evalsha').length).toBeGreaterThan(0)
    } finally {
      monitor.stop()
      await redis.cli('CONFIG', 'SET', 'min-replicas-to-write', '0')
    }
  })

  it('because this user may not: a clear error, and no second try', async () => {
    await redis.cli('ACL', 'SETUSER', 'reader', 'on', '>secret', '~*', '+@read', '+info', '+hello', '+client')
    const reader = await connect(`redis://reader:secret@127.0.0.1:${redis.port}`, { prefix: 'test' })
    await expect(reader.lock('k', { waitMs: 5_000 })).rejects.toThrow(/NOPERM/)
    await reader.close()
    await redis.cli('ACL', 'DELUSER', 'reader')
  })
})

describe('connecting', () => {
  it('to nothing fails within the time that was given', async () => {
    const startedAt = performance.now()
    await expect(connect('redis://127.0.0.1:1', { connectTimeoutMs: 300 })).rejects.toBeInstanceOf(ConnectorError)
    expect(performance.now() - startedAt).toBeLessThan(2_000)
  })

  it('with a wrong password says so, and never the password', async () => {
    await redis.cli('ACL', 'SETUSER', 'someone', 'on', '>right')
    const error: unknown = await connect(`redis://someone:canary-1f83@127.0.0.1:${redis.port}`, { connectTimeoutMs: 1_000 }).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(ConnectorError)
    expect(inspect(error, { depth: 10, showHidden: true })).not.toContain('canary-1f83')
    await redis.cli('ACL', 'DELUSER', 'someone')
  })

  it('keeps tokens and passwords out of errors', async () => {
    await redis.cli('RPUSH', 'test:lock:k', 'x')
    const lock = await locks.lock('mine')
    const error: unknown = await locks.lock('k', { waitMs: 0 }).catch((e: unknown) => e)
    expect(inspect(error, { depth: 10, showHidden: true })).not.toMatch(/[0-9a-f]{32}/)
    expect(inspect(lock, { depth: 10 })).not.toContain(lock.token)
  })

  it('uses the client of the caller, and leaves it open', async () => {
    const client = new Redis(redis.port)
    const own = createLocks(redisBackend(client), { prefix: 'test' })
    expect(await own.withLock('k', () => 1)).toBe(1)
    await own.close()
    expect(await client.ping()).toBe('PONG')
    client.disconnect()
  })

  it('refuses a client whose keyPrefix would change our keys, a cluster, and what is no client', () => {
    const prefixed = new Redis({ port: redis.port, keyPrefix: 'x:', lazyConnect: true })
    expect(() => redisBackend(prefixed)).toThrow(ConfigurationError)
    expect(() => redisBackend({} as Redis)).toThrow(ConnectorError)
    expect(() => redisBackend(undefined as unknown as Redis)).toThrow(ConnectorError)
  })

  it('warns of a memory policy that may evict locks', async () => {
    await redis.cli('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru')
    const warnings: unknown[] = []
    const logger = { info() {}, error() {}, warn: (message: string) => warnings.push(message) }
    try {
      await (await connect(redis.url, { logger })).close()
      expect(warnings).toEqual([expect.stringContaining('maxmemory-policy allkeys-lru')])

      const client = new Redis(redis.port)
      const own = createLocks(redisBackend(client), { prefix: 'test', logger })
      for (let i = 0; i < 3; i++) await own.withLock('k', () => {})
      await expect.poll(() => warnings.length).toBe(2)
      await own.close()
      client.disconnect()
    } finally {
      await redis.cli('CONFIG', 'SET', 'maxmemory-policy', 'noeviction')
    }
  })
})

describe('waitReplicas', () => {
  it('grants only what the replicas have, also after a hand-over', async () => {
    await using replica = await startRedis({ args: ['--replicaof', `127.0.0.1 ${redis.port}`, '--repl-diskless-sync-delay', '0'] })
    await expect.poll(async () => (await redis.info('replication'))['slave0'], { timeout: 20_000 }).toContain('state=online')
    const client = new Redis(redis.port)
    const safe = createLocks(redisBackend(client, { waitReplicas: { count: 1, timeoutMs: 500 } }), { prefix: 'test', ttlMs: 3_000 })
    const first = await safe.lock('k')
    expect(await replica.cli('GET', 'test:lock:k')).toBe(first.token)
    const waiting = safe.lock('k', { waitMs: 10_000 })
    await sleep(100)
    await first.release()
    const second = await waiting
    expect(await replica.cli('GET', 'test:lock:k')).toBe(second.token)

    await replica.pause()
    await expect(safe.tryLock('other')).rejects.toThrow(/Only 0 of 1 replicas/)
    await replica.resume()
    await expect.poll(async () => redis.cli('EXISTS', 'test:lock:other'), { timeout: 5_000 }).toBe(0)
    await safe.close()
    client.disconnect()
  })
})
