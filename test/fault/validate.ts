/**
 * The judges: what is promised, and whether the log of a run keeps it. Each looks at the log alone, so that a run can be judged again.
 *
 * Where a fault makes the store forget, two can hold at once until the first hears of it, at the latest at the end of its TTL (which is
 * judged where the store forgets as one). Then only what concerns fences is judged: no update is lost behind a gate that checks them, none is given twice, and when everything is
 * healed they go on growing.
 */
import { serializable } from './dealings.js'
import type { Event, Run, Violation } from './history.js'
import { check } from './linearizability.js'
import { lockHistory, lockModel } from './lock-model.js'
import { observersGoOn, observersInOrder, observersKeepUp, oneLeaderPerTerm } from './terms.js'

type Log = Pick<Run, 'ttlMs' | 'events' | 'waitsForReplicas' | 'handOffMs' | 'forgetsAsOne' | 'failovers'>

/** All that is known of one operation. */
interface Operation {
  readonly op: string
  readonly key: string
  readonly workload: string
  readonly worker: string
  readonly askedAt: bigint
  grantedAt?: bigint
  fence?: bigint
  isLate?: boolean
  /** When it began to ask its handle, of the times that this said that it is held. */
  readonly confirmedSince: bigint[]
  lostAt?: bigint
  /** Its session was orphaned. */
  leftAt?: bigint
  /** The one that had left it. */
  takesUp?: Operation
  releasingAt?: bigint
  refusedAt?: bigint
}

interface Trouble {
  readonly name: string
  readonly forgets: boolean
  readonly from: bigint
  readonly to: bigint
  /** When all have heard of it: a server that was replaced may come back and go on for a moment. */
  readonly settled: bigint
  /** Whose it was: everybody's, if undefined. */
  readonly workers: ReadonlySet<string> | undefined
  /** The time in which they certainly heard nothing from the store. */
  readonly cutOff?: { readonly from: bigint; readonly to: bigint } | undefined
}

const MS = 1_000_000n
const HAND_OFF_MS = 1_000
const PASSED_OVER_MS = 2_000n
const STUCK_MS = 10_000n
const LEAST_OPS_PER_S = 50
/** Two that asked at almost the same time may come to the store in any order. */
const FIFO_TOLERANCE_MS = 50n
const FIFO_EXCEPTIONS = 0.05
/** In the beginning everybody is still finding its way to the store. */
const FIRST_MS = 1_000n
const LONGEST_LINE = 50
/** After this long with everything healed, everybody has heard of what happened. */
const SETTLED_MS = 5_000
/** For each key. A search that takes longer has found nothing, and says so. */
const CHECK_MS = 60_000

type Judge = (log: Index) => Iterable<Violation>

/** By what they find. */
const JUDGES: Readonly<Record<string, Judge>> = {
  'one holder': exclusion,
  'sessions end': sessionsEnd,
  'one leader per term': oneLeaderPerTerm,
  'observers in order': observersInOrder,
  'observers keep up': observersHear,
  'serializable': serializable,
  'loss in time': lossInTime,
  'fence order': fenceOrder,
  'unique fences': fencesUnique,
  'fences go on growing': fencesGrowAgain,
  'no lost update': lostUpdates,
  'accepted fences': acceptedFences,
  'crash hand-off': crashHandOff,
  'nobody stuck': nobodyStuck,
  'first come, first served': firstComeFirstServed,
  'enough traffic': enoughTraffic,
  'nobody dies': nobodyDies,
  'nothing lost': nothingLost,
  'replicated grants': replicated,
  'linearizable': linearizable,
}

export function validate(log: Log): Violation[] {
  const index = indexOf(log)
  return Object.values(JUDGES).flatMap((judge) => [...judge(index)])
}

export function isBroken(invariant: string, log: Log): boolean {
  return [...JUDGES[invariant]!(indexOf(log))].length > 0
}

function indexOf({ events, ...log }: Log): Index {
  return new Index({ ...log, events: [...events].sort((a, b) => Number(a.at - b.at)) })
}

