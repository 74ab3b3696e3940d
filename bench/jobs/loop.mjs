/**
 * Workers that lock and unlock in a loop: each its own keys, or all the same one. What ends between `from` and `until` is
 * counted; before that everything warms up. A worker is never stopped in the middle: when the time is over, what it still
 * waits for counts as a wait that long, so that a contender which starves somebody does not look better for it.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sharedNow, toLocal, toShared } from '../lib/clock.mjs'
import { Histogram } from '../lib/stats.mjs'

/** So that a lock is not always taken by who has just let go of it. */
const KEYS_PER_WORKER = 16
const TICK_MS = 10
const MAX_FAILURES = 100_000

export async function loop(locks, { processIndex, workers, shared, workMs, thinkMs }, ready) {
  // Connections, scripts, first compilation.
  await locks.release(await locks.acquire(`warm-up:${processIndex}`))
  const times = await ready()
  const from = toLocal(times.from)
  const until = toLocal(times.until)

  const waits = new Histogram()
  const shares = Array.from({ length: workers }, () => 0)
  const waitingSince = Array.from({ length: workers }, () => undefined)
  const held = { totalMs: 0, firstAt: Infinity, lastAt: 0, intervals: [] }
  let failures = 0
  let lastFailure
  let cpuBefore

  async function work(worker) {
    let startedAt = performance.now()
    for (let turn = 0; startedAt < until; turn++) {
      const key = shared ? 'hot' : `${processIndex}:${worker}:${turn % KEYS_PER_WORKER}`
      waitingSince[worker] = startedAt
      let hold
      // What gives up is asked again: it still has not got the lock.
      while (hold === undefined) {
        try {
          hold = await locks.acquire(key)
        } catch (error) {
          failed(error)
          if (performance.now() > until) return
        }
      }
      const acquiredAt = performance.now()
      waitingSince[worker] = undefined
      let releasedAt = acquiredAt
      if (workMs > 0) {
        await sleep(workMs)
        releasedAt = performance.now()
      }
      // Nothing to wait for, in one process.
      const released = locks.release(hold)
      if (released) await released
      const endedAt = performance.now()
      if (endedAt >= from && endedAt < until) count(worker, startedAt, acquiredAt, releasedAt)
      startedAt = endedAt
      if (thinkMs > 0) {
        await sleep(Math.random() * thinkMs)
        startedAt = performance.now()
      }
    }
  }

  function count(worker, startedAt, acquiredAt, releasedAt) {
    cpuBefore ??= process.cpuUsage()
    waits.record(acquiredAt - startedAt)
    shares[worker]++
    if (!shared) return
    held.totalMs += releasedAt - acquiredAt
    if (acquiredAt < held.firstAt) held.firstAt = acquiredAt
    held.lastAt = releasedAt
    if (workMs > 0) held.intervals.push([toShared(acquiredAt), toShared(releasedAt)])
  }

  function failed(error) {
    if (performance.now() < from) return
    failures++
    lastFailure = String(error?.message ?? error).slice(0, 200)
    if (failures > MAX_FAILURES) throw error
  }

  const timers = watchTimers(from, until)
  const stopAt = new Promise((resolve) => setTimeout(resolve, until - performance.now()))
  setTimeout(() => (cpuBefore ??= process.cpuUsage()), from - performance.now())
  await Promise.race([Promise.all(Array.from(shares, (_, worker) => work(worker))), stopAt])
  const cpu = process.cpuUsage(cpuBefore)
  const endedAt = Math.min(until, performance.now())
  for (const since of waitingSince) if (since !== undefined && since < endedAt) waits.record(endedAt - since)

  return {
    waits: waits.toJSON(),
    shares,
    failures,
    lastFailure,
    cpuMs: (cpu.user + cpu.system) / 1000,
    timerLateMs: timers.worstMs(),
    held: { ...held, firstAt: toShared(held.firstAt), lastAt: toShared(held.lastAt) },
    endedAt: sharedNow()
  }
}

/** How late a timer of 10 ms was at worst: somebody else's, in the same process. */
function watchTimers(from, until) {
  let worst = 0
  let due = 0
  const note = (now) => {
    if (now > from) worst = Math.max(worst, now - Math.max(due, from))
  }
  const tick = () => {
    const now = performance.now()
    note(now)
    due = now + TICK_MS
    if (now < until) setTimeout(tick, TICK_MS).unref()
  }
  tick()
  return {
    worstMs: () => {
      // One that never ran is late until now.
      note(Math.max(due, performance.now()))
      return worst
    }
  }
}
