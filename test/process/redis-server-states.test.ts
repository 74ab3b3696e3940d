import { Redis } from 'ioredis'
import { inspect } from 'node:util'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import {
  BackendError,
  ConfigurationError,
  ConnectorError,
  createLocks,
  type LockManager,
} from '../../src/index.js'
import { kinds, type Deployment } from '../support/redis-kinds.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

describe.each(kinds)('$name', ({ start, isSingle }) => {
  let redis: Deployment
  let locks: LockManager

  beforeAll(async () => {
    redis = await start()
  })
  afterAll(() => redis.stop())
  beforeEach(async () => {
    await redis.flush()
    locks = await redis.connect({ ttlMs: 2_000 })
  })
  afterEach(() => locks.close())

  async function setFence(epoch: string): Promise<void> {
    await locks.withLock('k', () => {})
    await redis.cli('SET', await redis.fenceOf('k'), epoch)
  }

  describe('fences', () => {
    it('go on growing after FLUSHALL, even if the server clock was behind', async () => {
      await setFence('1893456000000000') // in the year 2030
      const before = await locks.withLock('k', ({ fence }) => fence)
      await redis.flush()
      const after = await locks.withLock('k', ({ fence }) => fence)
      expect(before).toBe(1_893_456_000_000_001n << 10n)
      expect(after).toBe(1_893_456_000_000_002n << 10n)
    })

    it('of other processes go on growing after FLUSHALL', async () => {
      const before = await locks.withLock('k', ({ fence }) => fence)
      await redis.flush()
      await using others = await redis.connect()
      expect(await others.withLock('k', ({ fence }) => fence)).toBeGreaterThan(before)
    })

    it('pass 2^53 without rounding', async () => {
      const start = 2n ** 53n - 1n
      await setFence(String(start))
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
      await redis.configure('maxmemory', 1)
      try {
        await expect(locks.tryLock('new')).rejects.toThrow(/OOM/)
        expect(await first.release()).toBe(true)
        expect(await (await waiting).release()).toBe(true)
      } finally {
        await redis.configure('maxmemory', 0)
      }
      expect(await locks.tryLock('new')).not.toBeNull()
    })

    it.each(isSingle ? ['NOREPLICAS', 'READONLY'] : ['NOREPLICAS'])('for a moment (%s): a wait outlives it, a try says it', async (code) => {
      const state = {
        NOREPLICAS: (isOn: boolean) => redis.configure('min-replicas-to-write', isOn ? 9 : 0),
        // Others are told by Sentinels and by the cluster whose replicas they are.
        READONLY: (isOn: boolean) => redis.everywhere('REPLICAOF', ...(isOn ? ['127.0.0.1', 1] : ['no', 'one'])),
      }[code as 'NOREPLICAS' | 'READONLY']
      await state(true)
      try {
        const error = await locks.tryLock('k').catch((reason: unknown) => reason)
        expect(error).toBeInstanceOf(BackendError)
        expect(error).toMatchObject({ transient: true, message: expect.stringContaining(code) as string })
        const waiting = locks.lock('k', { waitMs: 5_000 })
        await sleep(200)
        await state(false)
        expect(await (await waiting).release()).toBe(true)
      } finally {
        await state(false)
      }
    })

    it('is not sent the script a second time: EVAL is for NOSCRIPT alone', async () => {
      await locks.withLock('k', () => {})
      await redis.configure('min-replicas-to-write', 9)
      const monitor = await redis.monitor()
      try {
        await expect(locks.tryLock('k')).rejects.toThrow(/NOREPLICAS/)
        await monitor.flush()
        expect(monitor.commands.filter(({ name }) => name === 'eval')).toEqual([])
        expect(monitor.commands.filter(({ name }) => name === 'evalsha').length).toBeGreaterThan(0)
      } finally {
        monitor.stop()
        await redis.configure('min-replicas-to-write', 0)
      }
    })

    it('because this user may not: a clear error, and no second try', async () => {
      await redis.acl('SETUSER', 'reader', 'on', '>secret', '~*', '+@read', '+info', '+hello', '+client', '+cluster', '+role')
      const reader = await redis.as('reader', 'secret').connect()
      await expect(reader.lock('k', { waitMs: 5_000 })).rejects.toThrow(/NOPERM/)
      await reader.close()
      await redis.acl('DELUSER', 'reader')
    })
  })

  describe('connecting', () => {
    it('to nothing fails within the time that was given', async () => {
      const startedAt = performance.now()
      const connecting = redis.nowhere().connect({ connectTimeoutMs: 300 })
      await expect(connecting).rejects.toBeInstanceOf(ConnectorError)
      expect(performance.now() - startedAt).toBeLessThan(2_000)
    })

    it('with a wrong password says so, and never the password', async () => {
      await redis.acl('SETUSER', 'someone', 'on', '>right')
      const connecting = redis.as('someone', 'canary-1f83').connect({ connectTimeoutMs: 1_000 })
      const error: unknown = await connecting.catch((reason: unknown) => reason)
      expect(error).toBeInstanceOf(ConnectorError)
      expect(inspect(error, { depth: 10, showHidden: true })).not.toContain('canary-1f83')
      await redis.acl('DELUSER', 'someone')
    })

    it('keeps tokens and passwords out of errors', async () => {
      await redis.cli('RPUSH', 'test:lock:k', 'x')
      const lock = await locks.lock('mine')
      const error: unknown = await locks.lock('k', { waitMs: 0 }).catch((e: unknown) => e)
      expect(inspect(error, { depth: 10, showHidden: true })).not.toMatch(/[0-9a-f]{32}/)
      expect(inspect(lock, { depth: 10 })).not.toContain(lock.token)
    })

    it('uses the client of the caller, and leaves it open', async () => {
      const { client, close } = await redis.client()
      const own = createLocks(redisBackend(client), { prefix: 'test' })
      expect(await own.withLock('k', () => 1)).toBe(1)
      await own.close()
      const others = createLocks(redisBackend(client), { prefix: 'test' })
      expect(await others.withLock('k', () => 2)).toBe(2)
      await others.close()
      close()
    })

    it('warns of a memory policy that may evict locks', async () => {
      await redis.configure('maxmemory-policy', 'allkeys-lru')
      const warnings: unknown[] = []
      const logger = { info() {}, error() {}, warn: (message: string) => warnings.push(message) }
      try {
        await (await redis.connect({ logger })).close()
        expect(warnings).toEqual([expect.stringContaining('maxmemory-policy allkeys-lru')])

        const { client, close } = await redis.client()
        const own = createLocks(redisBackend(client), { prefix: 'test', logger })
        for (let i = 0; i < 3; i++) await own.withLock('k', () => {})
        await expect.poll(() => warnings.length).toBe(2)
        await own.close()
        close()
      } finally {
        await redis.configure('maxmemory-policy', 'noeviction')
      }
    })
  })
})

