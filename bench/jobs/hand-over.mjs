/**
 * Processes that want one key all the time, each with one worker: it has the key for a moment, lets go, and asks again.
 *
 * A hand-over lasts from the call that lets go to the moment when the other has it, who was waiting. If somebody takes again what he
 * has just let go of, the time goes on: it is counted from the first release since the other asked. When the time is over, what is
 * still waited for counts for as long as it lasted.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sharedNow, toLocal, toShared } from '../lib/clock.mjs'
import { Histogram, jain, sum } from '../lib/stats.mjs'

const HEAD_START_MS = 30
const GRACE_MS = 10_000
const MAX_FAILURES = 100_000

/** In a process that measures. */
export async function start(locks, { processIndex, workMs }) {
  await locks.release(await locks.acquire(`warm-up-${processIndex}`))
  return { run }

  async function run(times) {
    const [from, until] = [toLocal(times.from), toLocal(times.until)]
    const holds = []
    let waitingSince
    let failures = 0
    let lastFailure

    async function work() {
      while (performance.now() < until) {
        const askedAt = (waitingSince = performance.now())
        let hold
        while (hold === undefined) {
          try {
            hold = await locks.acquire('hot')
          } catch (error) {
            lastFailure = String(error?.message ?? error).slice(0, 200)
            if (++failures > MAX_FAILURES) throw error
            if (performance.now() > until) return
          }
        }
        const acquiredAt = performance.now()
        waitingSince = undefined
        await sleep(workMs)
        const letGoAt = performance.now()
        holds.push([askedAt, acquiredAt, letGoAt].map(toShared))
        await locks.release(hold)
      }
    }

    let cpuBefore = process.cpuUsage()
    setTimeout(() => (cpuBefore = process.cpuUsage()), from - performance.now())
    await Promise.race([work(), sleep(until - performance.now())])
    const cpu = process.cpuUsage(cpuBefore)
    const waitsSince = waitingSince && toShared(waitingSince)
    return { holds, waitsSince, failures, lastFailure, cpuMs: (cpu.user + cpu.system) / 1000 }
  }
}

/** In the parent. */
export async function conduct(crew, { warmUpMs, durationMs }, { watch }) {
  const from = sharedNow() + HEAD_START_MS + warmUpMs
  const until = from + durationMs
  const running = crew.ask('run', HEAD_START_MS + warmUpMs + durationMs + GRACE_MS, () => ({ from, until }))
  // It may fail before it is waited for below.
  running.catch(() => {})
  await sleep(from - sharedNow())
  const server = await watch(() => sleep(until - sharedNow()))
  const results = await running

  const handOvers = new Histogram()
  for (const ms of results.flatMap((_, processIndex) => gaps(results, processIndex, from, until))) handOvers.record(ms)
  const shares = results.map(({ holds }) => holds.filter(([, acquiredAt]) => acquiredAt >= from && acquiredAt < until).length)
  const operations = sum(shares)
  const cpuMs = sum(results.map((result) => result.cpuMs))
  return {
    operations,
    opsPerS: (1000 * operations) / durationMs,
    handOverP50Ms: handOvers.percentile(0.5),
    handOverP99Ms: handOvers.percentile(0.99),
    handOverMaxMs: handOvers.max,
    handOffsPerS: (1000 * sum(handOvers.counts)) / durationMs,
    overlaps: overlaps(results.flatMap(({ holds }) => holds)),
    jain: jain(shares),
    clientCpuUsPerOp: operations === 0 ? undefined : (1000 * cpuMs) / operations,
    othersCpu: server.othersCpu(cpuMs),
    failures: sum(results.map((result) => result.failures)),
    lastFailure: results.find((result) => result.lastFailure)?.lastFailure
  }
}

/** How long after the first release since it asked a process had the key, each time that it had to wait for another. */
function gaps(results, processIndex, from, until) {
  const { holds, waitsSince } = results[processIndex]
  const others = results.filter((_, index) => index !== processIndex)
  const releases = others.flatMap((other) => other.holds.map(([, , letGoAt]) => letGoAt)).sort((a, b) => a - b)
  const waits = waitsSince === undefined ? holds : [...holds, [waitsSince, until]]
  const found = []
  let next = 0
  for (const [askedAt, acquiredAt] of waits) {
    while (releases[next] < askedAt) next++
    const isCounted = acquiredAt >= from && acquiredAt <= until
    if (isCounted && releases[next] < acquiredAt) found.push(acquiredAt - releases[next])
  }
  return found
}

/** Somebody was given the lock while another had it. */
function overlaps(holds) {
  let [count, heldUntil] = [0, -Infinity]
  for (const [, acquiredAt, letGoAt] of holds.sort(([, a], [, b]) => a - b)) {
    if (acquiredAt < heldUntil) count++
    heldUntil = Math.max(heldUntil, letGoAt)
  }
  return count
}
