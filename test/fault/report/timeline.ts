/** A run told by operation and by fault instead of by event. Times are ms since its first event. */
import type { Event, Run, Workload } from '../history.js'

/**
 * waiting → held → released | lost | killed | failed | closed (its process ended) | open (the log ends first)
 *         → refused
 */
export type Ending = 'released' | 'lost' | 'killed' | 'failed' | 'closed' | 'refused' | 'open'

export interface Operation {
  readonly id: string
  readonly worker: string
  readonly key: string
  readonly workload: Workload | undefined
  readonly askedMs: number
  /** When the wait was over: granted, refused, or its process ended. */
  readonly answeredMs: number
  readonly grantedMs: number | undefined
  readonly fence: bigint | undefined
  /** When the holder let go, learnt of its loss, or ended: until then it may have acted on the lock. */
  readonly endMs: number
  readonly ending: Ending
  readonly why: string | undefined
  /** When the release had answered. */
  readonly releasedMs: number | undefined
  /** It was told of a loss, also if that came after its release. */
  readonly lost: boolean
}

export interface Fault {
  readonly name: string
  readonly target: string
  readonly fromMs: number
  /** The same as `fromMs` if nothing heals it, as with a process that is killed. */
  readonly toMs: number
  readonly healed: boolean
}

export interface Timed {
  readonly ms: number
  readonly event: Event
}

export interface Timeline {
  readonly startNs: bigint
  readonly endMs: number
  readonly events: readonly Timed[]
  readonly operations: ReadonlyMap<string, Operation>
  readonly faults: readonly Fault[]
}

export function timelineOf(run: Run): Timeline {
  const log = run.events.toSorted((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0))
  const startNs = log[0]?.at ?? 0n
  const events = log.map((event) => ({ ms: Number(event.at - startNs) / 1e6, event }))
  const endMs = events.at(-1)?.ms ?? 0
  return { startNs, endMs, events, operations: operationsOf(events, endMs), faults: faultsOf(events) }
}

export const msOf = (timeline: Timeline, at: bigint): number => Number(at - timeline.startNs) / 1e6

type Draft = { -readonly [K in keyof Operation]: Operation[K] } & { answered: boolean; ended: boolean }

function operationsOf(events: readonly Timed[], endMs: number): Map<string, Operation> {
  const all = new Map<string, Draft>()
  const open = new Map<string, Set<Draft>>()
  for (const { ms, event } of events) {
    if (event.type === 'ended') {
      for (const draft of open.get(event.worker) ?? []) end(draft, ms, event.how, event.why)
      open.delete(event.worker)
    } else if ('op' in event && 'worker' in event) {
      const draft = all.get(event.op) ?? begin(event, ms, endMs)
      all.set(event.op, draft)
      tell(draft, ms, event)
      const others = open.get(event.worker) ?? new Set()
      open.set(event.worker, others)
      if (draft.ended) others.delete(draft)
      else others.add(draft)
    }
  }
  return all
}

type OfWorker = Extract<Event, { op: string; worker: string }>

function begin(event: OfWorker, ms: number, endMs: number): Draft {
  return {
    id: event.op,
    worker: event.worker,
    key: event.key,
    workload: event.type === 'asked' ? event.workload : undefined,
    askedMs: ms,
    answeredMs: endMs,
    grantedMs: undefined,
    fence: undefined,
    endMs,
    ending: 'open',
    why: undefined,
    releasedMs: undefined,
    lost: false,
    answered: false,
    ended: false,
  }
}

function tell(draft: Draft, ms: number, event: OfWorker): void {
  if (event.type === 'granted') {
    answer(draft, ms)
    draft.grantedMs = ms
    draft.fence = event.fence
  } else if (event.type === 'refused') {
    end(draft, ms, 'refused', event.error)
  } else if (event.type === 'lost') {
    draft.lost = true
    end(draft, ms, 'lost', event.error)
  } else if (event.type === 'releasing' || event.type === 'left') {
    end(draft, ms, 'released')
  } else if (event.type === 'released') {
    end(draft, ms, 'released')
    draft.releasedMs = ms
  }
}

function answer(draft: Draft, ms: number): void {
  if (draft.answered) return
  draft.answered = true
  draft.answeredMs = ms
}

/** The first end counts: who releases what is lost, or is killed after its release, had stopped to hold before. */
function end(draft: Draft, ms: number, ending: Ending, why?: string): void {
  answer(draft, ms)
  if (draft.ended) return
  draft.ended = true
  draft.endMs = ms
  draft.ending = ending
  draft.why = why
}

function faultsOf(events: readonly Timed[]): Fault[] {
  const healings = new Map<number, number>()
  for (const { ms, event } of events) if (event.type === 'healed') healings.set(event.fault, ms)
  const faults: Fault[] = []
  for (const { ms, event } of events) {
    if (event.type !== 'fault') continue
    const toMs = healings.get(event.fault)
    faults.push({ name: event.name, target: event.target, fromMs: ms, toMs: toMs ?? ms, healed: toMs !== undefined })
  }
  return faults
}

export interface Span {
  readonly fromMs: number
  readonly toMs: number
}

/** In order, and those that touch as one. `gapMs`: so do those that are no farther apart. */
export function merged(spans: readonly Span[], gapMs = 0): Span[] {
  const found: Span[] = []
  for (const span of spans.toSorted((a, b) => a.fromMs - b.fromMs)) {
    const last = found.at(-1)
    if (last && span.fromMs <= last.toMs + gapMs) {
      found[found.length - 1] = { fromMs: last.fromMs, toMs: Math.max(last.toMs, span.toMs) }
    } else found.push({ fromMs: span.fromMs, toMs: span.toMs })
  }
  return found
}