class Index {
  readonly events: readonly Event[]
  readonly ttl: bigint
  readonly waitsForReplicas: boolean
  /** After the death of a holder, beyond its TTL. */
  readonly handOff: bigint
  readonly forgetsAsOne: boolean
  readonly failovers: number | undefined
  readonly operations = new Map<string, Operation>()
  /** By key, in the order in which they were told. */
  readonly grants = new Map<string, Operation[]>()
  readonly faults: readonly Trouble[]
  /** When the machine itself was too slow, in the order of time. */
  readonly stalls: readonly Trouble[]
  /** Both, in the order of time: what takes how long is not judged then. */
  readonly broken: readonly Trouble[]
  readonly phases: ReadonlyMap<string, bigint>

  constructor({ events, ttlMs, waitsForReplicas = false, handOffMs = HAND_OFF_MS, forgetsAsOne = false, failovers }: Log) {
    this.events = events
    this.ttl = BigInt(ttlMs) * MS
    this.waitsForReplicas = waitsForReplicas
    this.handOff = BigInt(handOffMs) * MS
    this.forgetsAsOne = forgetsAsOne
    this.failovers = failovers
    for (const event of events) this.#add(event)
    this.phases = new Map(events.flatMap((event) => (event.type === 'phase' ? [[event.name, event.at]] : [])))
    const healed = new Map(events.flatMap((event) => (event.type === 'healed' ? [[event.fault, event]] : [])))
    const known = new Set(events.flatMap((event) => (event.type === 'asked' || event.type === 'began' ? [event.worker] : [])))
    const workersIn = (target: string) => {
      const names = target.split(' ')
      return names.every((name) => known.has(name)) ? new Set(names) : undefined
    }
    this.faults = events.flatMap((event) => {
      if (event.type !== 'fault') return []
      const { name, at: from, forgets = false, forgetsForMs = SETTLED_MS, target, cutsOffSince } = event
      const { at: to = this.end, since = to } = healed.get(event.fault) ?? {}
      return { name, forgets, from, to, settled: to + BigInt(forgetsForMs) * MS, workers: workersIn(target), cutOff: cutsOffSince === undefined ? undefined : { from: cutsOffSince, to: since } }
    })
    this.stalls = events
      .flatMap((event) => {
        if (event.type !== 'stalled') return []
        const workers = 'worker' in event ? new Set([event.worker]) : undefined
        return { name: 'stall', forgets: false, from: event.since, to: event.at, settled: event.at + this.ttl, workers }
      })
      .sort((a, b) => Number(a.from - b.from))
    this.broken = [...this.faults, ...this.stalls].sort((a, b) => Number(a.from - b.from))
  }

  get end(): bigint {
    return this.events.at(-1)?.at ?? 0n
  }

  phase(name: string): bigint {
    return this.phases.get(name) ?? this.end
  }

  /** Whether the store may have forgotten a hold that there was at some time in this span. */
  mayForget(from: bigint, to: bigint): boolean {
    return this.faults.some((fault) => fault.forgets && fault.from < to && fault.settled > from)
  }

  /** How long of a span nothing was broken. */
  healthyNs(from: bigint, to: bigint): bigint {
    let healthy = 0n
    let at = from
    for (const fault of this.broken) {
      if (fault.to <= at || fault.from >= to) continue
      if (fault.from > at) healthy += fault.from - at
      at = fault.to
    }
    return at < to ? healthy + (to - at) : healthy
  }

  /** When so much time has gone by in which the machine was not too slow. */
  withoutStalls(from: bigint, ns: bigint): bigint {
    let left = ns
    let at = from
    for (const stall of this.stalls) {
      if (stall.to <= at) continue
      if (stall.from - at >= left) break
      if (stall.from > at) left -= stall.from - at
      at = stall.to
    }
    return at + left
  }

