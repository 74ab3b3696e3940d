/**
 * Workers that lock and unlock in a loop: each its own keys, or all the same one. What ends between `from` and `until`
 * is counted; before that everything warms up. When the time is over, what a worker still waits for counts as a wait
 * that long, so that a contender which starves somebody does not look better for it.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sharedNow, toLocal, toShared } from '../lib/clock.mjs'
import { Histogram, jain, sum } from '../lib/stats.mjs'

/** So that a lock is not always taken by who has just let go of it. */
const KEYS_PER_WORKER = 16
const TICK_MS = 10
const MAX_FAILURES = 100_000
/** From the word to the start, so that it reaches all before. */
const HEAD_START_MS = 30
const GRACE_MS = 10_000

/** In a process that measures. */
export async function start(locks, { processIndex, workers, shared, thinkMs }) {
  // Connections, scripts, first compilation.
  await locks.release(await locks.acquire(`warm-up:${processIndex}`))
  return { run }

  async function run(times) {
    const from = toLocal(times.from)
    const until = toLocal(times.until)
    const waits = new Histogram()
    const cycles = new Histogram()
    const shares = Array.from({ length: workers }, () => 0)
    const waitingSince = Array.from({ length: workers }, () => undefined)
    const turns = new Turns()
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
        const released = locks.release(hold)
        // Nothing to wait for, in one process.
        if (released) await released
        const endedAt = performance.now()
        if (endedAt >= from && endedAt < until) {
          cpuBefore ??= process.cpuUsage()
          waits.record(acquiredAt - startedAt)
          shares[worker]++
          if (shared) turns.note(worker, acquiredAt)
          else cycles.record(endedAt - startedAt)
        }
        startedAt = endedAt
        if (thinkMs > 0) {
          await sleep(Math.random() * thinkMs)
          startedAt = performance.now()
        }
      }
    }

    function failed(error) {
      if (performance.now() < from) return
      failures++
      lastFailure = String(error?.message ?? error).slice(0, 200)
      if (failures > MAX_FAILURES) throw error
    }

    const timers = watchTimers(from, until)
    const over = sleep(until - performance.now())
    setTimeout(() => (cpuBefore ??= process.cpuUsage()), from - performance.now())
    await Promise.race([Promise.all(Array.from(shares, (_, worker) => work(worker))), over])
    const cpu = process.cpuUsage(cpuBefore)
    const endedAt = Math.min(until, performance.now())
    for (const since of waitingSince) if (since < endedAt) waits.record(endedAt - since)
    const timerLateMs = timers.worstMs()
    const cpuMs = (cpu.user + cpu.system) / 1000
    return { waits, cycles, shares, turns: turns.list(), failures, lastFailure, cpuMs, timerLateMs, tries: locks.tries?.() }
  }
}

/** Who had the key and when: how often it went from one to another is seen when all processes are put together. */
class Turns {
  #workers = new Uint16Array(1024)
  #times = new Float64Array(1024)
  #length = 0

  note(worker, acquiredAt) {
    if (this.#length === this.#times.length) this.#grow()
    this.#workers[this.#length] = worker
    this.#times[this.#length++] = acquiredAt
  }

  list() {
    return { workers: this.#workers.slice(0, this.#length), times: this.#times.slice(0, this.#length).map(toShared) }
  }

  #grow() {
    const { workers, times } = { workers: this.#workers, times: this.#times }
    this.#workers = new Uint16Array(2 * this.#length)
    this.#times = new Float64Array(2 * this.#length)
    this.#workers.set(workers)
    this.#times.set(times)
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

/** In the parent. */
export async function conduct(crew, { warmUpMs, durationMs, shared }, { watch }) {
  const from = sharedNow() + HEAD_START_MS + warmUpMs
  const until = from + durationMs
  const running = crew.ask('run', HEAD_START_MS + warmUpMs + durationMs + GRACE_MS, () => ({ from, until }))
  // It may fail before it is waited for below.
  running.catch(() => {})
  await sleep(from - sharedNow())
  const server = await watch(() => sleep(until - sharedNow()))
  const results = await running

  const waits = new Histogram()
  const cycles = new Histogram()
  for (const result of results) {
    waits.add(result.waits)
    cycles.add(result.cycles)
  }
  const shares = results.flatMap((result) => result.shares)
  const operations = sum(shares)
  // The server was watched for a little longer or shorter, so what it did is taken as a rate.
  const perOp = (number) => (operations === 0 ? undefined : ((number / server.elapsedMs) * durationMs) / operations)
  return {
    operations,
    opsPerS: (1000 * operations) / durationMs,
    ...(shared && { handOffsPerS: (1000 * changes(results)) / durationMs }),
    jain: jain(shares),
    ...waits.percentiles(),
    cycleP50Ms: cycles.percentile(0.5),
    scriptsPerOp: perOp(server.scripts),
    requestsPerOp: perOp(server.requests),
    commandsPerOp: perOp(server.commands),
    serverCpuUsPerOp: perOp(1000 * server.cpuMs),
    clientCpuUsPerOp: operations === 0 ? undefined : (1000 * sum(results.map(({ cpuMs }) => cpuMs))) / operations,
    ...(results[0].tries?.committed > 0 && { triesPerOp: sum(results.map(({ tries }) => tries.applied)) / sum(results.map(({ tries }) => tries.committed)) }),
    timerLateMs: Math.max(...results.map(({ timerLateMs }) => timerLateMs)),
    othersCpu: server.othersCpu(sum(results.map(({ cpuMs }) => cpuMs))),
    failures: sum(results.map((result) => result.failures)),
    lastFailure: results.find((result) => result.lastFailure)?.lastFailure
  }
}

/** How often the key went from one worker to another. Who takes again what he has just let go of hands nothing over. */
function changes(results) {
  const all = results.flatMap(({ turns: { workers, times } }, processIndex) =>
    Array.from(times, (at, index) => ({ at, who: processIndex * 65_536 + workers[index] }))
  )
  // One process has noted them in order, and there may be millions.
  if (results.length > 1) all.sort((a, b) => a.at - b.at)
  return all.reduce((count, { who }, index) => (index > 0 && who !== all[index - 1].who ? count + 1 : count), 0)
}
