import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { expectNoLeak } from '../support/leaks.js'
import { kinds, type Deployment } from '../support/redis-kinds.js'

const isFence = (key: string) => key.startsWith('test:fence')

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
      await expectNoLeak(locks, batches)
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
