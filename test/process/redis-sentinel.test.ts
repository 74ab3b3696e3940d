/**
 * A master that dies, hangs or is replaced, under processes that hold and wait.
 *
 * Replication is asynchronous, so a failover may lose the last grants: that is excluded from the promise (docs/guarantees.md).
 * What is left of it, and checked here: fences only grow and never repeat, a hold ends by its own deadline, and everybody who
 * waits gets the lock.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import { createLocks } from '../../src/index.js'
import { inversions, overlaps, repeats } from '../support/check.js'
import { Contenders } from '../support/contenders.js'
import { onSentinel, type Deployment, type DriverName } from '../support/redis-kinds.js'
import { startRedisSentinel, type RedisSentinel } from '../support/redis-sentinel.js'
import type { RedisServer } from '../support/redis-server.js'
import { within } from '../support/within.js'

const drivers: DriverName[] = ['ioredis', 'node-redis']

/** The Sentinels take two to three seconds, and a client up to seven to give up a connection that hangs. */
const RECOVERY_MS = 30_000

describe.each(drivers)('through %s', (driver) => {
  let sentinel: RedisSentinel
  let redis: Deployment

  beforeEach(async () => {
    sentinel = await startRedisSentinel()
    redis = onSentinel(sentinel, driver)
  })
  afterEach(() => sentinel.stop())

  async function queued(): Promise<void> {
    while ((await redis.waiting('k')) === 0) await sleep(5)
  }

  it('a proxy in between is the only way to the servers: else what the nemesis breaks would not be felt', async () => {
    const route = await redis.behindProxy()
    const { proxy } = route
    const locks = await route.connect()
    const lock = await locks.lock('k')
    const partition = proxy.hold()
    await expect(locks.lock('other', { waitMs: 300 })).rejects.toThrow()
    partition.heal()
    await lock.release()
    await locks.close()
    await proxy.close()
  })

  /** kill -9, or SIGSTOP: then connections stay open, and nothing is answered. */
  const strike = (master: RedisServer, fault: 'killed' | 'hung') => (fault === 'killed' ? master.kill() : master.pause())

  describe.each(['killed', 'hung'] as const)('a master that is %s', (fault) => {
    it('while many contend: everybody is served by the new one, one at a time, with fences that grow', async () => {
      const contenders = await Contenders.start(redis, ['k'])
      const master = await sentinel.master()
      await strike(master, fault)
      await contenders.allServed(RECOVERY_MS)
      expect(await sentinel.master()).not.toBe(master)
      // It comes back as a replica of the new one, and nobody turns to it.
      if (fault === 'hung') await master.resume()
      else await master.restart()
      await contenders.allServed(RECOVERY_MS)
      const holds = await contenders.end(RECOVERY_MS)
      // Holds are much shorter than the failover: whoever held when the master died is through long before the next one.
      expect(overlaps(holds)).toEqual([])
      expect(inversions(holds, { toleranceMs: 0 }).fence).toEqual([])
    })

    // What follows is a matter of the core: one client will do.
    if (driver !== 'ioredis') return

    it('while a lock is held whose TTL is shorter: its holder knows in time, and the next one gets it', async () => {
      const [holder, next] = [await redis.spawn(), await redis.spawn()]
      const ttlMs = 1_000
      const first = await holder.call('lock', 'k', { ttlMs })
      const waiting = next.call('lock', 'k', { ttlMs: 5_000 })
      await queued()
      await strike(await sentinel.master(), fault)
      const brokenAt = process.hrtime.bigint()
      const lost = await holder.event('lost')
      // The last renewal was sent before that. With some room for a timer that is late: that it was in time is for `overlaps`.
      expect(Number(lost.at - brokenAt) / 1e6).toBeLessThan(ttlMs + 500)
      expect(lost.error).toBe('OwnershipLostError')
      const second = await within(RECOVERY_MS, 'the next one', waiting)
      expect(second.fence).toBeGreaterThan(first.fence)
      expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
    })

    it('while a lock is held whose TTL is longer: it is kept, and handed over when it is released', async () => {
      const [holder, next] = [await redis.spawn(), await redis.spawn()]
      const first = await holder.call('lock', 'k', { ttlMs: 30_000, renewEveryMs: 500 })
      const waiting = next.call('lock', 'k', { ttlMs: 30_000 })
      await queued()
      const master = await sentinel.master()
      // What the replicas have is not lost.
      await Promise.all((await sentinel.replicas()).map((replica) => master.replicatedTo(replica)))
      await strike(master, fault)
      await sentinel.replaced(master)
      expect(await redis.cli('GET', 'test:lock:k')).toBe(first.token)
      await sleep(500)
      expect(await holder.call('probe', first.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
      expect(next.holds()).toEqual([])
      expect(await within(RECOVERY_MS, 'the release', holder.call('releaseInTheEnd', first.id))).toBe(true)
      const second = await within(RECOVERY_MS, 'the next one', waiting)
      expect(second.fence).toBeGreaterThan(first.fence)
      expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
    })
  })

  it('a failover by command: everybody is served, and after it one at a time', async () => {
    const contenders = await Contenders.start(redis, ['k'])
    const before = await sentinel.master()
    expect(await sentinel.failover()).not.toBe(before)
    await sentinel.healthy()
    const settledAt = process.hrtime.bigint()
    // The old master went on for a while: most of those who wait on the new one have had their turn. They must not have another.
    await contenders.allServed(5_000)
    const holds = await contenders.end(RECOVERY_MS)
    // While Sentinels replace a master that is well there are two, and each of them grants.
    expect(overlaps(holds.filter(({ askedAt }) => askedAt > settledAt))).toEqual([])
    expect(repeats(holds)).toEqual([])
  })

  it('a Sentinel that hangs keeps nobody from connecting', async () => {
    await sentinel.sentinels[0]!.pause()
    await using locks = await redis.connect()
    expect(await locks.withLock('k', () => 1)).toBe(1)
  })
})

it('with waitReplicas, nothing counts that the replicas do not have, and what counts is not lost with its master', async () => {
  await using sentinel = await startRedisSentinel()
  const { client, close } = await onSentinel(sentinel, 'ioredis').client()
  const backend = redisBackend(client, { waitReplicas: { count: 1, timeoutMs: 500 } })
  await using locks = createLocks(backend, { prefix: 'test', ttlMs: 30_000 })
  const replicas = await sentinel.replicas()
  await Promise.all(replicas.map((replica) => replica.pause()))
  await expect(locks.tryLock('k')).rejects.toThrow(/Only 0 of 1 replicas/)
  await Promise.all(replicas.map((replica) => replica.resume()))
  await sentinel.healthy()

  const lock = await locks.lock('k')
  const master = await sentinel.master()
  await master.kill()
  // The Sentinels take the replica that has most.
  const successor = await sentinel.replaced(master)
  expect(await successor.cli('GET', 'test:lock:k')).toBe(lock.token)
  expect(await lock.release()).toBe(true)
  close()
})