  /** Only what was left, and has the same fence: else it is a hold like any other. */
  #takeUp(operation: Operation, op: string | undefined): void {
    const left = op === undefined ? undefined : this.operations.get(op)
    if (left?.leftAt !== undefined && left.fence === operation.fence) operation.takesUp = left
  }

  #add(event: Event): void {
    if (event.type === 'asked') {
      const { op, key, workload, worker, at } = event
      this.operations.set(op, { op, key, workload, worker, askedAt: at, confirmedSince: [] })
      return
    }
    const operation = 'op' in event ? this.operations.get(event.op) : undefined
    if (!operation) return
    switch (event.type) {
      case 'granted': {
        operation.grantedAt = event.at
        operation.fence = event.fence
        operation.isLate = event.late === true
        this.#takeUp(operation, event.takesUp)
        const others = this.grants.get(event.key)
        if (others) others.push(operation)
        else this.grants.set(event.key, [operation])
        break
      }
      case 'confirmed':
        operation.confirmedSince.push(event.since)
        break
      case 'lost':
        operation.lostAt = event.at
        break
      case 'left':
        operation.leftAt = event.at
        break
      case 'releasing':
        operation.releasingAt = event.at
        break
      case 'refused':
        operation.refusedAt = event.at
    }
  }
}

/** Whoever has taken something up has the same hold, and so the same fence. */
function isSameHold(one: Operation, other: Operation): boolean {
  return one === other || (one.takesUp !== undefined && isSameHold(one.takesUp, other))
}

/** When a session has ended, what it holds has, too, and whoever asks is told so. */
function* sessionsEnd(log: Index): Generator<Violation> {
  for (const { op, key, leftAt, confirmedSince } of log.operations.values()) {
    const at = leftAt === undefined ? undefined : confirmedSince.find((since) => since > leftAt)
    if (at !== undefined) yield { invariant: 'sessions end', message: `${op} still held ${key} when its session was orphaned`, at, key, ops: [op] }
  }
}

function* observersHear(log: Index): Generator<Violation> {
  yield* observersKeepUp(log)
  yield* observersGoOn(log)
}

/** Nobody is told that it holds once another has been given it: loss is seen by the holder's own deadline, before the store's. */
function* exclusion(log: Index): Generator<Violation> {
  for (const [key, grants] of log.grants) {
    let second: Operation | undefined
    // From the last one on, so that whoever came next is known.
    for (const first of grants.toReversed()) {
      const last = first.confirmedSince.at(-1)
      const next = second
      if (!first.isLate) second = first
      if (last === undefined || !next || last <= next.grantedAt! || log.mayForget(first.grantedAt!, last)) continue
      const lateMs = Number(last - next.grantedAt!) / 1e6
      yield {
        invariant: 'one holder',
        message: `${first.op} still held ${key} ${lateMs.toFixed(1)} ms after ${next.op} had been given it`,
        at: last, key, ops: [first.op, next.op],
      }
    }
  }
}

/** Whoever is cut off, and whoever was overtaken because the store forgot it. */
function* lossInTime(log: Index): Generator<Violation> {
  yield* cutOffInTime(log)
  if (log.forgetsAsOne) yield* overtakenInTime(log)
}

/** What was forgotten is renewed no more: so nobody holds for longer than a TTL after one with a higher fence was given it. */
function* overtakenInTime(log: Index): Generator<Violation> {
  for (const [key, grants] of log.grants) {
    const highestFirst = [...grants].sort((a, b) => (a.fence! > b.fence! ? -1 : 1))
    let higher = 0
    /** Of those with a higher fence, the one that was first. Whoever takes something up has the same. */
    let other: Operation | undefined
    for (const one of highestFirst) {
      for (; highestFirst[higher]!.fence! > one.fence!; higher++) other = earlierOf(other, highestFirst[higher]!)
      const at = one.confirmedSince.at(-1)
      if (at !== undefined && other && at > other.grantedAt! + log.ttl && at > log.withoutStalls(other.grantedAt!, log.ttl)) {
        const message = `${one.op} still held ${key} ${(Number(at - other.grantedAt!) / 1e6).toFixed(1)} ms after ${other.op} had been given it`
        yield { invariant: 'loss in time', message, at, key, ops: [one.op, other.op] }
      }
    }
  }
}

/** When one that is late was given it is not known. */
function earlierOf(known: Operation | undefined, one: Operation): Operation | undefined {
  return one.isLate || (known && known.grantedAt! <= one.grantedAt!) ? known : one
}

/**
 * Whoever hears nothing from the store for a TTL says by itself that it does not hold, also if nobody else could have been given it.
 * What it last heard, it had asked for before.
 */
