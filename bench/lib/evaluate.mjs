/** From what the processes and the server tell to the numbers of one measurement. */
import { Histogram, jain } from './stats.mjs'

/** The window is `from`–`until`; what the server did is known for a time that differs a little, so it is taken as a rate. */
export function evaluateLoop(results, { from, until, elapsedMs, scripts, requests, commands, cpuMs }) {
  const waits = new Histogram()
  for (const result of results) waits.add(result.waits)
  const shares = results.flatMap((result) => result.shares)
  const operations = sum(shares)
  // A loop that lets no timer run ends late.
  const windowMs = until - from
  const perOperation = (count) => (operations === 0 ? undefined : ((count / elapsedMs) * windowMs) / operations)
  return {
    operations,
    opsPerS: (1000 * operations) / windowMs,
    waitP50Ms: waits.percentile(0.5),
    waitP99Ms: waits.percentile(0.99),
    waitMaxMs: waits.max,
    jain: jain(shares),
    gapMs: gap(results),
    overlaps: overlaps(results.flatMap((result) => result.held.intervals)),
    scriptsPerOp: perOperation(scripts),
    requestsPerOp: perOperation(requests),
    commandsPerOp: perOperation(commands),
    serverCpuUsPerOp: perOperation(1000 * cpuMs),
    clientCpuUsPerOp: operations === 0 ? undefined : (1000 * sum(results.map((result) => result.cpuMs))) / operations,
    timerLateMs: Math.max(...results.map((result) => result.timerLateMs)),
    failures: sum(results.map((result) => result.failures)),
    lastFailure: results.find((result) => result.lastFailure)?.lastFailure
  }
}

/** The time in which nobody held the key though somebody wanted it, per change of the holder. */
function gap(results) {
  const held = results.map((result) => result.held).filter(({ firstAt }) => Number.isFinite(firstAt))
  const changes = sum(results.flatMap((result) => result.shares)) - 1
  if (held.length === 0 || changes < 1) return undefined
  const firstAt = Math.min(...held.map((each) => each.firstAt))
  const lastAt = Math.max(...held.map((each) => each.lastAt))
  return (lastAt - firstAt - sum(held.map((each) => each.totalMs))) / changes
}

/** How often somebody was given the lock while another had it. None is the least to expect. */
function overlaps(intervals) {
  const inOrder = intervals.sort(([a], [b]) => a - b)
  let count = 0
  let heldUntil = 0
  for (const [start, end] of inOrder) {
    if (start < heldUntil) count++
    heldUntil = Math.max(heldUntil, end)
  }
  return count
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0)
