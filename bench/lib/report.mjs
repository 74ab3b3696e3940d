import { contenderOf } from '../contenders/index.mjs'
import { METRICS, short, write } from './metrics.mjs'
import { table } from './table.mjs'

/** One workload: the primary metric with its spread, its ratio to the reference, and the rest as medians. */
export function workloadTable({ contenders, primary, reference, columns }) {
  const present = columns.filter((name) => Object.values(contenders).some(({ metrics }) => metrics[name]?.max > 0))
  const names = present.map((name) => METRICS[name].name)
  const head = ['', `${METRICS[primary].name} (min–max)`, `× ${reference}`, ...names]
  const rows = inOrder(contenders, primary).map(([id, { metrics, ratio, trouble, overlaps }]) => {
    const label = `${contenderOf(id).role === 'ours' ? `**${id}**` : id}${overlaps ? ` (${overlaps} overlaps!)` : ''}`
    const value = metrics[primary] && withSpread(primary, metrics[primary])
    return [
      label,
      value && trouble ? `${value}, or ${trouble}` : (value ?? trouble ?? 'nothing in the time'),
      ratio ? short(ratio.median) : '–',
      ...present.map((name) => write(name, metrics[name]?.median))
    ]
  })
  return table(head, rows)
}

function withSpread(metric, { median, min, max, rounds }) {
  const one = write(metric, median)
  return rounds > 1 ? `${one} (${write(metric, min)}–${write(metric, max)})` : one
}

/** Best first; who has no number comes last. */
export function inOrder(contenders, primary) {
  const sign = METRICS[primary].better === 'more' ? -1 : 1
  const value = ([, { metrics }]) => (metrics[primary] ? sign * metrics[primary].median : Infinity)
  return Object.entries(contenders).sort((a, b) => value(a) - value(b))
}