function* cutOffInTime(log: Index): Generator<Violation> {
  for (const { name, workers, cutOff } of log.faults) {
    if (!cutOff) continue
    for (const { op, key, worker, grantedAt, confirmedSince } of log.operations.values()) {
      if (grantedAt === undefined || grantedAt > cutOff.to || (workers && !workers.has(worker))) continue
      const at = confirmedSince.find((since) => since > cutOff.from + log.ttl && since < cutOff.to)
      // If the clock of the server steps, so does what it says of when it granted.
      if (at === undefined || log.mayForget(grantedAt, at)) continue
      const message = `${op} still held ${key} ${(Number(at - cutOff.from) / 1e6).toFixed(1)} ms after ${name} had cut it off`
      yield { invariant: 'loss in time', message, at, key, ops: [op] }
    }
  }
}

/** Later grants have higher fences. */
function* fenceOrder(log: Index): Generator<Violation> {
  for (const [key, grants] of log.grants) {
    let highest: Operation | undefined
    for (const one of grants) {
      // When that one was really given it is not known.
      if (one.isLate) continue
      // Only while the store may have forgotten: once everybody has heard of that, fences are above all that there were.
      if (highest && one.fence! <= highest.fence! && !isSameHold(one, highest) && !log.mayForget(one.askedAt, one.grantedAt!)) {
        yield {
          invariant: 'fence order',
          message: `${one.op} was given ${key} after ${highest.op}, with fence ${one.fence}, which is not above ${highest.fence}`,
          at: one.grantedAt!, key, ops: [highest.op, one.op],
        }
      }
      if (!highest || one.fence! > highest.fence!) highest = one
    }
  }
}

/** Whatever the store forgets. */
function* fencesUnique(log: Index): Generator<Violation> {
  for (const [key, grants] of log.grants) {
    const seen = new Map<bigint, Operation>()
    for (const one of grants) {
      const other = seen.get(one.fence!)
      if (other && !isSameHold(one, other)) {
        const message = `${other.op} and ${one.op} were both given fence ${one.fence} of ${key}`
        yield { invariant: 'unique fences', message, at: one.grantedAt!, key, ops: [other.op, one.op] }
      }
      seen.set(one.fence!, one)
    }
  }
}

/** When all is healed, fences are above all that there were: else a gate would let nobody through any more. */
function* fencesGrowAgain(log: Index): Generator<Violation> {
  const settledAt = log.phase('recovery') + BigInt(SETTLED_MS) * MS
  for (const [key, grants] of log.grants) {
    const before = grants.filter(({ grantedAt }) => grantedAt! <= log.phase('recovery'))
    const highest = before.reduce((most, { fence }) => (fence! > most ? fence! : most), -1n)
    const late = grants.find(({ grantedAt, fence }) => grantedAt! > settledAt && fence! <= highest)
    if (!late) continue
    const message = `${late.op} was given fence ${late.fence} of ${key} after everything was healed; there had been ${highest}`
    yield { invariant: 'fences go on growing', message, at: late.grantedAt!, key, ops: [late.op] }
  }
}

/** What the gate has accepted is never undone by one who had not read it. */
function* lostUpdates(log: Index): Generator<Violation> {
  for (const event of log.events) {
    if (event.type !== 'wrote' || !event.accepted || !event.lostUpdate) continue
    if (log.operations.get(event.op)?.workload === 'unfenced') continue
    const message = `${event.op} wrote ${event.key} with fence ${event.fence} over an update that it had not read`
    yield { invariant: 'no lost update', message, at: event.at, key: event.key, ops: [event.op] }
  }
}

/** Of those that come with a fence, the gate accepts nobody after one with a higher fence, whether that wrote or read. */
function* acceptedFences(log: Index): Generator<Violation> {
  const last = new Map<string, { readonly op: string; readonly fence: bigint }>()
  for (const event of log.events) {
    if ((event.type !== 'wrote' && event.type !== 'read') || !event.accepted) continue
    const { op, key, fence, at } = event
    if (log.operations.get(op)?.workload === 'unfenced') continue
    const before = last.get(key)
    const isOther = before && op !== before.op && !isSameHold(log.operations.get(op)!, log.operations.get(before.op)!)
    if (before && (fence < before.fence || (fence === before.fence && isOther))) {
      const message = `${op} was let through to ${key} with fence ${fence} after ${before.op} with ${before.fence}`
      yield { invariant: 'accepted fences', message, at, key, ops: [before.op, op] }
    } else last.set(key, { op, fence })
  }
}

