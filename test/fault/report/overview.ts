/** The whole run in one drawing: how much was done, what was broken meanwhile, and when a guarantee was. */
import type { Violation } from '../history.js'
import { drawing, hover, mark, Row, classOf, scaleOf, stepOf, tag, timeAxis, words, type Scale } from './svg.js'
import { count, plural, round, time, visible } from './text.js'
import { merged, msOf, type Fault, type Timeline } from './timeline.js'

const PHASES = 16
const MARKS = 20
const CHART = 120
const AXIS = 22
const KIND = 32
/** More would be more than is seen. */
const MOST_BUCKETS = 240
const MOST_KINDS = 24

export interface Whole {
  readonly timeline: Timeline
  readonly violations: readonly Violation[]
  /** Those that are shown below, in the order of their numbers. */
  readonly numbered: readonly Violation[]
  /** Of faults. */
  readonly kinds: readonly string[]
}

export function overview({ timeline, violations, numbered, kinds }: Whole): string {
  if (timeline.endMs <= 0) return tag('p', { class: 'soft' }, 'There is nothing to draw.')
  const scale = scaleOf({ fromMs: 0, toMs: timeline.endMs })
  const top = PHASES + MARKS
  const bottom = top + CHART
  const drawn = kinds.slice(0, MOST_KINDS)
  const height = bottom + AXIS + drawn.length * KIND + 4
  return drawing(
    height,
    'Operations per second, faults and violations over the whole run',
    shades(timeline, scale, top, CHART),
    timeAxis(scale, top, bottom, 0),
    chart(timeline, top),
    phases(timeline, scale, bottom),
    ...drawn.map((kind, index) => kindRow(kind, index, timeline, scale, bottom + AXIS + index * KIND)),
    marks(timeline, violations, numbered, scale, height),
  )
}

/** Wherever anything was broken. */
function shades({ faults }: Timeline, scale: Scale, y: number, height: number): string {
  const spans = merged(faults, pixels(scale, 1))
  return spans.map((span) => tag('rect', { class: 'shade', ...scale.across(span), y, height })).join('')
}

function chart(timeline: Timeline, top: number): string {
  const rates = ratesOf(timeline)
  const step = stepOf(Math.max(1, ...rates), 4)
  const most = step * Math.max(1, Math.ceil(Math.max(...rates) / step))
  const y = (rate: number): number => round(100 - (100 * rate) / most, 1)
  const points = rates.map((rate, index) => `${round(((index + 0.5) * 1_000) / rates.length, 1)},${y(rate)}`)
  const outline = [`0,${y(rates[0] ?? 0)}`, ...points, `1000,${y(rates.at(-1) ?? 0)}`].join(' ')
  const box = { x: 0, y: top, width: '100%', height: CHART, viewBox: '0 0 1000 100', preserveAspectRatio: 'none' }
  const levels = Array.from({ length: Math.round(most / step) }, (_, index) => (index + 1) * step)
  return [
    ...levels.map((rate) => {
      const at = top + (CHART * y(rate)) / 100
      return tag('line', { class: 'grid', x1: 0, x2: '100%', y1: at, y2: at })
    }),
    tag(
      'svg',
      box,
      tag('polygon', { class: 'area', points: `0,100 ${outline} 1000,100` }),
      tag('polyline', { class: 'rate', points: outline }),
    ),
    ...levels.map((rate) => {
      const unit = rate === most ? ' operations/s' : ''
      return words({ class: 'note halo', x: 3, y: top + (CHART * y(rate)) / 100 + 12 }, `${count(rate)}${unit}`)
    }),
  ].join('')
}

function ratesOf({ operations, endMs }: Timeline): number[] {
  const length = Math.min(MOST_BUCKETS, Math.max(1, Math.floor(endMs / 250)))
  const grants = new Array<number>(length).fill(0)
  for (const { grantedMs } of operations.values()) {
    if (grantedMs === undefined) continue
    const bucket = Math.min(length - 1, Math.floor((grantedMs * length) / endMs))
    grants[bucket] = (grants[bucket] ?? 0) + 1
  }
  return grants.map((number) => (number * 1_000 * length) / endMs)
}

function phases({ events }: Timeline, scale: Scale, bottom: number): string {
  const row = new Row()
  const parts: string[] = []
  for (const { ms, event } of events) {
    if (event.type !== 'phase' || event.name === 'end') continue
    const x = scale.x(ms)
    parts.push(tag('line', { class: 'phase', x1: x, x2: x, y1: 2, y2: bottom }))
    const room = row.place(event.name, scale.at(ms))
    if (room !== 'none') parts.push(words({ class: classOf('note', room), x, dx: 4, y: 11 }, event.name))
  }
  return parts.join('')
}

/** Those that touch on the screen are one: there may be thousands. */
function kindRow(kind: string, index: number, timeline: Timeline, scale: Scale, y: number): string {
  const faults = timeline.faults.filter(({ name }) => name === kind)
  const bars = merged(faults, pixels(scale, 1)).map((span) => {
    const inside = faults.filter(({ fromMs }) => fromMs >= span.fromMs && fromMs <= span.toMs)
    const bar = { class: `fault k${index % 8}`, ...scale.across(span), y: y + 16, height: 12 }
    return tag('rect', bar, hover(faultText(inside)))
  })
  return words({ class: 'halo', x: 3, y: y + 12 }, `${visible(kind, 40)} × ${count(faults.length)}`) + bars.join('')
}

export function faultText(faults: readonly Fault[]): string {
  const [fault] = faults
  if (!fault) return ''
  const lasted = fault.healed ? `for ${time(fault.toMs - fault.fromMs)}` : 'with no end of its own'
  const more = faults.length > 1 ? `, and ${faults.length - 1} more` : ''
  return `${fault.name}: ${fault.target}, from ${time(fault.fromMs)}, ${lasted}${more}`
}

function marks(
  timeline: Timeline,
  violations: readonly Violation[],
  numbered: readonly Violation[],
  scale: Scale,
  height: number,
): string {
  const places = new Map<number, Violation[]>()
  for (const violation of violations) {
    const at = round(scale.at(msOf(timeline, violation.at)), 1)
    const others = places.get(at)
    if (others) others.push(violation)
    else places.set(at, [violation])
  }
  const row = new Row()
  const parts = [...places].map(([at, found]) => {
    const x = `${at}%`
    const more = found.length > 1 ? ` (${plural(found.length, 'violation')} here)` : ''
    const numbers = numbered.flatMap((violation, index) => (found.includes(violation) ? [String(index + 1)] : [])).join(', ')
    const room = numbers === '' ? 'none' : row.place(numbers, at)
    const label = { class: classOf('bad-text', room), x, dx: 9, y: PHASES + 12 }
    return tag(
      'g',
      {},
      hover(`${found[0]?.invariant}: ${found[0]?.message}${more}`),
      tag('line', { class: 'bad-line', x1: x, x2: x, y1: PHASES + 14, y2: height }),
      mark('violated', x, PHASES + 8, 'bad'),
      room === 'none' ? '' : words(label, numbers),
    )
  })
  return parts.join('')
}

const pixels = (scale: Scale, number: number): number => ((scale.toMs - scale.fromMs) * number) / 1_000
