/** A run in numbers: plain data, which survives JSON. */
import type { Run } from '../history.js'
import { merged, timelineOf, type Operation, type Span, type Timeline } from './timeline.js'
import { plural } from './text.js'

/** Operations per second are those that were granted: one that is refused does nobody any good. */
export interface Rate {
  readonly ms: number
  readonly grants: number
  /** None if there was no such time. */
  readonly perS: number | null
}

export interface Summary {
  readonly backend: string
  readonly seed: number
  readonly ttlMs: number
  /** Of the first event: process.hrtime.bigint(), as text, since JSON has no bigint. */
  readonly startedAt: string
  readonly durationMs: number
  readonly workers: number
  readonly operations: number
  readonly grants: number
  /** Operations that were told of a loss. */
  readonly losses: number
  readonly refusals: number
  /** By name. `ms` is how long they lasted, one after the other. */
  readonly faults: readonly { readonly name: string; readonly count: number; readonly ms: number }[]
  readonly before: Rate
  readonly during: Rate
  readonly after: Rate
  /** The longest that anybody waited while nothing was broken any more. None if nothing ever was. */
  readonly longestRecoveryMs: number | null
  /** Of the workload that has no gate. */
  readonly lostUpdates: number
  /** What the gate refused: reads and writes of those who had been overtaken. */
  readonly gateRefusals: number
  readonly highestFence: string | null
  readonly violations: number
  readonly guarantees: readonly { readonly invariant: string; readonly count: number }[]
}

export function summaryOf(run: Run, timeline: Timeline = timelineOf(run)): Summary {
  const operations = [...timeline.operations.values()]
  const granted = operations.filter(({ grantedMs }) => grantedMs !== undefined)
  return {
    backend: run.backend,
    seed: run.seed,
    ttlMs: run.ttlMs,
    startedAt: String(timeline.startNs),
    durationMs: timeline.endMs,
    workers: new Set(operations.map(({ worker }) => worker)).size,
    operations: operations.length,
    grants: granted.length,
    losses: operations.filter(({ lost }) => lost).length,
    refusals: operations.filter(({ ending }) => ending === 'refused').length,
    faults: faultCounts(timeline),
    ...ratesOf(timeline, granted),
    longestRecoveryMs: longestRecovery(timeline, operations),
    ...gateCounts(timeline),
    highestFence: highestFence(granted),
    violations: run.violations.length,
    guarantees: tally(run.violations.map(({ invariant }) => invariant)).map(([invariant, count]) => ({ invariant, count })),
  }
}

/** The one line that everybody reads. Who saw nothing says so: an empty log has no violations either. */
export function verdictOf({ violations, guarantees, grants }: Summary): string {
  if (violations > 0) return `${plural(violations, 'violation')} of ${plural(guarantees.length, 'guarantee')}`
  return grants > 0 ? 'no violation' : 'nothing was tested: nobody was granted anything'
}

function faultCounts({ faults }: Timeline): Summary['faults'] {
  const lasted = new Map<string, number>()
  for (const { name, fromMs, toMs } of faults) lasted.set(name, (lasted.get(name) ?? 0) + toMs - fromMs)
  return tally(faults.map(({ name }) => name)).map(([name, count]) => ({ name, count, ms: lasted.get(name) ?? 0 }))
}

/** In the order of their names, so that two reports can be compared. */
function tally(names: readonly string[]): [string, number][] {
  const counts = new Map<string, number>()
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  return [...counts].toSorted(([a], [b]) => (a < b ? -1 : 1))
}

function ratesOf(timeline: Timeline, granted: readonly Operation[]): Pick<Summary, 'before' | 'during' | 'after'> {
  const [from, broken, healed, to] = partsOf(timeline)
  const rate = (fromMs: number, toMs: number): Rate => {
    const ms = Math.max(0, toMs - fromMs)
    const grants = granted.filter(({ grantedMs = -1 }) => grantedMs >= fromMs && grantedMs < toMs).length
    return { ms, grants, perS: ms > 0 ? (grants * 1_000) / ms : null }
  }
  return { before: rate(from, broken), during: rate(broken, healed), after: rate(healed, to) }
}

/** As the phases say; a log that ends too early, or has none, is divided by its first and last fault. */
function partsOf({ events, faults, endMs }: Timeline): [number, number, number, number] {
  const phases = new Map<string, number>()
  for (const { ms, event } of events) if (event.type === 'phase') phases.set(event.name, ms)
  const to = phases.get('end') ?? endMs
  const broken = phases.get('faults') ?? faults[0]?.fromMs ?? to
  const lastHealed = faults.reduce((last, { toMs }) => Math.max(last, toMs), broken)
  const healed = phases.get('recovery') ?? (phases.has('faults') ? to : lastHealed)
  return [phases.get('warm-up') ?? 0, broken, healed, to]
}

function longestRecovery(timeline: Timeline, operations: readonly Operation[]): number | null {
  const quiet = quietTimes(timeline)
  if (quiet.length === 0) return null
  let longest = 0
  for (const { askedMs, answeredMs } of operations) {
    for (let index = firstEndingAfter(quiet, askedMs); index < quiet.length; index++) {
      const { fromMs, toMs } = quiet[index]!
      if (fromMs >= answeredMs) break
      longest = Math.max(longest, Math.min(answeredMs, toMs) - Math.max(askedMs, fromMs))
    }
  }
  return longest
}

/** From the end of a fault to the beginning of the next one. */
function quietTimes({ faults, endMs }: Timeline): Span[] {
  const broken = merged(faults)
  return broken.map(({ toMs }, index) => ({ fromMs: toMs, toMs: broken[index + 1]?.fromMs ?? endMs }))
}

/** Binary search: there may be thousands of each. */
function firstEndingAfter(spans: readonly Span[], ms: number): number {
  let low = 0
  let high = spans.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (spans[middle]!.toMs > ms) high = middle
    else low = middle + 1
  }
  return low
}

function gateCounts({ events, operations }: Timeline): Pick<Summary, 'lostUpdates' | 'gateRefusals'> {
  let lostUpdates = 0
  let gateRefusals = 0
  for (const { event } of events) {
    if (event.type !== 'read' && event.type !== 'wrote') continue
    if (!event.accepted) gateRefusals++
    if (event.type === 'wrote' && event.lostUpdate && operations.get(event.op)?.workload === 'unfenced') lostUpdates++
  }
  return { lostUpdates, gateRefusals }
}

function highestFence(granted: readonly Operation[]): string | null {
  let highest: bigint | undefined
  for (const { fence } of granted) if (fence !== undefined && (highest === undefined || fence > highest)) highest = fence
  return highest === undefined ? null : String(highest)
}
