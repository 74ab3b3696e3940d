/** Several processes on a database server: contending, killed, stopped, with clocks that are wrong, and with servers that are killed. */
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { connect, type LockManager } from '../../src/index.js'
import { Machine } from '../fault/machine.js'
import { inversions, overlaps, repeats, type Hold } from '../support/check.js'
import { Contenders } from '../support/contenders.js'
import { sqlKinds, type SqlDeployment } from '../support/sql-kinds.js'
import { within } from '../support/within.js'
import type { Worker } from '../support/workers.js'

const RECOVERY_MS = 30_000
const msSince = (start: number) => performance.now() - start

describe.each(sqlKinds)('$name', ({ start }) => {
  let sql: SqlDeployment

  beforeAll(async () => {
    sql = await start()
  })
  afterAll(() => sql.stop())
  afterEach(async () => {
    if (!sql.server.isUp) await sql.server.resume().catch(() => sql.server.start())
  })

  async function manager(): Promise<LockManager> {
    const locks = await connect(sql.url, { prefix: 'test' })
    onTestFinished(() => locks.close())
    return locks
  }

  /** Until so many claims wait for a key. */
  async function queued(locks: LockManager, wanted: string, count: number): Promise<void> {
    for (;;) {
      for await (const { key, waiters } of locks.inspect()) if (key === wanted && waiters.length >= count) return
      await sleep(10)
    }
  }

  function expectOrder(holds: readonly Hold[]): void {
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 0 }).fence).toEqual([])
    expect(repeats(holds)).toEqual([])
  }

  describe('8 processes that contend', () => {
    it('for one key are served in order, with growing fences', async () => {
      const workers = await sql.spawnMany(8)
      await Promise.all(workers.map((worker) => worker.call('convoy', 'fifo', 2, 5, 0, { fairness: 'strict' })))
      const holds = workers.flatMap((worker) => worker.holds())
      expect(holds).toHaveLength(8 * 2 * 5)
      expectOrder(holds)
      // What is asked for at the same moment may get there in any order.
      expect(inversions(holds, { toleranceMs: 1_000 }).fifo).toEqual([])
    })

    it('for lists of several keys, in any order, get no error, and exclude each other', async () => {
      const keys = ['a', 'b', 'c', 'd', 'e', 'f']
      const workers = await sql.spawnMany(8)
      const convoys = workers.flatMap((worker, i) => keys.map((_, j) => {
        const key = keys[(j * (i + 1)) % keys.length]!
        return worker.call('convoy', key, 2, 5, 0, { fairness: (i + j) % 2 === 0 ? 'strict' : 'bounded' })
      }))
      await Promise.all(convoys)
      const holds = workers.flatMap((worker) => worker.holds())
      expect(holds).toHaveLength(8 * 6 * 2 * 5)
      expectOrder(holds)
    })
  })

  describe('a process that is killed', () => {
    it('while it holds: the next one has the key within TTL + 1 s', async () => {
      const [holder, next] = (await sql.spawnMany(2)) as [Worker, Worker]
      const locks = await manager()
      const first = await holder.call('lock', 'killed', { ttlMs: 1_000 })
      const waiting = next.call('lock', 'killed', { ttlMs: 1_000 })
      await queued(locks, 'killed', 1)
      await holder.kill()
      const killedAt = performance.now()
      const second = await waiting
      expect(msSince(killedAt)).toBeLessThan(2_000)
      expect(second.fence).toBeGreaterThan(first.fence)
    })

    it('while it waits: the others go on within 3 s, however many were killed', async () => {
      const workers = await sql.spawnMany(6)
      const locks = await manager()
      const first = await locks.lock('dead')
      const convoys = workers.map((worker) => worker.call('convoy', 'dead', 2, 1, 1, { fairness: 'strict' }))
      for (const convoy of convoys) convoy.catch(() => {})
      await queued(locks, 'dead', 12)
      await Promise.all(workers.filter((_, i) => i % 2 === 0).map((worker) => worker.kill()))
      const releasedAt = process.hrtime.bigint()
      await first.release()
      await Promise.all(convoys.filter((_, i) => i % 2 === 1))
      const holds = workers.filter((_, i) => i % 2 === 1).flatMap((worker) => worker.holds())
      expect(holds).toHaveLength(6)
      expectOrder(holds)
      const lastMs = Math.max(...holds.map(({ grantedAt }) => Number(grantedAt - releasedAt) / 1e6))
      expect(lastMs).toBeLessThan(3_500)
    })
  })

  it('a waiter that stood still while it was let in does not hold when it goes on', async () => {
    const [waiter, other] = (await sql.spawnMany(2)) as [Worker, Worker]
    const locks = await manager()
    const first = await locks.lock('still')
    const waiting = waiter.call('lock', 'still', { ttlMs: 5_000 })
    await queued(locks, 'still', 1)
    await waiter.stop()
    await first.release()
    const held = await within(RECOVERY_MS, 'the other one', other.call('lock', 'still', { ttlMs: 5_000 }))
    await waiter.cont()
    await sleep(500)
    expect(await other.call('probe', held.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
    expect(await other.call('release', held.id)).toBe(true)
    const late = await within(RECOVERY_MS, 'the one that stood still', waiting)
    expect(late.fence).toBeGreaterThan(held.fence)
    expect(overlaps([...waiter.holds(), ...other.holds()])).toEqual([])
  })

  it('client clocks that are wrong by ten minutes change nothing', async () => {
    const machines = [600_000, -600_000, 0].map((ms) => {
      const machine = new Machine()
      machine.stepClock(ms)
      return machine
    })
    const workers = (await Promise.all(machines.map(({ env }) => sql.spawnMany(1, { env })))).flat()
    const held = await workers[0]!.call('lock', 'clocks', { ttlMs: 60_000 })
    expect(await workers[1]!.call('tryLock', 'clocks')).toBeNull()
    expect(await workers[2]!.call('tryLock', 'clocks')).toBeNull()
    await workers[0]!.call('release', held.id)
    await Promise.all(workers.map((worker) => worker.call('convoy', 'clocks', 3, 5, 1, { ttlMs: 1_000 })))
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(1 + 3 * 3 * 5)
    expectOrder(holds)
  })

  it('connections that are cut, again and again: nobody gets an error, and everybody is served', async () => {
    const contenders = await Contenders.start(sql, ['cut 1', 'cut 2'])
    for (let i = 0; i < 4; i++) {
      await sql.cutConnections()
      await contenders.allServed(RECOVERY_MS)
    }
    expectOrder(await contenders.end(RECOVERY_MS))
  })

  it('kill -9 of all processes of the server, four times under load: what was granted is held, and no fence comes twice', async () => {
    const holder = await manager()
    const contenders = await Contenders.start(sql, ['killed 1', 'killed 2'])
    for (let i = 0; i < 4; i++) {
      const lock = await within(RECOVERY_MS, 'a lock', holder.lock(`kept ${i}`, { ttlMs: 60_000 }))
      // At once: it is acknowledged, and that is all that there is.
      await sql.server.kill()
      await sql.server.start()
      await contenders.allServed(RECOVERY_MS)
      expect(await within(RECOVERY_MS, 'an answer', (await manager()).tryLock(lock.key))).toBeNull()
      lock.assertHeld()
    }
    expectOrder(await contenders.end(RECOVERY_MS))
  })

  it('a server that is not there yet is waited for by who connects, for as long as it was told to', async () => {
    await sql.server.kill()
    const connecting = connect(sql.url, { prefix: 'test', connectTimeoutMs: RECOVERY_MS })
    // Longer than one request may take.
    await sleep(2_500)
    await sql.server.start()
    const locks = await connecting
    onTestFinished(() => locks.close())
    await (await locks.lock('after all')).release()
  })

  it('a server that does not answer: whoever holds knows in time, and when it goes on all is as it was', async () => {
    const [holder, next] = (await sql.spawnMany(2)) as [Worker, Worker]
    const locks = await manager()
    const first = await holder.call('lock', 'stopped', { ttlMs: 1_000 })
    const waiting = next.call('lock', 'stopped', { ttlMs: 5_000 })
    await queued(locks, 'stopped', 1)
    await sql.server.pause()
    const lost = await holder.event('lost')
    expect(lost.error).toBe('OwnershipLostError')
    await sql.server.resume()
    const second = await within(RECOVERY_MS, 'the next one', waiting)
    expect(second.fence).toBeGreaterThan(first.fence)
    expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
  })
})
