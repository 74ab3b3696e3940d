/**
 * A cluster whose nodes die, hang and take over, and whose slots move, under processes that hold and wait.
 *
 * As in redis-sentinel.test.ts: a failover that a master did not agree to may lose the last grants, which is excluded from the
 * promise. Where it agrees, and where slots move, nothing is excluded.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import { ConfigurationError } from '../../src/index.js'
import { inversions, overlaps, type Hold } from '../support/check.js'
import { Contenders } from '../support/contenders.js'
import { startRedisCluster, type MigrationStage, type RedisCluster } from '../support/redis-cluster.js'
import { onCluster, type Deployment, type DriverName } from '../support/redis-kinds.js'
import type { RedisServer } from '../support/redis-server.js'
import { within } from '../support/within.js'

const drivers: DriverName[] = ['ioredis', 'node-redis']

/** The cluster takes two to three seconds, and a client up to seven to give up a connection that hangs. */
const RECOVERY_MS = 30_000
const LOCK = 'test:lock:k'

let cluster: RedisCluster

beforeAll(async () => {
  cluster = await startRedisCluster()
})
afterAll(() => cluster.stop())

function expectOrder(holds: readonly Hold[]): void {
  expect(overlaps(holds)).toEqual([])
  expect(inversions(holds, { toleranceMs: 0 }).fence).toEqual([])
}

