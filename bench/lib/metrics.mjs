/** How numbers are named (`full` in a chart, where there is room) and written, and which way is better. */
export const METRICS = {
  opsPerS: { name: 'ops/s', better: 'more', write: count },
  handOffsPerS: { name: 'hand-offs/s', better: 'more', write: count },
  waitP50Ms: { name: 'wait p50', better: 'less', write: time },
  waitP99Ms: { name: 'p99', better: 'less', write: time },
  waitMaxMs: { name: 'max', better: 'less', write: time },
  cycleP50Ms: { name: 'lock+unlock p50', better: 'less', write: time },
  gapMs: { name: 'gap', full: 'gap per hand-off', better: 'less', write: time },
  handOverP50Ms: { name: 'hand-over p50', better: 'less', write: time },
  handOverP99Ms: { name: 'p99', better: 'less', write: time },
  handOverMaxMs: { name: 'max', better: 'less', write: time },
  triesPerOp: { name: 'tries', better: 'less', write: short },
  jain: { name: 'Jain', better: 'more', write: (number) => number.toFixed(3) },
  requestsPerOp: { name: 'requests/op', better: 'less', write: short },
  scriptsPerOp: { name: 'scripts/op', better: 'less', write: short },
  commandsPerOp: { name: 'commands/op', better: 'less', write: short },
  clientCpuUsPerOp: { name: 'client CPU/op', better: 'less', write: (us) => time(us / 1000) },
  serverCpuUsPerOp: { name: 'server CPU/op', better: 'less', write: (us) => time(us / 1000) },
  timerLateMs: { name: 'timers late', better: 'less', write: time },
  failures: { name: 'gave up', better: 'less', write: count },
  renewalRequests: { name: 'requests', full: 'requests to renew them', better: 'less', write: count },
  renewalCommands: { name: 'commands', better: 'less', write: count },
  clientCpuMs: { name: 'client CPU', better: 'less', write: time },
  serverCpuMs: { name: 'server CPU', better: 'less', write: time },
  heapPerHeldBytes: { name: 'heap per lock', better: 'less', write: bytes },
  growth: { name: 'growth', better: 'less', write: (number) => `× ${short(number)}` },
  hotPerS: { name: '64, hot', better: 'more', write: perSecond },
  drainToHot: { name: 'last to hot', better: 'more', write: (number) => `× ${short(number)}` },
  heapPerWaiterBytes: { name: 'heap per waiter', better: 'less', write: bytes }
}

for (const size of [100, 1_000, 10_000, 100_000]) {
  const name = size.toLocaleString('en')
  const full = `a lock and its unlock, beside ${name} others`
  METRICS[`costUsAt${size}`] = { name, full, better: 'less', write: (us) => time(us / 1000) }
  METRICS[`cpuUsAt${size}`] = { name: `CPU at ${name}`, better: 'less', write: (us) => time(us / 1000) }
  METRICS[`drainPerSAt${size}`] = { name, full: `hand-overs to ${name} waiters`, better: 'more', write: perSecond }
}

export const write = (metric, number) => (number === undefined ? '–' : METRICS[metric].write(number))

export function count(number) {
  return number < 10 && !Number.isInteger(number) ? number.toFixed(1) : Math.round(number).toLocaleString('en')
}

/** Three digits. */
export function short(number) {
  if (number !== 0 && Math.abs(number) < 0.01) return number.toExponential(0)
  return Math.abs(number) < 10 ? number.toFixed(2) : Math.abs(number) < 100 ? number.toFixed(1) : count(number)
}

export function time(ms) {
  if (ms < 0.001) return `${short(ms * 1e6)} ns`
  return ms < 1 ? `${short(ms * 1e3)} µs` : ms < 1000 ? `${short(ms)} ms` : `${short(ms / 1000)} s`
}

export function bytes(number) {
  return number < 10_000 ? `${count(number)} B` : `${short(number / 1024)} KB`
}

function perSecond(number) {
  return `${count(number)}/s`
}
