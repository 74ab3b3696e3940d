/** Several processes on a database server: contending, killed, stopped, with clocks that are wrong, and with servers that are killed. */
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Claim, WakeUp } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
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
    const KEYS = ['a', 'b', 'c', 'd', 'e', 'f']

    it('for one key are served in order, with growing fences', async () => {
      const workers = await sql.spawnMany(8)
      await Promise.all(workers.map((worker) => worker.call('convoy', 'fifo', 2, 5, 0, { fairness: 'strict' })))
      const holds = workers.flatMap((worker) => worker.holds())
      expect(holds).toHaveLength(8 * 2 * 5)
      expectOrder(holds)
      // What is asked for at the same moment may get there in any order.
      expect(inversions(holds, { toleranceMs: 1_000 }).fifo).toEqual([])
    })

    it('for lists of several keys, in any order, get no error, exclude each other, and never wait in a circle', async () => {
      const before = await sql.conflicts()
      const workers = await sql.spawnMany(8)
      await Promise.all(workers.map((worker) => worker.call('lists', KEYS, 30, { ttlMs: 20_000 })))
      const holds = workers.flatMap((worker) => worker.holds())
      expect(holds.length).toBeGreaterThan(100)
      expectOrder(holds)
      expect(await sql.conflicts()).toBe(before)
    })

    it('with lists that are asked for again while others are served leave nothing behind, and never wait in a circle', async () => {
      const before = await sql.conflicts()
      const holds: Hold[] = []
      await Promise.all(Array.from({ length: 8 }, (_, i) => contend(`process ${i}`, i, holds)))
      expect(holds.length).toBeGreaterThan(200)
      expectOrder(holds)
      expect(await sql.conflicts()).toBe(before)
      expect(await sql.server.query("SELECT 1 FROM holdfast_locks WHERE prefix = 'lists' AND (used > 0 OR waiting > 0)")).toEqual([])
      expect(await sql.server.query("SELECT 1 FROM holdfast_claims WHERE prefix = 'lists'")).toEqual([])
    })

    /** Some keys in any order, asked for in one list; those that are held within a moment are held for one, and all are given back. */
    async function contend(owner: string, seed: number, holds: Hold[]): Promise<void> {
      const current = new Map<string, Hold>()
      const asked = new Map<string, Claim>()
      const held = ({ id, resource }: Claim, epoch: bigint) => {
        if (current.has(id)) return
        const now = process.hrtime.bigint()
        const hold: Hold = { key: resource, process: owner, waiter: 0, askedAt: now, grantedAt: now, releasedAt: undefined, fence: epoch }
        current.set(id, hold)
        holds.push(hold)
      }
      const wake = (wakeUp: WakeUp) => {
        const claim = wakeUp.kind === 'granted' && asked.get(wakeUp.claimId)
        if (claim) held(claim, (wakeUp as Extract<WakeUp, { kind: 'granted' }>).epoch)
      }
      const backend = sql.backend({ prefix: 'lists', owner, clock: systemClock(), retryMs: 10, wake, warn: () => {} })
      onTestFinished(() => backend.close())
      for (let round = 0; round < 40; round++) {
        const keys = KEYS.filter((_, i) => ((seed * 7 + round * 13 + i * 5) % 11) < 5).sort(() => Math.random() - 0.5)
        const claims = keys.map((resource): Claim => ({ id: randomBytes(16).toString('hex'), resource, take: 1, limit: 1, ttlMs: 20_000 }))
        for (const claim of claims) asked.set(claim.id, claim)
        for (let times = 0; times < 3; times++) {
          const states = await backend.claim(claims, round % 3 === 0 ? 'leave' : 'queue')
          for (const [i, state] of states.entries()) {
            if (state.status === 'held') held(claims[i]!, state.epoch)
            else if (state.status === 'queued') claims[i]!.place = state.place
            else expect(state.status).toBe('refused')
          }
          await sleep(Math.random() * 10)
        }
        for (const { id } of claims) {
          asked.delete(id)
          const hold = current.get(id)
          if (hold) hold.releasedAt = process.hrtime.bigint()
        }
        const states = await backend.release(claims)
        for (const state of states) expect(state.status).not.toBe('failed')
      }
    }
  })

  it('fences only grow while rows are deleted as soon as nobody uses them', async () => {
    const keys = ['tidied 1', 'tidied 2', 'tidied 3']
    const managers = await Promise.all([1, 2, 3, 4].map(() => manager()))
    const holds: Hold[] = []
    let isOver = false
    const one = async (locks: LockManager, key: string): Promise<void> => {
      const askedAt = process.hrtime.bigint()
      const lock = await locks.tryLock(key)
      if (!lock) return
      const hold: Hold = { key, process: locks.owner, waiter: 0, askedAt, grantedAt: process.hrtime.bigint(), releasedAt: undefined, fence: lock.fence }
      holds.push(hold)
      await sleep(Math.random() * 3)
      hold.releasedAt = process.hrtime.bigint()
      expect(await lock.release()).toBe(true)
    }
    const locking = managers.map(async (locks) => {
      while (!isOver) {
        await Promise.all(keys.filter(() => Math.random() < 0.5).map((key) => one(locks, key)))
        await sleep(Math.random() * 10)
      }
    })
    // Each row that was made anew was deleted before.
    const made = new Set<unknown>()
    for (const end = performance.now() + 2_500; performance.now() < end; ) {
      await sql.tidy()
      for (const { created_at } of (await sql.server.query('SELECT created_at FROM holdfast_locks')) as { created_at: unknown }[]) made.add(created_at)
    }
    isOver = true
    await Promise.all(locking)
    expect(made.size).toBeGreaterThan(30)
    expect(holds.length).toBeGreaterThan(100)
    expectOrder(holds)
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

    it('while it waits: the others are kept for less than 3 s in all, however many were killed', async () => {
      const workers = await sql.spawnMany(6)
      const locks = await manager()
      const first = await locks.lock('dead')
      const convoys: Promise<unknown>[] = []
      // Every other two are going to die, and the first two of all.
      for (const worker of workers) {
        convoys.push(worker.call('convoy', 'dead', 2, 1, 1, { fairness: 'strict' }))
        convoys.at(-1)!.catch(() => {})
        await queued(locks, 'dead', 2 * convoys.length)
      }
      await Promise.all(workers.filter((_, i) => i % 2 === 0).map((worker) => worker.kill()))
      const releasedAt = process.hrtime.bigint()
      await first.release()
      await Promise.all(convoys.filter((_, i) => i % 2 === 1))
      const holds = workers.filter((_, i) => i % 2 === 1).flatMap((worker) => worker.holds())
      expect(holds).toHaveLength(6)
      expectOrder(holds)
      expect(keptMs(holds, { fence: first.fence + 12n * 1024n, releasedAt })).toBeLessThan(3_000)
    })

    /** How long the resource was with others that were given it before the next of these holds: their epochs are missing. */
    function keptMs(holds: readonly Hold[], before: Pick<Hold, 'fence' | 'releasedAt'>): number {
      let ms = 0
      for (const hold of holds.toSorted((a, b) => Number(a.fence - b.fence))) {
        if (hold.fence / 1024n > before.fence / 1024n + 1n) ms += Number(hold.grantedAt - before.releasedAt!) / 1e6
        before = hold
      }
      expect(ms).toBeGreaterThan(0)
      return ms
    }
  })

  it('a waiter that stood still while it was let in does not hold when it goes on', async () => {
    const [waiter, other] = (await sql.spawnMany(2)) as [Worker, Worker]
    const locks = await manager()
    const first = await locks.lock('still')
    const waiting = waiter.call('lock', 'still', { ttlMs: 5_000 })
    await queued(locks, 'still', 1)
    await waiter.stop()
    await first.release()
    const releasedAt = performance.now()
    const held = await within(RECOVERY_MS, 'the other one', other.call('lock', 'still', { ttlMs: 5_000 }))
    expect(msSince(releasedAt)).toBeLessThan(3_000)
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

  describe('killed while its disk stands still', () => {
    /** Something is asked for while the disk stands still; whoever asked for it is not there any more when the server is back. */
    async function stillDisk() {
      const machine = new Machine()
      const there = await start({ env: machine.env })
      const { url, proxy } = await there.behindProxy()
      const opened = (to: string) => connect(to, { prefix: 'test', connectTimeoutMs: RECOVERY_MS })
      const [asker, reader, other] = await Promise.all([opened(url), opened(there.url), opened(there.url)])
      onTestFinished(async () => {
        await Promise.all([asker, reader, other].map((locks) => locks.close()))
        await proxy.close()
        await there.stop()
      })
      await other.stm((tx) => ['first', 'second'].forEach((key) => tx.put(key, 'before')))
      // So that nothing has to be opened or made while the disk stands still.
      for (let i = 0; i < 5; i++) {
        await Promise.all([asker, reader, other].flatMap((locks) => [locks.stm((tx) => tx.put('k', 'old')), locks.stm((tx) => tx.get('k'))]))
        await Promise.all([asker, reader, other].map(async (locks) => (await locks.lock('l')).release()))
      }
      const restart = async () => {
        await proxy.close()
        await there.server.kill()
        machine.diskIsStill = false
        await there.server.start()
        await there.healthy()
      }
      return { machine, asker, proxy, reader, other, restart }
    }

    async function unkept() {
      const { machine, asker, ...all } = await stillDisk()
      machine.diskIsStill = true
      const writing = asker.stm((tx) => tx.put('k', 'new')).then(() => 'new', () => 'unknown')
      await sleep(500)
      return { writing, ...all }
    }

    const read = async (locks: LockManager) => String(await within(RECOVERY_MS, 'an answer', locks.stm((tx) => tx.get('k'))))

    it('a lock that was given is held afterwards, also if it had to be asked for again', async () => {
      const { machine, asker, proxy, other, restart } = await stillDisk()
      machine.diskIsStill = true
      const locking = asker.lock('l', { ttlMs: 60_000 }).then(() => true, () => false)
      await sleep(500)
      proxy.reset()
      const isGiven = await Promise.race([locking, sleep(1_500, false)])
      await restart()
      expect([isGiven, await other.tryLock('l', { ttlMs: 60_000 }) === null]).not.toEqual([true, false])
    })

    it('a lock that was passed on is held afterwards by whoever was told so', async () => {
      const { machine, asker, reader, other, restart } = await stillDisk()
      const first = await asker.lock('l', { ttlMs: 60_000 })
      const waiting = reader.lock('l', { ttlMs: 60_000 })
      await queued(other, 'l', 1)
      machine.diskIsStill = true
      first.release().catch(() => {})
      const second = await Promise.race([waiting, sleep(1_500)])
      await restart()
      if (!second) return void waiting.catch(() => {})
      for await (const { holders } of other.inspect('l')) expect(holders.map(({ fence }) => fence)).toEqual([second.fence])
    })

    it('what was read is there afterwards', async () => {
      const { reader, other, restart } = await unkept()
      const reading = read(reader)
      await Promise.race([reading, sleep(1_000)])
      await restart()
      // What nobody had read may have got to the disk, or not.
      expect([await reading, await read(other)]).not.toEqual(['new', 'old'])
    })

    it('what was committed is there afterwards, also if that had to be asked for again', async () => {
      const { writing, proxy, other, restart } = await unkept()
      proxy.reset()
      await Promise.race([writing, sleep(1_500)])
      await restart()
      expect([await writing, await read(other)]).not.toEqual(['new', 'old'])
    })

    it('what was written after that is not taken for what was there before', async () => {
      const { reader, other, restart } = await unkept()
      let isFirst = true
      const seen = await within(2 * RECOVERY_MS, 'both', reader.stm(async (tx) => {
        const first = await tx.get('first')
        if (isFirst) {
          isFirst = false
          await restart()
          await within(RECOVERY_MS, 'another', other.stm((its) => ['first', 'second'].forEach((key) => its.put(key, 'after'))))
        }
        return [first, await tx.get('second')]
      }))
      expect(seen).toEqual(['after', 'after'])
    })
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
