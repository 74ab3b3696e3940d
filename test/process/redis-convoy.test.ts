import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { inversions, overlaps } from '../support/check.js'
import { kinds, type Deployment } from '../support/redis-kinds.js'
import type { MonitoredCommand } from '../support/redis-server.js'

const isScript = ({ name, fromScript }: MonitoredCommand) => !fromScript && (name === 'evalsha' || name === 'eval')
/** What Sentinels, replicas and clients say now and then, whoever locks. */
const HOUSEKEEPING = new Set(['ping', 'info', 'publish', 'replconf', 'cluster'])

describe.each(kinds)('$name', ({ start }) => {
  let redis: Deployment

  beforeAll(async () => {
    redis = await start()
  })
  afterAll(() => redis.stop())
  beforeEach(async () => {
    await redis.flush()
    await redis.everywhere('SCRIPT', 'FLUSH')
  })

  describe('without contention', () => {
    it('sends one script to acquire and one to release, and opens no second connection', async () => {
      await using locks = await redis.connect()
      const tenLocks = async () => {
        for (let i = 0; i < 10; i++) await locks.withLock(`k${i}`, () => {})
      }
      // Every server has to learn the scripts.
      await tenLocks()
      const monitor = await redis.monitor()
      await tenLocks()
      await monitor.flush()
      monitor.stop()
      const sent = monitor.commands.filter(({ name, fromScript }) => !fromScript && !HOUSEKEEPING.has(name))
      expect(sent.map(({ name }) => name)).toEqual(Array.from({ length: 20 }, () => 'evalsha'))
      expect(await redis.subscriptions()).toBe(0)
    })

    it('loads a script with EVAL once, when the server does not know it', async () => {
      await using locks = await redis.connect()
      const monitor = await redis.monitor()
      await locks.withLock('k', () => {})
      await locks.withLock('k', () => {})
      await monitor.flush()
      monitor.stop()
      const scripts = monitor.commands.filter(isScript).map(({ name }) => name)
      expect(scripts).toEqual(['evalsha', 'eval', 'evalsha', 'eval', 'evalsha', 'evalsha'])
    })
  })

  describe('a convoy of 4 processes with 16 waiters each', () => {
    it('is served in order, one grant for each release, with at most 3 scripts per acquisition', async () => {
      const processes = 4
      const waiters = 16
      const rounds = 5
      const workers = await redis.spawnMany(processes)
      const monitor = await redis.monitor()
      const convoy = workers.map((worker) => worker.call('convoy', 'k', waiters, rounds, 1, { fairness: 'strict' }))
      await Promise.all(convoy)
      await monitor.flush()
      monitor.stop()

      const holds = workers.flatMap((worker) => worker.holds())
      const acquisitions = processes * waiters * rounds
      expect(holds).toHaveLength(acquisitions)
      expect(overlaps(holds)).toEqual([])
      expect(inversions(holds, { toleranceMs: 1_000 }).fence).toEqual([])

      const scripts = monitor.commands.filter(isScript)
      expect(scripts.length / acquisitions).toBeLessThanOrEqual(3)

      const { queued, granted, told } = queueOrder(monitor.commands)
      // In the order in which the server queued them, and only once each.
      expect(granted).toHaveLength(acquisitions)
      expect(new Set(granted).size).toBe(acquisitions)
      const waited = new Set(queued)
      expect(granted.filter((id) => waited.has(id))).toEqual(queued)
      // Nobody is told who does not get it.
      expect(told.length).toBeLessThanOrEqual(acquisitions)
      expect(new Set(told).size).toBe(told.length)
      await Promise.all(workers.map((worker) => worker.exit()))
    })
  })

  describe('an outsider that follows the SET NX PX recipe', () => {
    it('makes tryLock null, and is shut out by our lock', async () => {
      await using locks = await redis.connect()
      expect(await redis.cli('SET', 'test:lock:k', 'x', 'NX', 'PX', 5000)).toBe('OK')
      expect(await locks.tryLock('k')).toBeNull()
      await redis.cli('DEL', 'test:lock:k')

      const lock = await locks.lock('k', { ttlMs: 5_000 })
      expect(await redis.cli('SET', 'test:lock:k', 'x', 'NX', 'PX', 5000)).toBeNull()
      expect(await redis.cli('GET', 'test:lock:k')).toBe(lock.token)
      const pttl = Number(await redis.cli('PTTL', 'test:lock:k'))
      expect(pttl).toBeGreaterThan(0)
      expect(pttl).toBeLessThanOrEqual(5_000)
      expect(await lock.release()).toBe(true)
      expect(await redis.cli('SET', 'test:lock:k', 'x', 'NX', 'PX', 5000)).toBe('OK')
    })

    it.each(['expires', 'is deleted'])('lets our waiter in when its key %s', async (how) => {
      await using locks = await redis.connect()
      await redis.cli('SET', 'test:lock:k', 'x', 'NX', 'PX', how === 'expires' ? 400 : 60_000)
      const waiting = locks.lock('k', { waitMs: 5_000, retryMs: 20 })
      await sleep(150)
      if (how === 'is deleted') await redis.cli('DEL', 'test:lock:k')
      const lock = await waiting
      expect(await redis.cli('GET', 'test:lock:k')).toBe(lock.token)
    })

    it('is named in the refusal, as somebody who does not tell', async () => {
      await using locks = await redis.connect()
      await redis.cli('SET', 'test:lock:k', 'x')
      const refusal = /^Lock not acquired: "k" is held by another client without expiry/
      await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow(refusal)
      await expect(locks.forceRelease('k')).rejects.toThrow(/now: true/)
      expect(await locks.forceRelease('k', { now: true })).toBe(true)
      expect(await locks.tryLock('k')).not.toBeNull()
    })
  })
})

/** What the server did with the key `k`: claim ids in the order of queueing, of grants and of pushed grants. */
function queueOrder(commands: readonly MonitoredCommand[]) {
  const queued = new Set<string>()
  const granted: string[] = []
  const told: string[] = []
  for (const { name, args, fromScript } of commands) {
    if (!fromScript && name !== 'evalsha') continue
    if (name === 'zadd') queued.add(args[2]!.slice(0, 32))
    if (name === 'set' && args[0] === 'test:lock:k') granted.push(args[1]!.slice(0, 32))
    if (name === 'publish') told.push(args[1]!.split(' ')[1]!)
  }
  return { queued: [...queued], granted, told }
}
