/** Horizontal bars as SVG, readable on light and dark pages. No library: it is a few rectangles. */
import { contenderOf } from '../contenders/index.mjs'
import { METRICS, write } from './metrics.mjs'
import { inOrder } from './report.mjs'

const WIDTH = 760
const LABELS = 200
const VALUES = 190
const ROW = 26
const TOP = 52
const BOTTOM = 34
const BARS = WIDTH - LABELS - VALUES
/** From this ratio on, the small ones would not be seen on a linear scale. */
const LOG_FROM = 40

const STYLE = `
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .note { font-size: 11px; fill: #59636e }
  .ours text { font-weight: 600 }
  .bar { fill: #afb8c1 }
  .ours .bar { fill: #1a7f64 }
  .spread { stroke: #1f2328; stroke-opacity: .55; stroke-width: 1.5 }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .note { fill: #9198a1 }
    .bar { fill: #565e67 }
    .ours .bar { fill: #2dba91 }
    .spread { stroke: #f0f6fc }
    .grid { stroke: #3d444d }
  }`

export function chart({ title, contenders, primary, chart: metric = primary }) {
  const all = inOrder(contenders, metric).map(([id, { metrics, trouble }]) => ({ id, trouble, value: metrics[metric] }))
  const rows = all.filter(({ value }) => value?.median > 0)
  const scale = scaleOf(rows.map(({ value }) => value))
  const height = TOP + all.length * ROW + BOTTOM
  const { name, full = name, better } = METRICS[metric]
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img">`,
    `<title>${escape(title)}</title>`,
    `<style>${STYLE}\n</style>`,
    `<text class="title" x="8" y="22">${escape(title)}</text>`,
    note(`${full}; ${better} is better`, 8, 40, 'start'),
    ...scale.ticks.map((tick) => line('grid', scale.x(tick), TOP - 6, scale.x(tick), TOP + all.length * ROW)),
    ...all.map((row, index) => bar(row, index, scale, metric)),
    ...scale.ticks.map((tick) => note(write(metric, tick), scale.x(tick), TOP + all.length * ROW + 14, 'middle')),
    note(`${scale.says}; thin lines: all rounds`, WIDTH - 8, height - 6, 'end'),
    '</svg>\n'
  ].join('\n')
}

function bar({ id, value, trouble }, index, scale, metric) {
  const y = TOP + index * ROW
  const label = `<text x="${LABELS - 8}" y="${y + 17}" text-anchor="end">${escape(id)}</text>`
  const ours = contenderOf(id).role === 'ours' ? ' class="ours"' : ''
  if (!(value?.median > 0)) return `<g${ours}>${label}${note(trouble ?? 'none', LABELS + 6, y + 17, 'start')}</g>`
  const length = scale.x(value.median) - LABELS
  const parts = [
    label,
    `<rect class="bar" x="${LABELS}" y="${y + 4}" width="${round(Math.max(1, length))}" height="${ROW - 8}" rx="2"/>`,
    line('spread', scale.x(value.min), y + ROW / 2, scale.x(value.max), y + ROW / 2),
    `<text x="${round(scale.x(value.max) + 6)}" y="${y + 17}">${escape(write(metric, value.median))}</text>`
  ]
  return `<g${ours}>${parts.join('')}</g>`
}

/** Linear from 0, unless the largest is far from the smallest; then the axis says that it is not. */
function scaleOf(values) {
  const largest = Math.max(...values.map(({ max }) => max))
  const smallest = Math.min(...values.map(({ min }) => min).filter((min) => min > 0))
  if (largest / smallest < LOG_FROM) {
    const step = niceStep(largest)
    const ticks = Array.from({ length: Math.floor(largest / step) + 1 }, (_, index) => index * step)
    return { x: (value) => round(LABELS + (BARS * value) / largest), ticks, says: 'linear scale from 0' }
  }
  const first = Math.floor(Math.log10(smallest))
  const last = Math.log10(largest)
  const ticks = Array.from({ length: Math.floor(last) - first + 1 }, (_, index) => 10 ** (first + index))
  const x = (value) => round(LABELS + (BARS * Math.max(0, Math.log10(value) - first)) / (last - first))
  return { x, ticks, says: 'logarithmic scale: each line is ten times the one before' }
}

function niceStep(largest) {
  const decade = 10 ** Math.floor(Math.log10(largest))
  return [0.2, 0.5, 1].map((factor) => factor * decade).find((step) => largest / step <= 5) ?? decade
}

const line = (kind, x1, y1, x2, y2) => `<line class="${kind}" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`
const note = (text, x, y, anchor) =>
  `<text class="note" x="${x}" y="${y}" text-anchor="${anchor}">${escape(text)}</text>`
const round = (number) => Math.round(number * 10) / 10
const escape = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`)
