/** Around a violation: who waited and held when, one lane for each worker, and what the gate saw, in a lane below. */
import { drawOperation } from './bars.js'
import { gateLane } from './gate.js'
import { faultText } from './overview.js'
import { lifeOf, operationsOf, sharedBy, type Scene } from './scene.js'
import { isIn, isSeen, sheetOf, when, type Sheet } from './sheet.js'
import { beside, drawing, hover, mark, tag, timeAxis, words } from './svg.js'
import { count, time, visible } from './text.js'
import type { Operation, Span } from './timeline.js'

const FAULT_ROW = 18
const HEAD = 36
const LANE_HEAD = 18
const ROW = 24
const AXIS = 20
const MOST_FAULTS = 6
const MOST_LANES = 10
/** In one lane. More of one worker are counted, not drawn. */
const MOST_ROWS = 5

interface Drawn {
  readonly markup: string
  readonly height: number
}

interface Lane {
  readonly worker: string
  readonly rows: readonly (readonly Operation[])[]
  /** For which there was no row. */
  readonly left: number
}

/** `part` of a scene. */
export function lanes(scene: Scene, part: Span, kinds: readonly string[]): string {
  const sheet = sheetOf(scene, part, kinds)
  const faults = faultRows(sheet)
  const operations = operationsOf(scene, part)
  const all = lanesOf(scene, operations.slice(0, scene.most), part)
  const tops = new Map<Operation, number>()
  let y = faults.height + HEAD
  const drawn = all.slice(0, MOST_LANES).map((lane, index) => {
    const { markup, height } = drawLane(sheet, lane, index, y, tops)
    y += height
    return markup
  })
  const gate = gateLane(sheet, y, tops)
  const bottom = y + gate.height
  const left = leftOut(all.length, operations.length, scene.most)
  return drawing(
    bottom + AXIS + (left ? 16 : 0),
    `Who held when: ${scene.violation.invariant}`,
    bands(sheet, faults.height, bottom),
    timeAxis(sheet.scale, faults.height + HEAD, bottom, scene.atMs),
    faults.markup,
    sharedBands(sheet, faults.height, bottom),
    ...drawn,
    gate.markup,
    moment(sheet, faults.height, bottom),
    sharedLabels(sheet, faults.height),
    left ? words({ class: 'note', x: 3, y: bottom + AXIS + 12 }, left) : '',
  )
}

/** An empty place must not look as if nobody had been there. */
function leftOut(workers: number, operations: number, most: number): string {
  const parts = [
    operations > most ? `Only the ${most} operations nearest to the violation are drawn, of ${count(operations)}.` : '',
    workers > MOST_LANES ? `${workers - MOST_LANES} more workers are not drawn.` : '',
  ]
  return parts.filter((text) => text !== '').join(' ')
}

/** The workers of the violation first, side by side. */
function lanesOf(scene: Scene, operations: readonly Operation[], part: Span): Lane[] {
  const workers = new Map<string, Operation[]>()
  for (const operation of operations) workers.set(operation.worker, [...(workers.get(operation.worker) ?? []), operation])
  const first = new Set(scene.involved.map(({ worker }) => worker))
  const names = [...workers.keys()].toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }))
  const order = [...first, ...names.filter((name) => !first.has(name))].filter((name) => workers.has(name))
  return order.map((worker) => rowsOf(worker, workers.get(worker) ?? [], scene, part))
}

/** Callers of one worker wait and hold at the same time: each is put into the first row that has room. */
function rowsOf(worker: string, operations: readonly Operation[], scene: Scene, part: Span): Lane {
  const rows: Operation[][] = []
  const size = part.toMs - part.fromMs
  const involved = new Set(scene.involved)
  // Some space between two, and room beside those whose fence may have to stand outside of the bar.
  const placeOf = (operation: Operation): Span => {
    const { fromMs, toMs } = lifeOf(operation)
    const beside = involved.has(operation) ? size / 12 : 0
    return { fromMs: fromMs - size / 400 - beside, toMs: toMs + size / 400 + beside }
  }
  let left = 0
  for (const operation of operations) {
    const row = rows.find((others) => others.every((other) => isClear(placeOf(other), placeOf(operation))))
    if (row) row.push(operation)
    else if (rows.length < MOST_ROWS) rows.push([operation])
    else left++
  }
  return { worker, rows, left }
}

const isClear = (a: Span, b: Span): boolean => a.toMs < b.fromMs || b.toMs < a.fromMs

