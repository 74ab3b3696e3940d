/** Several processes on one file: contending, killed, stopped, with clocks that are wrong and disks that are full. */
import { execFileSync, fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { connect, type LockManager } from '../../src/index.js'
import { inversions, overlaps, repeats } from '../support/check.js'
import { makeFolder } from '../support/processes.js'
import { spawnWorker, type Worker, type WorkerOptions } from '../support/workers.js'

const fixture = (name: string) => fileURLToPath(new URL(`../support/fixtures/${name}.mjs`, import.meta.url))
const MEASURED = fixture('sqlite-measured')
const msSince = (start: number) => performance.now() - start

let folder: string
let file: string
let url: string
beforeEach(() => {
  folder = makeFolder('sqlite')
  file = join(folder, 'locks.db')
  url = `sqlite:${file}`
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

function spawnMany(count: number, options: Partial<WorkerOptions> = {}): Promise<Worker[]> {
  return Promise.all(Array.from({ length: count }, () => spawnWorker({ url, ...options })))
}

async function manager(): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test' })
  onTestFinished(() => locks.close())
  return locks
}

/** Until so many claims wait for `k`. */
async function queued(locks: LockManager, count: number): Promise<void> {
  for (;;) {
    for await (const { key, waiters } of locks.inspect()) if (key === 'k' && waiters.length >= count) return
    await sleep(5)
  }
}

/** A process that is in the middle of a transaction, and does not go on. */
async function stoppedWriter(): Promise<ChildProcess> {
  const writer = fork(fixture('sqlite-writer'), [file])
  onTestFinished(() => void writer.kill('SIGKILL'))
  await once(writer, 'message')
  writer.kill('SIGSTOP')
  return writer
}

/** `HOLDFAST_ROUNDS=2000` for about a minute of it. */
const ROUNDS = Number(process.env['HOLDFAST_ROUNDS'] ?? 20)

describe('8 processes that contend', () => {
  it('for one key are served in order, with growing fences, and no call takes long', async () => {
    const workers = await spawnMany(8, { library: MEASURED })
    await Promise.all(workers.map((worker) => worker.call('convoy', 'k', 3, ROUNDS, 0, { fairness: 'strict' })))
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(8 * 3 * ROUNDS)
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 500 })).toEqual({ fence: [], fifo: [] })
    for (const worker of workers) {
      await worker.exit()
      const [, longestMs, calls] = /longest call: ([\d.]+) ms of (\d+) calls/.exec(worker.stderr) ?? []
      expect(Number(calls)).toBeGreaterThan(100)
      expect(Number(longestMs)).toBeLessThan(50)
    }
  })

  it('for several keys, some passing them on in memory, exclude each other', async () => {
    const workers = await spawnMany(8)
    const convoys = workers.flatMap((worker, i) =>
      ['a', 'b', 'c'].map((key) => worker.call('convoy', key, 3, 20, 0, { fairness: i % 2 === 0 ? 'strict' : 'bounded' })))
    await Promise.all(convoys)
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(8 * 3 * 3 * 20)
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 1_000 }).fence).toEqual([])
    expect(repeats(holds)).toEqual([])
  })

  it('may all start at once, on a file that is not there yet', async () => {
    const workers = await spawnMany(8)
    const held = await Promise.all(workers.map((worker) => worker.call('tryLock', 'k')))
    expect(held.filter((one) => one !== null)).toHaveLength(1)
  })
})

describe('a process that is killed', () => {
  it('while it holds: the next one has the key within TTL + 1 s', async () => {
    const [holder, next] = (await spawnMany(2)) as [Worker, Worker]
    const locks = await manager()
    const first = await holder.call('lock', 'k', { ttlMs: 1_000 })
    const waiting = next.call('lock', 'k', { ttlMs: 1_000 })
    await queued(locks, 1)
    await holder.kill()
    const killedAt = performance.now()
    const second = await waiting
    expect(msSince(killedAt)).toBeLessThan(2_000)
    expect(second.fence).toBeGreaterThan(first.fence)
  })

  it('while it waits: the others go on within 3 s, however many were killed', async () => {
    const workers = await spawnMany(8)
    const locks = await manager()
    const first = await locks.lock('k')
    const convoys = workers.map((worker) => worker.call('convoy', 'k', 4, 1, 1, { fairness: 'strict' }))
    await queued(locks, 32)
    for (const convoy of convoys) convoy.catch(() => {})
    const living = workers.filter((_, i) => i % 2 === 1)
    await Promise.all(workers.filter((_, i) => i % 2 === 0).map((worker) => worker.kill()))
    const releasedAt = process.hrtime.bigint()
    await first.release()
    await Promise.all(convoys.filter((_, i) => i % 2 === 1))
    const holds = living.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(16)
    expect(overlaps(holds)).toEqual([])
    // The dead stand between the living, so this is about all of them.
    const lastMs = Math.max(...holds.map(({ grantedAt }) => Number(grantedAt - releasedAt) / 1e6))
    expect(lastMs).toBeLessThan(3_000)
  })

  it('in the middle of a write leaves no trace of it', async () => {
    const locks = await manager()
    const lock = await locks.lock('k', { ttlMs: 5_000 })
    const writer = await stoppedWriter()
    writer.kill('SIGKILL')
    await once(writer, 'exit')
    expect(await lock.extend(5_000)).toBeUndefined()
    expect(await lock.release()).toBe(true)
    await using again = await locks.lock('k', { waitMs: 2_000 })
    expect(again.fence).toBeGreaterThan(lock.fence)
  })

  it('at any moment, again and again, never lets two hold', async () => {
    const survivors = await spawnMany(2)
    const contended = survivors.map((worker) => worker.call('contend', 'k', 2, 1, { ttlMs: 500 }))
    const holds = []
    for (let round = 0; round < 6; round++) {
      const [victim] = (await spawnMany(1)) as [Worker]
      victim.call('contend', 'k', 2, 1, { ttlMs: 500, fairness: 'strict' }).catch(() => {})
      await victim.event('acquired')
      await sleep(20 + 37 * round)
      await victim.kill()
      holds.push(...victim.holds())
    }
    for (const worker of survivors) await worker.call('endContention')
    await Promise.all(contended)
    holds.push(...survivors.flatMap((worker) => worker.holds()))
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 2_000 }).fence).toEqual([])
    expect(repeats(holds)).toEqual([])
  })
})

