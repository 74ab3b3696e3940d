/** What is shown of a violation: which time, which operations, and which of them held at once. */
import type { Run, Violation } from '../history.js'
import { merged, msOf, type Fault, type Operation, type Span, type Timed, type Timeline } from './timeline.js'

const AROUND_MS = 1_000
const MOST_MS = 5_000
/** What is smaller than this part of the whole gets a drawing of its own. */
const CLOSE_PART = 0.3
/** A lock that is none would give millions of pairs. */
const MOST_COMPARED = 400

export interface Overlap extends Span {
  readonly ops: readonly [Operation, Operation]
}

export interface Scene {
  readonly violation: Violation
  readonly atMs: number
  readonly span: Span
  /** Where it can be seen, if that is but a small part of the span. */
  readonly closeUp: Span | undefined
  /** Those that show it, in the order in which they were granted. */
  readonly involved: readonly Operation[]
  /** All of its keys in the span: the involved first, then the nearest to the violation. */
  readonly operations: readonly Operation[]
  readonly overlaps: readonly Overlap[]
  /** So many of them, and of each kind of mark, can be drawn. */
  readonly most: number
  /** In the span, and about its keys, its workers or the nemesis. */
  readonly events: readonly Timed[]
  readonly faults: readonly Fault[]
  fenceName(fence: bigint): string
  /** The names are places in the order of their size, not the fences themselves. */
  readonly fencesAreNumbered: boolean
}

export function sceneOf(timeline: Timeline, violation: Violation, most = 80): Scene {
  const atMs = msOf(timeline, violation.at)
  const involved = involvedIn(timeline, violation)
  const span = spanAround(atMs, involved)
  const keys = keysOf(violation, involved)
  const operations = operationsIn(timeline, span, keys, involved, atMs)
  const workers = new Set(operations.map(({ worker }) => worker))
  const overlaps = overlapsOf(operations.slice(0, MOST_COMPARED))
  return {
    violation,
    atMs,
    span,
    closeUp: closeUpOf(atMs, span, involved, overlaps),
    involved,
    operations,
    overlaps,
    most,
    events: eventsIn(timeline, span, keys, workers),
    faults: timeline.faults.filter((fault) => touches(fault, span)),
    ...fencesOf(operations),
  }
}

/** The earliest, but of each guarantee at least one: a thousand of one kind must not hide the only one of another. */
export function chosen({ violations }: Run, most: number): Violation[] {
  const inOrder = violations.toSorted((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0))
  const firsts = new Map<string, Violation>()
  for (const violation of inOrder) if (!firsts.has(violation.invariant)) firsts.set(violation.invariant, violation)
  const picked = new Set([...new Set([...firsts.values(), ...inOrder])].slice(0, most))
  return inOrder.filter((violation) => picked.has(violation))
}

function involvedIn({ operations }: Timeline, { ops }: Violation): Operation[] {
  const known = [...new Set(ops)].map((op) => operations.get(op)).filter((operation) => operation !== undefined)
  return known.toSorted((a, b) => (a.grantedMs ?? a.askedMs) - (b.grantedMs ?? b.askedMs))
}

/**
 * From 1 s before the first of them to 1 s after the last. If that is too long, a part of it that has the violation, or,
 * if that was found out long after, what is nearest to it.
 */
function spanAround(atMs: number, involved: readonly Operation[]): Span {
  const first = Math.min(...involved.map(({ askedMs }) => askedMs))
  const last = Math.max(...involved.map(({ endMs }) => endMs))
  const fromMs = Math.min(atMs, first) - AROUND_MS
  const toMs = Math.max(atMs, last) + AROUND_MS
  if (toMs - fromMs <= MOST_MS) return { fromMs, toMs }
  const end = Math.max(Math.min(atMs, last) + AROUND_MS, Math.min(toMs, fromMs + MOST_MS))
  return { fromMs: end - MOST_MS, toMs: end }
}

function keysOf({ key }: Violation, involved: readonly Operation[]): ReadonlySet<string> {
  return new Set([...(key === undefined ? [] : [key]), ...involved.map((operation) => operation.key)])
}

const touches = (a: Span, b: Span): boolean => a.fromMs <= b.toMs && a.toMs >= b.fromMs

/** No keys at all: then everything may be part of it. */
const isOn = (keys: ReadonlySet<string>, key: string): boolean => keys.size === 0 || keys.has(key)

