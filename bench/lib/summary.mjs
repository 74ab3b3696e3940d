/** From the rounds to medians with their spread, and to ratios: made inside each round, then their median is taken. */
import { METRICS } from './metrics.mjs'
import { spread, sum } from './stats.mjs'

/** `rounds` is a list of maps from a contender's id to its metrics. */
export function summarise(workload, rounds) {
  const contenders = {}
  for (const id of workload.contenders) {
    const measured = rounds.map((round) => round[id]).filter(Boolean)
    if (measured.length === 0) continue
    const trouble = measured.map(({ failed, capped, note }) => failed ?? capped ?? note).find(Boolean)
    contenders[id] = {
      metrics: metricsOf(measured),
      ratio: spread(rounds.map((round) => ratio(round, id, workload.reference, workload.primary))),
      ...(trouble && { trouble }),
      // Somebody was given the lock while another had it.
      overlaps: sum(measured.map((metrics) => metrics.overlaps ?? 0))
    }
  }
  const { id, store, title, says, primary, chart, reference, columns, processes, params } = workload
  return { id, store, title, says, primary, chart, reference, columns, processes, params, contenders, rounds }
}

function metricsOf(measured) {
  const known = Object.keys(METRICS).map((name) => [name, spread(measured.map((metrics) => metrics[name]))])
  return Object.fromEntries(known.filter(([, value]) => value))
}

/** How one compares with another in the same metric, in the median of the rounds that have both. */
export function ratioBetween({ rounds }, id, otherId, metric) {
  return spread(rounds.map((round) => ratio(round, id, otherId, metric)))?.median
}

function ratio(round, id, otherId, metric) {
  return (round[id]?.[metric] ?? NaN) / (round[otherId]?.[metric] ?? NaN)
}

/** How much of the machine others used while we measured, as a share of all cores. */
export function othersCpu(summaries) {
  const measurements = summaries.flatMap(({ rounds }) => rounds.flatMap((round) => Object.values(round)))
  return spread(measurements.map((metrics) => metrics.othersCpu))
}
