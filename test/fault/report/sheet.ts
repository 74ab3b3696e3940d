/** What all parts of a drawing around a violation share. */
import type { Event } from '../history.js'
import type { Scene } from './scene.js'
import { scaleOf, type Scale } from './svg.js'
import { relative } from './text.js'
import type { Operation, Span, Timed } from './timeline.js'

/** Of a bar. */
export const BAR = 17

export interface Sheet {
  readonly scene: Scene
  readonly scale: Scale
  /** Of the kinds of faults, for their colours. */
  readonly kinds: readonly string[]
  /** By operation. */
  readonly confirmed: ReadonlyMap<string, readonly Timed[]>
}

export function sheetOf(scene: Scene, part: Span, kinds: readonly string[]): Sheet {
  const scale = scaleOf(part)
  return { scene, scale, kinds, confirmed: confirmedIn(scene, scale) }
}

interface Confirmation extends Timed {
  readonly event: Extract<Event, { type: 'confirmed' }>
}

/** Others must not use up what there is room for. */
function confirmedIn(scene: Scene, scale: Scale): Map<string, Timed[]> {
  const involved = new Set(scene.involved.map(({ id }) => id))
  const ofThose = (isInvolved: boolean): Confirmation[] =>
    nearest(scene, scale, (timed): timed is Confirmation => {
      return timed.event.type === 'confirmed' && involved.has(timed.event.op) === isInvolved
    })
  const found = new Map<string, Timed[]>()
  for (const timed of [...ofThose(true), ...ofThose(false)]) {
    const others = found.get(timed.event.op)
    if (others) others.push(timed)
    else found.set(timed.event.op, [timed])
  }
  return found
}

/** Those that show the violation have a colour each; all others are grey. */
export function kindOf({ involved }: Scene, operation: Operation): string {
  const index = involved.indexOf(operation)
  return index === -1 ? 'other' : `op${index % 4}`
}

export const when = (scene: Scene, ms: number): string => `${relative(ms - scene.atMs, 3)} ms`

/** Of those in the part, so many as can be drawn. */
export function nearest<T extends Timed>(scene: Scene, scale: Scale, isMeant: (timed: Timed) => timed is T): T[] {
  const all = scene.events.filter((timed) => isIn(scale, timed.ms)).filter(isMeant)
  if (all.length <= scene.most) return all
  const distance = ({ ms }: Timed): number => Math.abs(ms - scene.atMs)
  const limit = all.map(distance).toSorted((a, b) => a - b)[scene.most - 1] ?? 0
  return all.filter((timed) => distance(timed) <= limit).slice(0, scene.most)
}

export const isIn = ({ fromMs, toMs }: Span, ms: number): boolean => ms >= fromMs && ms <= toMs

export const isSeen = (scale: Scale, { fromMs, toMs }: Span): boolean => fromMs <= scale.toMs && toMs >= scale.fromMs