describe.each(drivers)('through %s', (driver) => {
  let redis: Deployment

  beforeAll(() => {
    redis = onCluster(cluster, driver)
  })
  afterEach(async () => {
    // As it was: every master with its replica.
    for (const node of cluster.nodes) {
      if (node.isUp) continue
      await node.resume().catch(() => node.restart())
    }
    await cluster.healthy()
    await redis.flush()
  })

  async function queued(): Promise<void> {
    while ((await redis.waiting('k')) === 0) await sleep(5)
  }

  /** Somebody else's key, with another master. */
  async function keyElsewhere(): Promise<string> {
    const master = await cluster.masterOf(LOCK)
    for (let i = 0; ; i++) if ((await cluster.masterOf(`test:lock:other ${i}`)) !== master) return `other ${i}`
  }

  async function otherMaster(): Promise<RedisServer> {
    const master = await cluster.masterOf(LOCK)
    return (await cluster.masters()).find((node) => node !== master)!
  }

  it('a replica takes over from a master that agrees: one at a time all along, and everybody is served', async () => {
    const contenders = await Contenders.start(redis, ['k', await keyElsewhere()])
    for (let i = 0; i < 2; i++) {
      await cluster.failover(await cluster.masterOf(LOCK))
      await contenders.allServed(RECOVERY_MS)
      await cluster.healthy()
    }
    expectOrder(await contenders.end(RECOVERY_MS))
  })

  describe.each(['killed', 'hung'] as const)('a master that is %s', (fault) => {
    /** kill -9, or SIGSTOP: then connections stay open, and nothing is answered. */
    const strike = (master: RedisServer) => (fault === 'killed' ? master.kill() : master.pause())

    it('while many contend: everybody is served, here and elsewhere, one at a time, with fences that grow', async () => {
      const contenders = await Contenders.start(redis, ['k', await keyElsewhere()])
      const master = await cluster.masterOf(LOCK)
      await strike(master)
      await contenders.allServed(RECOVERY_MS)
      expect(await cluster.masterOf(LOCK)).not.toBe(master)
      // It comes back as a replica of the new one, and nobody turns to it.
      if (fault === 'hung') await master.resume()
      else await master.restart()
      await contenders.allServed(RECOVERY_MS)
      // Holds are much shorter than the failover: whoever held when the master died is through long before the next one.
      expectOrder(await contenders.end(RECOVERY_MS))
    })

    // What follows is a matter of the core: one client will do.
    if (driver !== 'ioredis') return

    it('while a lock is held whose TTL is shorter: its holder knows in time, and the next one gets it', async () => {
      const [holder, next] = [await redis.spawn(), await redis.spawn()]
      const ttlMs = 1_000
      const first = await holder.call('lock', 'k', { ttlMs })
      const waiting = next.call('lock', 'k', { ttlMs: 5_000 })
      await queued()
      await strike(await cluster.masterOf(LOCK))
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
      const master = await cluster.masterOf(LOCK)
      const [replica] = (await cluster.replicasOf(master)) as [RedisServer]
      // What the replica has is not lost.
      await master.replicatedTo(replica)
      await strike(master)
      await cluster.replaced(master)
      expect(await redis.cli('GET', LOCK)).toBe(first.token)
      await sleep(500)
      expect(await holder.call('probe', first.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
      expect(next.holds()).toEqual([])
      expect(await within(RECOVERY_MS, 'the release', holder.call('releaseInTheEnd', first.id))).toBe(true)
      const second = await within(RECOVERY_MS, 'the next one', waiting)
      expect(second.fence).toBeGreaterThan(first.fence)
      expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
    })
  })

  describe('a slot that moves', () => {
    it('to and fro while many contend: one at a time all along, and everybody is served', async () => {
      const slot = await cluster.slotOf(LOCK)
      const contenders = await Contenders.start(redis, ['k'])
      for (let i = 0; i < 6; i++) {
        const [from, to] = [await cluster.masterOf(slot), await otherMaster()]
        // Long enough that somebody asks, at each stage.
        await cluster.moveSlot(slot, from, to, () => sleep(50))
        await contenders.allServed(RECOVERY_MS)
      }
      expectOrder(await contenders.end(RECOVERY_MS))
    })

    /** With one of the keys there and the others here. */
    async function halfWay<T>(moved: string, body: () => Promise<T>): Promise<T> {
      const slot = await cluster.slotOf(moved)
      const from = await cluster.masterOf(slot)
      const to = (await cluster.masters()).find((node) => node !== from)!
      let outcome: Promise<T> | undefined
      await cluster.moveSlot(slot, from, to, async (stage) => {
        if (stage !== 'opened') return
        await from.cli('MIGRATE', '127.0.0.1', to.port, moved, 0, 5_000)
        outcome = body()
        await outcome.catch(() => {})
      })
      return outcome!
    }

    it('and stays half way: what nobody waits for is free when it is released', async () => {
      await using locks = await redis.connect()
      const held = await Promise.all(['{x}one', '{x}two'].map((name) => locks.lock(name, { ttlMs: 60_000 })))
      const released = await halfWay('test:lock:{x}one', () => Promise.all(held.map((lock) => lock.release())))
      expect(released).toEqual([true, true])
      for (const name of ['{x}one', '{x}two']) expect(await redis.cli('EXISTS', `test:lock:${name}`)).toBe(0)
    })

    it('and stays half way for longer than a TTL: two locks in it are both kept', async () => {
      await using locks = await redis.connect()
      const held = await Promise.all(['{x}one', '{x}two'].map((name) => locks.lock(name, { ttlMs: 3_000, renewEveryMs: 300 })))
      await halfWay('test:lock:{x}one', () => sleep(4_000))
      for (const lock of held) expect(await lock.release()).toBe(true)
    })

    if (driver !== 'ioredis') return

    it.each(['opened', 'one key moved', 'keys moved'] as const)(
      'and stays half way (%s) for a while: a lock is kept, and handed over when it is released',
      async (stage) => {
        const [holder, next] = [await redis.spawn(), await redis.spawn()]
        const first = await holder.call('lock', 'k', { ttlMs: 10_000, renewEveryMs: 300 })
        const waiting = next.call('lock', 'k')
        await queued()
        const [from, to] = [await cluster.masterOf(LOCK), await otherMaster()]
        await cluster.moveSlot(await cluster.slotOf(LOCK), from, to, (at) => sleep(at === stage ? 1_000 : 0))
        expect(await cluster.cli('GET', LOCK)).toBe(first.token)
        expect(await holder.call('probe', first.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
        expect(next.holds()).toEqual([])
        expect(await holder.call('releaseInTheEnd', first.id)).toBe(true)
        const second = await within(3_000, 'the next one', waiting)
        expect(second.fence).toBeGreaterThan(first.fence)
        expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
      },
    )

    it('and stays half way for longer than a TTL: the lock is kept, by its own key alone', async () => {
      const [holder, next] = [await redis.spawn(), await redis.spawn()]
      const first = await holder.call('lock', 'k', { ttlMs: 3_000, renewEveryMs: 300 })
      const waiting = next.call('lock', 'k')
      await queued()
      const [from, to] = [await cluster.masterOf(LOCK), await otherMaster()]
      const stay = async (stage: MigrationStage) => {
        if (stage === 'one key moved') await sleep(4_000)
      }
      await cluster.moveSlot(await cluster.slotOf(LOCK), from, to, stay)
      expect(await holder.call('probe', first.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
      expect(next.holds()).toEqual([])
      expect(await holder.call('releaseInTheEnd', first.id)).toBe(true)
      const second = await within(3_000, 'the next one', waiting)
      expect(second.fence).toBeGreaterThan(first.fence)
      expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
    })

    it('and stays half way for so long that a lock is lost: its holder knows in time', async () => {
      const [holder, next] = [await redis.spawn(), await redis.spawn()]
      // The client itself tries for more than a second before it says that the slot is on its way.
      const first = await holder.call('lock', 'k', { ttlMs: 500 })
      const waiting = next.call('lock', 'k')
      await queued()
      const [from, to] = [await cluster.masterOf(LOCK), await otherMaster()]
      await cluster.moveSlot(await cluster.slotOf(LOCK), from, to, (stage) => sleep(stage === 'opened' ? 1_500 : 0))
      const { aborted } = await holder.call('probe', first.id)
      expect(await holder.call('releaseInTheEnd', first.id)).toBe(!aborted)
      const second = await within(3_000, 'the next one', waiting)
      expect(second.fence).toBeGreaterThan(first.fence)
      expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
    })
  })

  it('a node that hangs takes no locks of other nodes with it', async () => {
    const elsewhere = await keyElsewhere()
    const [hung, free] = [`{test:lock:k}`, `{test:lock:${elsewhere}}`]
    await using locks = await redis.connect()
    await locks.lock('k', { ttlMs: 60_000, renewEveryMs: 300 })
    const other = await locks.lock(elsewhere, { ttlMs: 1_500, renewEveryMs: 300 })
    const master = await cluster.masterOf(LOCK)
    await master.pause()
    // Asked for in one breath, and of two nodes.
    const hanging = locks.tryLock(hung).catch(() => null)
    const claimed = locks.tryLock(free)
    await within(1_000, 'a lock of another node', claimed)
    await sleep(2_500)
    const { aborted } = other.signal
    await master.resume()
    expect(aborted).toBe(false)
    await (await hanging)?.release()
  })

  it('refuses waitReplicas, which it could not keep', async () => {
    const { client, close } = await redis.client()
    expect(() => redisBackend(client, { waitReplicas: { count: 1, timeoutMs: 500 } })).toThrow(ConfigurationError)
    close()
  })
})
