/**
 * Convoys: in every process a number of waiters come for one key at the same moment. Each has it once, works for a
 * moment, and lets go. The next convoy, on another key, comes when the last one has passed.
 *
 * All must get through. In a loop it would be otherwise: who polls and has just let go finds the key free, takes it
 * again and again without any gap, and the others starve. (The hot key shows that.)
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { sharedNow, toLocal, toShared } from '../lib/clock.mjs'
import { Histogram, sum } from '../lib/stats.mjs'

const HEAD_START_MS = 5
const MAX_FAILURES = 100_000

/** In a process that measures. */
export async function start(locks, { processIndex, workers, workMs }) {
  await locks.release(await locks.acquire(`warm-up:${processIndex}`))
  return { pass }

  async function pass({ key, at }) {
    const waits = []
    const holds = []
    let failures = 0
    let lastFailure
    const cpuBefore = process.cpuUsage()

    async function wait() {
      const startedAt = performance.now()
      let hold
      while (hold === undefined) {
        try {
          hold = await locks.acquire(key)
        } catch (error) {
          lastFailure = String(error?.message ?? error).slice(0, 200)
          if (++failures > MAX_FAILURES) throw error
        }
      }
      const acquiredAt = performance.now()
      waits.push(acquiredAt - startedAt)
      await sleep(workMs)
      holds.push([toShared(acquiredAt), sharedNow()])
      await locks.release(hold)
    }

    await sleep(toLocal(at) - performance.now())
    await Promise.all(Array.from({ length: workers }, wait))
    const cpu = process.cpuUsage(cpuBefore)
    return { waits, holds, failures, lastFailure, cpuMs: (cpu.user + cpu.system) / 1000 }
  }
}

/** In the parent. */
export async function conduct(crew, { warmUpMs, durationMs, capMs }, { watch }) {
  const startedAt = sharedNow()
  let convoys = 0
  const pass = () => {
    const at = sharedNow() + HEAD_START_MS
    const left = startedAt + warmUpMs + durationMs + capMs - at
    const key = `convoy-${convoys++}`
    return crew.ask('pass', left, () => ({ key, at }))
  }
  const passUntil = async (end) => {
    const passed = []
    do passed.push(await pass())
    while (sharedNow() < end)
    return passed
  }
  await passUntil(startedAt + warmUpMs)
  const server = await watch(() => passUntil(sharedNow() + durationMs))

  const results = server.result.flat()
  const waits = new Histogram()
  for (const ms of results.flatMap((result) => result.waits)) waits.record(ms)
  const passages = server.result.map(passage)
  const operations = sum(passages.map((each) => each.holds))
  return {
    operations,
    opsPerS: (1000 * operations) / sum(passages.map((each) => each.elapsedMs)),
    // The time in which nobody had the key though somebody wanted it.
    gapMs: sum(passages.map((each) => each.idleMs)) / (operations - passages.length),
    overlaps: sum(passages.map((each) => each.overlaps)),
    ...waits.percentiles(),
    scriptsPerOp: server.scripts / operations,
    requestsPerOp: server.requests / operations,
    commandsPerOp: server.commands / operations,
    serverCpuUsPerOp: (1000 * server.cpuMs) / operations,
    clientCpuUsPerOp: (1000 * sum(results.map(({ cpuMs }) => cpuMs))) / operations,
    othersCpu: server.othersCpu(sum(results.map(({ cpuMs }) => cpuMs))),
    failures: sum(results.map((result) => result.failures)),
    lastFailure: results.find((result) => result.lastFailure)?.lastFailure
  }
}

/** One convoy, from the first who had the key to the last who let go of it. */
function passage(ofProcesses) {
  const holds = ofProcesses.flatMap((result) => result.holds).sort(([a], [b]) => a - b)
  let idleMs = 0
  let overlaps = 0
  let heldUntil = holds[0][0]
  for (const [start, end] of holds) {
    if (start < heldUntil) overlaps++
    idleMs += Math.max(0, start - heldUntil)
    heldUntil = Math.max(heldUntil, end)
  }
  return { holds: holds.length, idleMs, overlaps, elapsedMs: heldUntil - holds[0][0] }
}
