/**
 * Drawing by hand. Places in time are percentages of the width and all else is in pixels, so one drawing suits a wide
 * screen and a phone, and letters keep their size on both.
 */
import { escape, relative, round, visible } from './text.js'
import type { Span } from './timeline.js'

export type Attributes = Readonly<Record<string, string | number>>

/** Values are escaped; children are markup. */
export function tag(name: string, attributes: Attributes, ...children: readonly string[]): string {
  const written = Object.entries(attributes).map(([key, value]) => ` ${key}="${escape(String(value))}"`)
  const head = `<${name}${written.join('')}`
  return children.length === 0 ? `${head}/>` : `${head}>${children.join('')}</${name}>`
}

export const words = (attributes: Attributes, text: string): string => tag('text', attributes, escape(visible(text, 160)))

/** What a pointer shows when it rests there. */
export const hover = (text: string): string => tag('title', {}, escape(visible(text, 240)))

export function drawing(height: number, label: string, ...children: readonly string[]): string {
  return tag('svg', { width: '100%', height, role: 'img', 'aria-label': visible(label, 160) }, ...children)
}

/** Marks are defined once for the page, around 0,0. */
export const mark = (name: string, x: string, y: number, kind: string, ...children: readonly string[]): string =>
  tag('use', { href: `#${name}`, x, y, class: kind }, ...children)

/** What has no width is not drawn at all. */
const LEAST_PERCENT = 0.15

export interface Scale extends Span {
  /** Percent of the width; what is outside goes to the edge. */
  at(ms: number): number
  x(ms: number): string
  /** A rectangle's `x` and `width`. */
  across(span: Span): { x: string; width: string }
}

export function scaleOf({ fromMs, toMs }: Span): Scale {
  const at = (ms: number): number => {
    const share = toMs > fromMs ? (ms - fromMs) / (toMs - fromMs) : 0
    return round(100 * Math.min(1, Math.max(0, share)), 2)
  }
  const x = (ms: number): string => `${at(ms)}%`
  const across = (span: Span): { x: string; width: string } => {
    const from = at(span.fromMs)
    return { x: `${from}%`, width: `${round(Math.max(LEAST_PERCENT, at(span.toMs) - from), 2)}%` }
  }
  return { fromMs, toMs, at, x, across }
}

const WIDE_PX = 960
const NARROW_PX = 330
const LETTER_PX = 6.7

export type Room = 'all' | 'wide' | 'none'

/** On which screens a text has room in so many percent of the width. What only wide ones show has the class `wide`. */
export function roomFor(text: string, percent: number): Room {
  const needed = text.length * LETTER_PX + 6
  return (percent / 100) * NARROW_PX >= needed ? 'all' : (percent / 100) * WIDE_PX >= needed ? 'wide' : 'none'
}

/** Texts in a row: one that would run into another that is there already is left out. */
export class Row {
  readonly #wide: Taken[] = []
  readonly #narrow: Taken[] = []

  /** `at` in percent, where the text begins or, with `centred`, has its middle. */
  place(text: string, at: number, centred = false): Room {
    const needed = text.length * LETTER_PX + 6
    const take = (taken: Taken[], width: number): boolean => {
      const begin = (at / 100) * width - (centred ? needed / 2 : 0)
      const isFree = taken.every((other) => other.end <= begin || other.begin >= begin + needed)
      if (isFree) taken.push({ begin, end: begin + needed })
      return isFree
    }
    if (!take(this.#wide, WIDE_PX)) return 'none'
    return take(this.#narrow, NARROW_PX) ? 'all' : 'wide'
  }
}

interface Taken {
  readonly begin: number
  readonly end: number
}

export const classOf = (kind: string, room: Room): string => (room === 'wide' ? `${kind} wide` : kind)

/** Where a text stands that belongs to a place: to its right, or to its left near the right edge. */
export function beside(at: number): { x: string; dx: number; 'text-anchor': string } {
  return at > 70 ? { x: `${at}%`, dx: -5, 'text-anchor': 'end' } : { x: `${at}%`, dx: 5, 'text-anchor': 'start' }
}

/** Round numbers that divide `size` into at most `most` parts. */
export function stepOf(size: number, most: number): number {
  const decade = 10 ** Math.floor(Math.log10(size / most))
  return decade * ([1, 2, 5, 10].find((factor) => size / (factor * decade) <= most) ?? 10)
}

/** Lines and times, from `zeroMs` on. The first of them has the unit. */
export function timeAxis(scale: Scale, top: number, bottom: number, zeroMs: number): string {
  const size = scale.toMs - scale.fromMs
  if (size <= 0) return ''
  const seconds = size > 20_000 ? 1_000 : 1
  const step = stepOf(size, 8)
  const digits = Math.max(0, Math.ceil(-Math.log10(step / seconds)))
  const row = new Row()
  const parts: string[] = []
  for (let n = Math.ceil((scale.fromMs - zeroMs) / step); zeroMs + n * step <= scale.toMs; n++) {
    const x = scale.x(zeroMs + n * step)
    const sign = zeroMs === 0 ? String(round((n * step) / seconds, digits)) : relative((n * step) / seconds, digits)
    const text = n === 0 ? `0 ${seconds === 1 ? 'ms' : 's'}` : sign
    parts.push(tag('line', { class: 'grid', x1: x, x2: x, y1: top, y2: bottom }))
    const room = row.place(text, scale.at(zeroMs + n * step), true)
    if (room !== 'none') parts.push(words({ class: classOf('note', room), x, y: bottom + 13, 'text-anchor': 'middle' }, text))
  }
  return parts.join('')
}