describe('a process that is stopped', () => {
  it('when its turn comes: costs at most one TTL + 1 s, and does not believe the old grant', async () => {
    const [frozen, next] = (await spawnMany(2)) as [Worker, Worker]
    const locks = await manager()
    const first = await locks.lock('k')
    const waiting = frozen.call('lock', 'k', { ttlMs: 1_000 })
    await queued(locks, 1)
    const afterIt = next.call('lock', 'k', { ttlMs: 1_000 })
    await queued(locks, 2)
    await frozen.stop()
    await first.release()
    const releasedAt = performance.now()
    const granted = await afterIt
    expect(msSince(releasedAt)).toBeLessThan(2_000)
    await frozen.cont()
    await sleep(100)
    expect(frozen.holds()).toEqual([])
    await next.call('release', granted.id)
    expect((await waiting).fence).toBeGreaterThan(granted.fence)
    expect(overlaps([...frozen.holds(), ...next.holds()])).toEqual([])
  })

  it('in the middle of a write: holders lose by their own deadlines, claims fail in time, and waiters go on when it does', async () => {
    const [holder, waiter] = (await spawnMany(2)) as [Worker, Worker]
    const locks = await manager()
    await holder.call('lock', 'k', { ttlMs: 1_000 })
    const waiting = waiter.call('lock', 'k', { ttlMs: 1_000 })
    await queued(locks, 1)
    const writer = await stoppedWriter()
    const stoppedAt = process.hrtime.bigint()

    const lost = await holder.event('lost')
    expect(Number(lost.at - stoppedAt) / 1e6).toBeLessThan(1_100)
    const askedAt = performance.now()
    await expect(locks.tryLock('other')).rejects.toMatchObject({ code: 'BACKEND', transient: true, message: expect.stringContaining('Another process') })
    expect(msSince(askedAt)).toBeLessThan(5_000)
    expect(waiter.holds()).toEqual([])

    writer.kill('SIGCONT')
    writer.send('roll back')
    await waiting
    expect(overlaps([...holder.holds(), ...waiter.holds()])).toEqual([])
  })
})

describe('the time of day', () => {
  it('of a process may be ten minutes off, either way: nothing changes', async () => {
    const shifted = (minutes: number) => {
      const shift = `const now = Date.now; Date.now = () => now() + ${minutes * 60_000}`
      return spawnWorker({ url, execArgv: ['--import', `data:text/javascript,${encodeURIComponent(shift)}`] })
    }
    const workers = await Promise.all([shifted(-10), shifted(0), shifted(10)])
    await Promise.all(workers.map((worker) => worker.call('convoy', 'k', 2, 20, 1, { fairness: 'strict' })))
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(120)
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 500 })).toEqual({ fence: [], fifo: [] })

    const [behind, , ahead] = workers as [Worker, Worker, Worker]
    for (const [holder, other] of [[behind, ahead], [ahead, behind]] as const) {
      const held = await holder.call('lock', 'j', { ttlMs: 500, autoRenew: false })
      expect(await other.call('tryLock', 'j')).toBeNull()
      const askedAt = performance.now()
      const next = await other.call('lock', 'j', { ttlMs: 30_000 })
      expect(msSince(askedAt)).toBeLessThan(1_500)
      expect(next.fence).toBeGreaterThan(held.fence)
      await other.call('release', next.id)
    }
  })
})

describe('a disk that is full', () => {
  it('is said clearly, and nothing that was granted is lost', async () => {
    const [worker] = (await spawnMany(1, { library: MEASURED })) as [Worker]
    const locks = await manager()
    const held = await worker.call('lock', 'k', { ttlMs: 60_000 })
    // The log can grow no more for this process.
    const limit = (bytes: string) => execFileSync('prlimit', ['--pid', String(worker.pid), `--fsize=${bytes}:unlimited`])
    limit('4096')
    const refused = await worker.call('lock', 'other', { waitMs: 0 }).catch((error: Error & { code?: string }) => error)
    expect(refused).toMatchObject({ code: 'BACKEND', message: expect.stringMatching(/full|could not be read or written/) })
    expect(await locks.tryLock('k')).toBeNull()
    expect(await worker.call('probe', held.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
    await using other = await locks.lock('other')
    expect(other.key).toBe('other')
    limit('unlimited')
    expect(await worker.call('release', held.id)).toBe(true)
    await using mine = await locks.lock('k', { waitMs: 1_000 })
    expect(mine.fence).toBeGreaterThan(held.fence)
  })
})
