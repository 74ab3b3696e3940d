import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { connect } from '../../src/index.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

let redis: RedisServer

beforeAll(async () => {
  redis = await startRedis()
})
afterAll(() => redis.stop())

/** Timers, sockets and the like, as the process sees them. */
const resources = () => process.getActiveResourcesInfo().sort()

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

function heapUsed(): number {
  collectGarbage()
  return process.memoryUsage().heapUsed
}

const listeners = () => {
  const names = ['exit', 'uncaughtException', 'unhandledRejection', 'SIGINT', 'SIGTERM', 'warning'] as const
  return names.map((name) => process.listenerCount(name))
}

describe('100,000 locks and unlocks', () => {
  it('leave no timers, listeners, handles or memory behind, and neither do as many different keys on the server', async () => {
    await using locks = await connect(redis.url, { prefix: 'test' })
    const caller = new AbortController()
    const cycle = async (i: number) => {
      const lock = await locks.lock(`key ${i}`, { signal: caller.signal, waitMs: 60_000 })
      if (i % 10 === 0) lock.signal.addEventListener('abort', () => {})
      await lock.release()
    }
    const batch = async (first: number) => Promise.all(Array.from({ length: 1_000 }, (_, i) => cycle(first + i)))
    await batch(0)
    const before = { resources: resources(), listeners: listeners(), keys: Number(await redis.cli('DBSIZE')) }
    const heapBefore = heapUsed()
    for (let i = 1; i <= 100; i++) await batch(i * 1_000)
    expect(resources()).toEqual(before.resources)
    expect(listeners()).toEqual(before.listeners)
    expect(Number(await redis.cli('DBSIZE'))).toBe(before.keys)
    expect(before.keys).toBe(1)
    expect(heapUsed() - heapBefore).toBeLessThan(3_000_000)
  })

  it('of one key that others wait for leave a constant few keys, which go by themselves', async () => {
    await redis.cli('FLUSHALL')
    await using locks = await connect(redis.url, { prefix: 'test' })
    const holdNow = async () => {
      for (let i = 0; i < 250; i++) await locks.withLock('hot', { type: 'test', metadata: { i } }, () => {})
    }
    await Promise.all(Array.from({ length: 8 }, holdNow))
    // The fence, and who was last heard of: that one has its end.
    const left = (await redis.cli('KEYS', '*')) as string[]
    expect(left.length).toBeLessThanOrEqual(2)
    for (const key of left.filter((name) => name !== 'test:fence')) expect(Number(await redis.cli('PTTL', key))).toBeGreaterThan(0)
  })
})