/**
 * What a process held when it was killed is another's within a TTL and a second, or what the store says instead; within two more,
 * if one that waited for it was killed as well, and has to be passed over first.
 */
function* crashHandOff(log: Index): Generator<Violation> {
  const died = new Map(log.events.flatMap((event) => (event.type === 'ended' ? [[event.worker, event.at]] : [])))
  for (const event of log.events) {
    if (event.type !== 'ended' || event.how !== 'killed') continue
    const { at, worker } = event
    for (const [key, grants] of log.grants) {
      const isDeadAhead = ([...log.operations.values()]).some((one) => {
        const diedAt = died.get(one.worker)
        return one.key === key && one.worker !== worker && diedAt !== undefined && one.askedAt < diedAt && isWaitingUntil(one, diedAt)
          && diedAt > at - PASSED_OVER_MS * MS && diedAt < at + log.ttl
      })
      const latest = log.withoutStalls(at, log.ttl + log.handOff + (isDeadAhead ? PASSED_OVER_MS * MS : 0n))
      const others = log.faults.filter(({ name, from, to }) => name !== 'client kill' && from < latest && to > at)
      if (others.length > 0 || latest > log.end) continue
      const held = grants.findLast(({ grantedAt }) => grantedAt! <= at)
      if (held?.worker !== worker || isOverBy(held, at)) continue
      const next = grants.find(({ grantedAt }) => grantedAt! > at)
      const isAlive = (one: Operation) => (died.get(one.worker) ?? latest) >= latest
      const waits = [...log.operations.values()].some((one) => one.key === key && one.askedAt < at && isAlive(one) && isWaitingUntil(one, latest))
      if (!waits || (next && next.grantedAt! <= latest)) continue
      const message = `${worker} was killed while it held ${key}, and nobody had it within a TTL and ${log.handOff / MS} ms`
      yield { invariant: 'crash hand-off', message, at: latest, key, ops: [held.op] }
    }
  }
}

function isOverBy({ releasingAt, lostAt, leftAt }: Operation, at: bigint): boolean {
  return [releasingAt, lostAt, leftAt].some((over) => over !== undefined && over <= at)
}

function isWaitingUntil({ grantedAt, refusedAt }: Operation, at: bigint): boolean {
  return (grantedAt === undefined || grantedAt > at) && (refusedAt === undefined || refusedAt > at)
}

/** Nobody waits for more than ten seconds in which nothing is broken. */
function* nobodyStuck(log: Index): Generator<Violation> {
  const died = new Map(log.events.flatMap((event) => (event.type === 'ended' ? [[event.worker, event.at]] : [])))
  for (const { op, key, worker, workload, askedAt, grantedAt, refusedAt } of log.operations.values()) {
    // Who reigns does not resign.
    if (workload === 'reign') continue
    const until = grantedAt ?? refusedAt ?? died.get(worker) ?? log.end
    if (until - askedAt <= STUCK_MS * MS) continue
    const waited = log.healthyNs(askedAt, until)
    if (waited <= STUCK_MS * MS) continue
    const message = `${op} waited ${Number(waited / MS)} ms for ${key} while nothing was broken`
    yield { invariant: 'nobody stuck', message, at: until, key, ops: [op] }
  }
}

/** While there are no faults. A process that has to wait for a processor asks later than it says: a few are no proof, nor is one. */
function* firstComeFirstServed(log: Index): Generator<Violation> {
  const [from, to] = [log.phase('warm-up') + FIRST_MS * MS, log.phase('faults')]
  for (const [key, all] of log.grants) {
    const grants = all.filter(({ workload, askedAt, grantedAt }) => workload === 'fifo' && askedAt >= from && grantedAt! <= to)
    const overtaken = grants.filter((one, i) =>
      grants.slice(Math.max(0, i - LONGEST_LINE), i).some((before) => one.askedAt + FIFO_TOLERANCE_MS * MS < before.askedAt),
    )
    if (overtaken.length <= Math.max(1, FIFO_EXCEPTIONS * grants.length)) continue
    const message = `${overtaken.length} of ${grants.length} were given ${key} after others who had asked later`
    yield { invariant: 'first come, first served', message, at: overtaken[0]!.grantedAt!, key, ops: overtaken.slice(0, 5).map(({ op }) => op) }
  }
}