// Elsewhere: Sentinels, whose replicas are known, in redis-sentinel.test.ts; a Cluster, where it is refused.
describe.each(kinds.filter(({ isSingle }) => isSingle))('waitReplicas through $name', ({ start }) => {
  it('grants only what the replicas have, also after a hand-over', async () => {
    await using redis = await start()
    const [server] = redis.nodes as [RedisServer]
    const replicaOf = ['--replicaof', `127.0.0.1 ${server.port}`, '--repl-diskless-sync-delay', '0']
    await using replica = await startRedis({ args: replicaOf })
    const isOnline = async () => (await server.info('replication'))['slave0']
    await expect.poll(isOnline, { timeout: 20_000 }).toContain('state=online')
    const { client, close } = await redis.client()
    const backend = redisBackend(client, { waitReplicas: { count: 1, timeoutMs: 500 } })
    const safe = createLocks(backend, { prefix: 'test', ttlMs: 3_000 })
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
    close()
  })
})

it('refuses a client whose keyPrefix would change our keys, and what is no client', () => {
  const prefixed = new Redis({ keyPrefix: 'x:', lazyConnect: true })
  expect(() => redisBackend(prefixed)).toThrow(ConfigurationError)
  expect(() => redisBackend({} as Redis)).toThrow(ConnectorError)
  expect(() => redisBackend(undefined as unknown as Redis)).toThrow(ConnectorError)
})
