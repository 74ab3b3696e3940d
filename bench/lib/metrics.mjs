/** How numbers are named and written. `better` says which way is up. */
export const METRICS = {
  opsPerS: { name: 'ops/s', better: 'more', write: count },
  handOffsPerS: { name: 'hand-offs/s', better: 'more', write: count },
  waitP50Ms: { name: 'wait p50', better: 'less', write: time },
  waitP99Ms: { name: 'p99', better: 'less', write: time },
  waitMaxMs: { name: 'max', better: 'less', write: time },
  gapMs: { name: 'gap', better: 'less', write: time },
  jain: { name: 'Jain', better: 'more', write: (number) => number.toFixed(3) },
  requestsPerOp: { name: 'requests/op', better: 'less', write: short },
  scriptsPerOp: { name: 'scripts/op', better: 'less', write: short },
  commandsPerOp: { name: 'commands/op', better: 'less', write: short },
  clientCpuUsPerOp: { name: 'client CPU/op', better: 'less', write: (us) => time(us / 1000) },
  serverCpuUsPerOp: { name: 'server CPU/op', better: 'less', write: (us) => time(us / 1000) },
  timerLateMs: { name: 'timers late', better: 'less', write: time },
  failures: { name: 'gave up', better: 'less', write: count }
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