/** A run in which little happens proves little. */
function* enoughTraffic(log: Index): Generator<Violation> {
  if (log.failovers !== undefined) {
    const terms = [...log.grants.values()].flat().length
    // The first leader has followed nobody.
    if (terms <= log.failovers) yield { invariant: 'enough traffic', message: `Only ${terms} terms for ${log.failovers} failovers`, at: log.end, ops: [] }
    return
  }
  const [from, to] = [log.phase('warm-up'), log.phase('faults')]
  const grants = [...log.operations.values()].filter(({ grantedAt }) => grantedAt !== undefined && grantedAt >= from && grantedAt < to)
  const perS = grants.length / (Number(to - from) / 1e9)
  if (perS >= LEAST_OPS_PER_S) return
  yield { invariant: 'enough traffic', message: `Only ${perS.toFixed(0)} grants a second before the first fault`, at: to, ops: [] }
}

/**
 * What is held stays held while nothing is broken: it is renewed in time. What happens to other workers, or on their ways, is no
 * excuse, nor is a machine that is slow at something else.
 */
function* nothingLost(log: Index): Generator<Violation> {
  for (const { op, key, worker, grantedAt, lostAt } of log.operations.values()) {
    if (grantedAt === undefined || lostAt === undefined) continue
    const isExcuse = ({ name, from, to, settled, workers }: Trouble): boolean => {
      if (workers && !workers.has(worker)) return false
      // A hold that was heard of late is older than it seems, by a TTL at most; and to connect anew takes its time.
      const over = workers && name !== 'stall' ? to + 2n * log.ttl : settled
      return from < lostAt && over > grantedAt
    }
    if (log.broken.some(isExcuse)) continue
    yield { invariant: 'nothing lost', message: `${op} lost ${key} while nothing was broken`, at: lostAt, key, ops: [op] }
  }
}

/** While no replica answers, nobody is given anything. */
function* replicated(log: Index): Generator<Violation> {
  if (!log.waitsForReplicas) return
  const without = log.faults.filter(({ name }) => name === 'replicas stop')
  for (const { op, key, askedAt, grantedAt } of log.operations.values()) {
    if (grantedAt === undefined || !without.some(({ from, to }) => askedAt > from && grantedAt < to)) continue
    yield { invariant: 'replicated grants', message: `${op} was given ${key} while no replica could have it`, at: grantedAt, key, ops: [op] }
  }
}

/** Nobody ends by itself: of an unhandled rejection, for instance. */
function* nobodyDies(log: Index): Generator<Violation> {
  for (const event of log.events) {
    if (event.type !== 'ended' || event.how !== 'failed') continue
    yield { invariant: 'nobody dies', message: `${event.worker} ended by itself: ${event.why ?? ''}`, at: event.at, ops: [] }
  }
}

/** Whatever was answered could have been answered by one lock that is asked one thing after the other. */
function* linearizable(log: Index): Generator<Violation> {
  for (const [key, grants] of log.grants) {
    const verdict = check(lockHistory(log.events, key, SETTLED_MS), lockModel, { withinMs: CHECK_MS })
    if (verdict.ok) continue
    const stuckAt = verdict.timedOut ? [] : verdict.stuckAt
    const ops = stuckAt.map(({ input }) => input.op)
    const what = stuckAt.map(({ input, output }) => `${input.type} of ${input.op} (${output})`).join(', ')
    const message = verdict.timedOut ? `Whether ${key} is linearizable was not found out in time` : `${key}: no order in which these may follow: ${what}`
    yield { invariant: 'linearizable', message, at: stuckAt[0]?.calledAt ?? grants[0]!.grantedAt!, key, ops }
  }
}