function operationsIn(
  timeline: Timeline,
  span: Span,
  keys: ReadonlySet<string>,
  involved: readonly Operation[],
  atMs: number,
): Operation[] {
  const known = new Set(involved)
  const others = [...timeline.operations.values()].filter((operation) => {
    return isOn(keys, operation.key) && touches(lifeOf(operation), span) && !known.has(operation)
  })
  const distance = new Map(others.map((operation) => [operation, distanceOf(lifeOf(operation), atMs)]))
  others.sort((a, b) => distance.get(a)! - distance.get(b)! || a.askedMs - b.askedMs)
  return [...involved, ...others]
}

export const lifeOf = ({ askedMs, endMs, releasedMs = endMs }: Operation): Span => ({
  fromMs: askedMs,
  toMs: Math.max(endMs, releasedMs),
})

const distanceOf = ({ fromMs, toMs }: Span, ms: number): number => Math.max(0, fromMs - ms, ms - toMs)

export const operationsOf = (scene: Scene, part: Span): Operation[] =>
  scene.operations.filter((operation) => touches(lifeOf(operation), part))

function overlapsOf(operations: readonly Operation[]): Overlap[] {
  const held = operations.filter(({ grantedMs }) => grantedMs !== undefined)
  const found: Overlap[] = []
  const open = new Map<string, Operation[]>()
  for (const second of held.toSorted((a, b) => a.grantedMs! - b.grantedMs!)) {
    const still = (open.get(second.key) ?? []).filter(({ endMs }) => endMs > second.grantedMs!)
    for (const first of still) {
      const toMs = Math.min(first.endMs, second.endMs)
      if (toMs > second.grantedMs!) found.push({ ops: [first, second], fromMs: second.grantedMs!, toMs })
    }
    open.set(second.key, [...still, second])
  }
  return found
}

/** Two of those that show the violation: this is what it is about. */
export function sharedBy(involved: readonly Operation[], overlaps: readonly Overlap[]): Span[] {
  const known = new Set(involved)
  return merged(overlaps.filter(({ ops }) => ops.every((operation) => known.has(operation))))
}

function closeUpOf(
  atMs: number,
  span: Span,
  involved: readonly Operation[],
  overlaps: readonly Overlap[],
): Span | undefined {
  const shared = sharedBy(involved, overlaps)
  const told = shared.length > 0 ? shared : involved.map(lifeOf)
  if (told.length === 0) return undefined
  const first = Math.max(span.fromMs, Math.min(atMs, ...told.map(({ fromMs }) => fromMs)))
  const last = Math.min(span.toMs, Math.max(atMs, ...told.map(({ toMs }) => toMs)))
  // Time enough to both sides to see what came before and after.
  const margin = Math.max(0.5, (last - first) * (shared.length > 0 ? 0.7 : 0.12))
  const close = { fromMs: Math.max(span.fromMs, first - margin), toMs: Math.min(span.toMs, last + margin) }
  return close.toMs - close.fromMs < CLOSE_PART * (span.toMs - span.fromMs) ? close : undefined
}

function eventsIn({ events }: Timeline, span: Span, keys: ReadonlySet<string>, workers: ReadonlySet<string>): Timed[] {
  return events.filter(({ ms, event }) => {
    if (ms < span.fromMs || ms > span.toMs) return false
    if ('key' in event) return isOn(keys, event.key)
    return 'worker' in event ? workers.has(event.worker) : true
  })
}

/**
 * Fences of Redis have 19 digits, which no bar has room for. Then they are numbered by size, which is all that matters
 * of them; the text has them in full.
 */
function fencesOf(operations: readonly Operation[]): Pick<Scene, 'fenceName' | 'fencesAreNumbered'> {
  const fences = [...new Set(operations.map(({ fence }) => fence).filter((fence) => fence !== undefined))]
  const fencesAreNumbered = fences.some((fence) => fence >= 1_000_000n)
  if (!fencesAreNumbered) return { fenceName: (fence) => `f${fence}`, fencesAreNumbered }
  const ranks = new Map(fences.toSorted((a, b) => (a < b ? -1 : 1)).map((fence, index) => [fence, `f${index + 1}`]))
  return { fenceName: (fence) => ranks.get(fence) ?? 'f?', fencesAreNumbered }
}
