/** One operation: it waits (thin), holds (a bar, with its fence), and ends in one way or another. */
import type { Scene } from './scene.js'
import { BAR, isIn, isSeen, kindOf, when, type Sheet } from './sheet.js'
import { beside, classOf, hover, mark, roomFor, tag, words, type Scale } from './svg.js'
import { time, visible } from './text.js'
import { merged, type Operation } from './timeline.js'

export function drawOperation(sheet: Sheet, operation: Operation, y: number): string {
  const kind = kindOf(sheet.scene, operation)
  return tag(
    'g',
    { class: kind },
    hover(operationText(sheet.scene, operation)),
    waiting(sheet, operation, y),
    holding(sheet, operation, y),
    confirmations(sheet, operation, y),
    ending(sheet, operation, y),
  )
}

function operationText(scene: Scene, operation: Operation): string {
  const { id, worker, askedMs, answeredMs, grantedMs, fence, endMs, ending, why } = operation
  const reason = why === undefined ? '' : ` (${visible(why, 80)})`
  const asked = `${worker}, operation ${id}: asked at ${when(scene, askedMs)}`
  if (grantedMs === undefined) return `${asked}, ${ending} at ${when(scene, answeredMs)}${reason}`
  const granted = `granted at ${when(scene, grantedMs)} with fence ${fence}`
  return `${asked}, ${granted}, held for ${time(endMs - grantedMs)}, ${ending}${reason}`
}

function waiting({ scale }: Sheet, { askedMs, answeredMs }: Operation, y: number): string {
  if (askedMs > scale.toMs || answeredMs < scale.fromMs) return ''
  const middle = y + BAR / 2
  const line = tag('line', { class: 'wait', x1: scale.x(askedMs), x2: scale.x(answeredMs), y1: middle, y2: middle })
  if (!isIn(scale, askedMs)) return line
  return line + tag('line', { class: 'asked', x1: scale.x(askedMs), x2: scale.x(askedMs), y1: middle - 4, y2: middle + 4 })
}

function holding({ scene, scale }: Sheet, operation: Operation, y: number): string {
  const { grantedMs, fence, endMs, releasedMs } = operation
  if (grantedMs === undefined || grantedMs > scale.toMs || (releasedMs ?? endMs) < scale.fromMs) return ''
  const bar = { fromMs: grantedMs, toMs: endMs }
  const clashes = merged(scene.overlaps.filter(({ ops }) => ops.includes(operation))).filter((span) => isSeen(scale, span))
  const tail = releasedMs !== undefined && releasedMs > endMs ? { fromMs: endMs, toMs: releasedMs } : undefined
  return [
    tail ? tag('rect', { class: 'releasing', ...scale.across(tail), y: y + 5, height: BAR - 10 }) : '',
    tag('rect', { class: 'hold', ...scale.across(bar), y, height: BAR, rx: 2 }),
    ...clashes.map((clash) => tag('rect', { class: 'clash', ...scale.across(clash), y, height: BAR })),
    fence === undefined ? '' : fenceLabel(scene, scale, operation, scene.fenceName(fence), y),
  ].join('')
}

/** In the bar. Beside it if that is too short, and only of those that matter. */
function fenceLabel(scene: Scene, scale: Scale, operation: Operation, text: string, y: number): string {
  const from = scale.at(operation.grantedMs ?? 0)
  const to = scale.at(operation.endMs)
  const room = roomFor(text, to - from)
  const isInvolved = scene.involved.includes(operation)
  const inside = { x: `${from}%`, dx: 4, y: y + 12.5 }
  if (room === 'all' || (room === 'wide' && !isInvolved)) return words({ class: classOf('in fence', room), ...inside }, text)
  if (!isInvolved) return ''
  return words({ class: 'fence', y: y + 12.5, ...beside(to > 70 ? from : to) }, text)
}

/** Each time that the handle said it is held: where these go on, somebody acted on it. Of others, if there is room. */
function confirmations({ scene, scale, confirmed }: Sheet, operation: Operation, y: number): string {
  const { id, grantedMs = 0, endMs } = operation
  const isSmall = scale.at(endMs) - scale.at(grantedMs) < 2
  if (isSmall && !scene.involved.includes(operation)) return ''
  const said = confirmed.get(id) ?? []
  return said.map(({ ms }) => tag('circle', { class: 'confirmed', cx: scale.x(ms), cy: y + BAR, r: 3 })).join('')
}

function ending({ scale }: Sheet, { ending, endMs }: Operation, y: number): string {
  if (!isIn(scale, endMs)) return ''
  const x = scale.x(endMs)
  if (ending === 'lost') return mark('lost', x, y + BAR / 2, 'end')
  if (ending === 'refused') return mark('refused', x, y + BAR / 2, 'end')
  return ending === 'killed' || ending === 'failed' ? mark('cut', x, y + BAR / 2, 'end') : ''
}