function drawLane(sheet: Sheet, lane: Lane, index: number, y: number, tops: Map<Operation, number>): Drawn {
  const height = LANE_HEAD + lane.rows.length * ROW + 4
  const more = lane.left > 0 ? ` (${lane.left} more not drawn)` : ''
  const parts = [
    tag('rect', { class: index % 2 === 0 ? 'lane' : 'lane odd', x: 0, y, width: '100%', height }),
    words({ class: 'worker', x: 4, y: y + 13 }, visible(lane.worker, 32) + more),
    lifeEvents(sheet, lane.worker, y, height),
  ]
  for (const [place, row] of lane.rows.entries()) {
    const top = y + LANE_HEAD + place * ROW
    for (const operation of row) {
      tops.set(operation, top)
      parts.push(drawOperation(sheet, operation, top))
    }
  }
  return { markup: parts.join(''), height }
}

/** When the process began and ended. */
function lifeEvents({ scene, scale }: Sheet, worker: string, y: number, height: number): string {
  const parts: string[] = []
  for (const { ms, event } of scene.events) {
    if ((event.type !== 'began' && event.type !== 'ended') || event.worker !== worker || !isIn(scale, ms)) continue
    const how = event.type === 'began' ? 'began' : event.how === 'closed' ? 'ended' : event.how
    const line = tag('line', { class: `life ${how}`, x1: scale.x(ms), x2: scale.x(ms), y1: y, y2: y + height })
    const glyph = { began: '▸', ended: '▪', killed: '✕', failed: '✕' }[how]
    const label = words({ class: `life ${how}`, y: y + 13, ...beside(scale.at(ms)) }, `${glyph} ${how}`)
    const why = event.type === 'ended' && event.why !== undefined ? `: ${event.why}` : ''
    parts.push(tag('g', {}, hover(`${worker} ${how} at ${when(scene, ms)}${why}`), line, label))
  }
  return parts.join('')
}

/** What was broken: a row each, with its name. */
function faultRows({ scene, scale, kinds }: Sheet): Drawn {
  const faults = scene.faults.filter((fault) => isSeen(scale, fault))
  const rows = faults.slice(0, MOST_FAULTS).map((fault, index) => {
    const y = index * FAULT_ROW
    const at = scale.at(fault.fromMs)
    const bar = { class: `fault ${colourOf(kinds, fault.name)}`, ...scale.across(fault), y: y + 1, height: FAULT_ROW - 4 }
    const text = visible(fault.target === '' ? fault.name : `${fault.name}: ${fault.target}`, 40)
    return tag('g', {}, hover(faultText([fault])), tag('rect', bar), words({ y: y + 12, ...beside(at) }, text))
  })
  const left = faults.length - rows.length
  if (left > 0) rows.push(words({ class: 'note', x: 3, y: rows.length * FAULT_ROW + 12 }, `and ${left} more faults`))
  return { markup: rows.join(''), height: rows.length * FAULT_ROW }
}

const colourOf = (kinds: readonly string[], name: string): string => `k${Math.max(0, kinds.indexOf(name)) % 8}`

/** And behind the lanes, for as long as it lasted. */
function bands({ scene, scale, kinds }: Sheet, top: number, bottom: number): string {
  const faults = scene.faults.filter((fault) => isSeen(scale, fault))
  const drawn = faults.slice(0, MOST_FAULTS).map((fault) => {
    return tag('rect', { class: `band ${colourOf(kinds, fault.name)}`, ...scale.across(fault), y: top, height: bottom - top })
  })
  return drawn.join('')
}

/** Where two of those that show the violation held at once. */
const sharedIn = ({ scene, scale }: Sheet): Span[] =>
  sharedBy(scene.involved, scene.overlaps).filter((span) => isSeen(scale, span))

function sharedBands(sheet: Sheet, top: number, bottom: number): string {
  const bands = sharedIn(sheet).map((span) => {
    return tag('rect', { class: 'shared', ...sheet.scale.across(span), y: top + 18, height: bottom - top - 18 })
  })
  return bands.join('')
}

/** Above the line of the violation, which is often in the midst of them. */
function sharedLabels(sheet: Sheet, top: number): string {
  const labels = sharedIn(sheet).map((span) => {
    const text = `held twice: ${time(span.toMs - span.fromMs)}`
    return words({ class: 'bad-text', y: top + 31, ...beside(sheet.scale.at(span.fromMs)) }, text)
  })
  return labels.join('')
}

function moment({ scene, scale }: Sheet, top: number, bottom: number): string {
  if (!isIn(scale, scene.atMs)) return ''
  const x = scale.x(scene.atMs)
  return [
    tag('line', { class: 'bad-line', x1: x, x2: x, y1: top + 10, y2: bottom }),
    mark('violated', x, top + 8, 'bad'),
    words({ class: 'bad-text', y: top + 13, ...beside(scale.at(scene.atMs) + 1) }, visible(scene.violation.invariant, 32)),
  ].join('')
}
