/** What the gate saw: reads and writes, in its order, with their fences. */
import type { Event } from '../history.js'
import type { Scene } from './scene.js'
import { BAR, kindOf, nearest, when, type Sheet } from './sheet.js'
import { classOf, hover, mark, Row, tag, words } from './svg.js'
import type { Operation, Timed } from './timeline.js'

const HEIGHT = 58

/** `tops`: where the operations are, which a thread leads to. */
export function gateLane(sheet: Sheet, y: number, tops: ReadonlyMap<Operation, number>): { markup: string; height: number } {
  const { scene, scale } = sheet
  const seen = nearest(scene, scale, isPass)
  if (seen.length === 0) return { markup: '', height: 0 }
  const operations = new Map(scene.operations.map((operation) => [operation.id, operation]))
  const row = new Row()
  // Those that matter come first to the places for their fences.
  const inOrder = seen.toSorted((a, b) => rankOf(scene, operations.get(a.event.op)) - rankOf(scene, operations.get(b.event.op)))
  const parts = inOrder.map((timed) => {
    const operation = operations.get(timed.event.op)
    return drawPass(sheet, timed, operation, y, operation && tops.get(operation), row)
  })
  const frame = [
    tag('rect', { class: 'lane gate', x: 0, y, width: '100%', height: HEIGHT }),
    words({ class: 'worker', x: 4, y: y + 13 }, 'gate: what the data saw'),
  ]
  return { markup: [...frame, ...parts].join(''), height: HEIGHT }
}

const rankOf = (scene: Scene, operation: Operation | undefined): number =>
  operation && scene.involved.includes(operation) ? 0 : 1

interface Pass extends Timed {
  readonly event: Extract<Event, { type: 'read' | 'wrote' }>
}

const isPass = (timed: Timed): timed is Pass => timed.event.type === 'read' || timed.event.type === 'wrote'

function drawPass(
  { scene, scale }: Sheet,
  { ms, event }: Pass,
  operation: Operation | undefined,
  y: number,
  top: number | undefined,
  row: Row,
): string {
  const kind = operation ? kindOf(scene, operation) : 'other'
  const label = `${scene.fenceName(event.fence)} ${event.type === 'read' ? 'r' : 'w'}${event.accepted ? '' : ' ✗'}`
  const room = row.place(label, scale.at(ms), true)
  const x = scale.x(ms)
  const isUsual = kind === 'other' && event.accepted
  return tag(
    'g',
    { class: kind },
    hover(passText(scene, { ms, event }, operation)),
    top === undefined || kind === 'other' ? '' : tag('line', { class: 'thread', x1: x, x2: x, y1: top + BAR, y2: y + 30 }),
    // Hundreds that passed as they should must not hide the two that did not.
    isUsual
      ? tag('line', { class: 'usual', x1: x, x2: x, y1: y + 26, y2: y + 34 })
      : mark(`${event.type}-${event.accepted ? 'accepted' : 'refused'}`, x, y + 30, 'gate'),
    room === 'none' ? '' : words({ class: classOf('note', room), x, y: y + 48, 'text-anchor': 'middle' }, label),
  )
}

function passText(scene: Scene, { ms, event }: Pass, operation: Operation | undefined): string {
  const what = `${event.type} ${event.value} with fence ${event.fence}`
  const lost = event.type === 'wrote' && event.lostUpdate ? ', which lost an update' : ''
  return `${operation?.worker ?? event.op} ${what} at ${when(scene, ms)}: ${event.accepted ? 'accepted' : 'refused'}${lost}`
}
