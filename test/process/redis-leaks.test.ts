import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { kinds, type Deployment } from '../support/redis-kinds.js'

/** Timers, sockets and the like, as the process sees them. */
const resources = () => process.getActiveResourcesInfo().sort()

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

function heapUsed(): number {
  collectGarbage()
  return process.memoryUsage().heapUsed
}

const isFence = (key: string) => key.startsWith('test:fence')

const listeners = () => {
  const names = ['exit', 'uncaughtException', 'unhandledRejection', 'SIGINT', 'SIGTERM', 'warning'] as const
  return names.map((name) => process.listenerCount(name))
}

/** The first kind stands for what is the same in all of them; the others are there for their own connections. */
const suites = kinds.map((kind, i) => ({ ...kind, batches: i === 0 ? 100 : 25 }))

describe.each(suites)('$name', ({ start, batches }) => {
  let redis: Deployment

  beforeAll(async () => {
    redis = await start()
  })
  afterAll(() => redis.stop())

  describe(`${batches},000 locks and unlocks`, () => {
    it('leave no timers, listeners, handles or memory behind, and neither do as many different keys on the server', async () => {
      await using locks = await redis.connect()
      const caller = new AbortController()
      const cycle = async (i: number) => {
        const lock = await locks.lock(`key ${i}`, { signal: caller.signal, waitMs: 60_000 })
        if (i % 10 === 0) lock.signal.addEventListener('abort', () => {})
        await lock.release()
      }
      const batch = async (first: number) => Promise.all(Array.from({ length: 1_000 }, (_, i) => cycle(first + i)))
      await batch(0)
      // Until there are all connections that there will be: some are opened a while after the first lock.
      await sleep(1_500)
      const before = { resources: resources(), listeners: listeners() }
      const heapBefore = heapUsed()
      let heapAfter = Infinity
      for (let i = 1; i <= batches; i++) {
        await batch(i * 1_000)
        // The least of several: buffers of a client come and go, and a leak stays.
        if (i > batches - 10) heapAfter = Math.min(heapAfter, heapUsed())
      }
      expect(resources()).toEqual(before.resources)
      expect(listeners()).toEqual(before.listeners)
      expect(heapAfter - heapBefore).toBeLessThan(3_000_000)
      // One counter, or in a cluster at most one per slot.
      const left = await redis.keys('*')
      expect(left.filter((name) => !isFence(name))).toEqual([])
      expect(left.length).toBeLessThanOrEqual(redis.isCluster ? 16_384 : 1)
    })

    it('of one key that others wait for leave a constant few keys, which go by themselves', async () => {
      await redis.flush()
      await using locks = await redis.connect()
      const holdNow = async () => {
        for (let i = 0; i < 250; i++) await locks.withLock('hot', { type: 'test', metadata: { i } }, () => {})
      }
      await Promise.all(Array.from({ length: 8 }, holdNow))
      // The fence, and who was last heard of: that one has its end.
      const left = await redis.keys('*')
      expect(left.length).toBeLessThanOrEqual(2)
      for (const key of left) if (!isFence(key)) expect(Number(await redis.cli('PTTL', key))).toBeGreaterThan(0)
    })
  })
})
