/**
 * An etcd in memory, on a clock that the test moves, and clients of it whose network is in the test's hands: so what happens once in a
 * million requests can be made to happen, and a run can be repeated.
 *
 * It is as strict as etcd 3.4, which test/process/made-up-etcd.test.ts compares it with:
 *
 * - One revision for all that a Txn writes, and none for one that writes nothing. A key has the revisions that created it and wrote it
 *   last, its version and its lease.
 * - Txns with comparisons, of ranges, too, and with Txns within. All comparisons are made before anything is written. What cannot be done
 *   is refused before that, too: a lease that is not there, more than 128 operations on the way down, a key that is written twice.
 * - Leases that end by themselves, to the millisecond, or are revoked. All their keys go at one revision.
 * - Watches from now on. The events of one revision come together, and revisions in their order.
 *
 * Of the network: each request and each answer takes its time, so that they overtake each other. The answer is lost; the request is lost,
 * or was never sent; it is carried out late, perhaps long after the client was told that nothing was heard. All watches of a client are on
 * one stream: they tell things in order, are lost together, and are made again. A process can be cut off from everything for a while.
 *
 * Left out: several members, and what those say that are behind; history (reads and watches of an earlier revision, compaction); sorting
 * and filters; users; limits of size and space; several revisions in one answer of a watch; that a lease is looked at twice a second only;
 * and that the client tries again what may be done twice. What is left out is refused.
 */
import type { Clock, Timer } from '../../src/core/clock.js'
import type { EtcdClient } from '../../src/backends/etcd/client/client.js'
import { closedError, CODE, EtcdError, statusError } from '../../src/backends/etcd/client/errors.js'
import type {
  Compare, DeleteRequest, DeleteResponse, KeyValue, LeaseResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseOp,
  TimeToLive, TxnRequest, TxnResponse, WatchEvent, WatchRequest,
} from '../../src/backends/etcd/client/messages.js'
import type { Watch, WatchListener } from '../../src/backends/etcd/client/watch.js'

const MOST_OPERATIONS = 128
const NOTHING = Buffer.alloc(0)
/** A range that ends with this goes on to the last key. */
const NO_END = '\0'

const FAILURES = {
  'no key': [3, 'key is not provided'],
  'no such key': [3, 'key not found'],
  'value given': [3, 'value is provided'],
  'lease given': [3, 'lease is provided'],
  'too many operations': [3, 'too many operations in txn request'],
  'duplicate key': [3, 'duplicate key given in txn request'],
  'no such lease': [5, 'requested lease not found'],
  'lease exists': [9, 'lease already exists'],
} as const

/** As the server says it, and the client reads it. */
function refusal(what: keyof typeof FAILURES): EtcdError {
  const [code, message] = FAILURES[what]
  return statusError(code, `etcdserver: ${message}`)
}

/** A character for each byte. */
type Key = string

interface KeyRange {
  readonly key: Uint8Array | string
  readonly rangeEnd?: Uint8Array | string
}

function textOf(key: Uint8Array | string): Key {
  return typeof key === 'string' ? key : Buffer.from(key).toString('latin1')
}

function within({ key, rangeEnd }: KeyRange): (name: Key) => boolean {
  const first = textOf(key)
  if (rangeEnd === undefined) return (name) => name === first
  const end = textOf(rangeEnd)
  return (name) => name >= first && (name < end || end === NO_END)
}

/** What happened, for people to read. */
export class Trace {
  readonly #clock: Clock
  readonly #startedAt: number
  readonly #lines: { readonly at: number; readonly text: string }[] = []

  constructor(clock: Clock) {
    this.#clock = clock
    this.#startedAt = clock.now()
  }

  note(text: string): void {
    this.#lines.push({ at: this.#clock.now(), text })
  }

  /** The last lines of before some moment; only those in which one of these words is, if any are given. */
  last(count: number, before = Infinity, words: readonly string[] = ['']): string[] {
    const lines = this.#lines.filter(({ at, text }) => at <= before && words.some((word) => text.includes(word)))
    return lines.slice(-count).map(({ at, text }) => `${(at - this.#startedAt).toFixed(1).padStart(9)} ms  ${text}`)
  }
}

/** What comes of a Txn, as far as comparisons tell: those within, too, by what was there before it. */
interface Plan {
  readonly kind: 'plan'
  readonly succeeded: boolean
  readonly ops: readonly (Exclude<RequestOp, { kind: 'txn' }> | Plan)[]
}

/** What one revision has written so far. */
interface Writing {
  readonly revision: bigint
  readonly events: WatchEvent[]
}

interface Lease {
  readonly grantedTtlS: number
  readonly keys: Set<Key>
  renewedAt: number
  timer: Timer | undefined
}

type Deliver = (events: readonly WatchEvent[], revision: bigint) => void

export interface MadeUpEtcdOptions {
  /** No lease is granted for less. */
  readonly minTtlS?: number
}

export class MadeUpEtcd {
  readonly clock: Clock
  readonly trace: Trace
  readonly #minTtlS: number
  readonly #entries = new Map<Key, KeyValue>()
  readonly #leases = new Map<bigint, Lease>()
  readonly #watchers = new Set<{ readonly isAbout: (name: Key) => boolean; readonly withPrevKv: boolean; readonly deliver: Deliver }>()
  #revision = 1n
  #lastLease = 0x1000n

  constructor(clock: Clock, { minTtlS = 2 }: MadeUpEtcdOptions = {}) {
    this.clock = clock
    this.trace = new Trace(clock)
    this.#minTtlS = minTtlS
  }

  get revision(): bigint {
    return this.#revision
  }

  /** All there are, in order. */
  get keys(): Key[] {
    return [...this.#entries.keys()].sort()
  }

  // Keys

  range(request: RangeRequest): RangeResponse {
    if (request.key.length === 0) throw refusal('no key')
    return this.#rangeNow(request, this.#revision)
  }

  txn(request: TxnRequest): TxnResponse {
    checkCount(request, MOST_OPERATIONS)
    checkTwice(request.success)
    checkTwice(request.failure)
    const plan = this.#plan(request)
    this.#checkPuts(plan)
    const writing: Writing = { revision: this.#revision + 1n, events: [] }
    const answer = this.#carryOut(plan, writing)
    this.#written(writing)
    return { ...answer, revision: this.#revision }
  }

  #rangeNow(request: RangeRequest, revision: bigint): RangeResponse {
    const { limit = 0, countOnly = false, keysOnly = false, serializable: _, key, rangeEnd, ...others } = request
    refuseOthers(others)
    const all = this.#find({ key, ...(rangeEnd !== undefined && { rangeEnd }) })
    const some = countOnly ? [] : limit > 0 ? all.slice(0, limit) : all
    const kvs = keysOnly ? some.map((entry) => ({ ...entry, value: NOTHING })) : some
    return { kind: 'range', revision, kvs, more: !countOnly && kvs.length < all.length, count: all.length }
  }

  #find(range: KeyRange): KeyValue[] {
    if (range.rangeEnd === undefined) {
      const entry = this.#entries.get(textOf(range.key))
      return entry ? [entry] : []
    }
    const isIn = within(range)
    const names = [...this.#entries.keys()].filter(isIn).sort()
    return names.map((name) => this.#entries.get(name)!)
  }

  #plan({ compare = [], success = [], failure = [] }: TxnRequest): Plan {
    const succeeded = compare.every((one) => this.#isTrue(one))
    const ops = (succeeded ? success : failure).map((op) => (op.kind === 'txn' ? this.#plan(op) : op))
    return { kind: 'plan', succeeded, ops }
  }

  /** Of each key in the range. Where there is none, all numbers are 0, and there is no value. */
  #isTrue(compare: Compare): boolean {
    const found = this.#find(compare)
    if (found.length > 0) return found.every((entry) => isTrueOf(compare, entry))
    return compare.target !== 'value' && isTrueOf(compare, undefined)
  }

  #checkPuts({ ops }: Plan): void {
    for (const op of ops) {
      if (op.kind === 'plan') this.#checkPuts(op)
      if (op.kind !== 'put') continue
      const { key, lease = 0n, ignoreLease, ignoreValue } = op
      if ((ignoreLease || ignoreValue) && !this.#entries.has(textOf(key))) throw refusal('no such key')
      if (lease !== 0n && !this.#leases.has(lease)) throw refusal('no such lease')
    }
  }

  /** Reads see what was written before them in the same Txn. */
  #carryOut({ succeeded, ops }: Plan, writing: Writing): TxnResponse {
    const responses = ops.map((op): ResponseOp => {
      if (op.kind === 'range') return this.#rangeNow(op, this.#revisionIn(writing))
      if (op.kind === 'put') return this.#put(op, writing)
      return op.kind === 'delete' ? this.#delete(op, writing) : this.#carryOut(op, writing)
    })
    return { kind: 'txn', revision: 0n, succeeded, responses }
  }

  #put(request: PutRequest, writing: Writing): PutResponse {
    const { ignoreLease, ignoreValue, prevKv } = request
    const name = textOf(request.key)
    const before = this.#entries.get(name)
    const lease = ignoreLease ? before!.lease : (request.lease ?? 0n)
    const value = ignoreValue ? before!.value : bytesOf(request.value)
    const entry: KeyValue = {
      key: Buffer.from(name, 'latin1'), value, lease, createRevision: before?.createRevision ?? writing.revision,
      modRevision: writing.revision, version: (before?.version ?? 0n) + 1n,
    }
    if (before) this.#leases.get(before.lease)?.keys.delete(name)
    this.#leases.get(lease)?.keys.add(name)
    this.#entries.set(name, entry)
    writing.events.push({ type: 'put', ...entry, prevKv: before })
    this.trace.note(`r${writing.revision} put ${name} on lease ${lease.toString(16)}: ${value.toString().slice(0, 90)}`)
    return { kind: 'put', revision: writing.revision, prevKv: prevKv ? before : undefined }
  }

  #delete({ prevKv = false, ...range }: DeleteRequest, writing: Writing): DeleteResponse {
    const found = this.#find(range)
    for (const entry of found) this.#remove(entry, writing)
    return { kind: 'delete', revision: this.#revisionIn(writing), deleted: found.length, prevKvs: prevKv ? found : [] }
  }

  #revisionIn({ revision, events }: Writing): bigint {
    return events.length > 0 ? revision : this.#revision
  }

  #remove(entry: KeyValue, { revision, events }: Writing): void {
    const { key, lease } = entry
    const name = textOf(key)
    this.#entries.delete(name)
    this.#leases.get(lease)?.keys.delete(name)
    events.push({ type: 'delete', key, value: NOTHING, createRevision: 0n, modRevision: revision, version: 0n, lease: 0n, prevKv: entry })
    this.trace.note(`r${revision} delete ${name}`)
  }

  // Leases

  /** Whoever gives no id gets one in the order of grants. */
  leaseGrant(ttlS: number, id = ++this.#lastLease): LeaseResponse {
    if (this.#leases.has(id)) throw refusal('lease exists')
    const lease: Lease = { grantedTtlS: Math.max(this.#minTtlS, ttlS), keys: new Set(), renewedAt: 0, timer: undefined }
    this.#leases.set(id, lease)
    this.#renew(id, lease)
    this.trace.note(`lease ${id.toString(16)} granted for ${lease.grantedTtlS} s`)
    return { id, ttlS: lease.grantedTtlS }
  }

  leaseRevoke(id: bigint): void {
    this.#endLease(id, 'revoked')
  }

  leaseTimeToLive(id: bigint, withKeys: boolean): TimeToLive {
    const lease = this.#leases.get(id)
    if (!lease) return { ttlS: -1, grantedTtlS: 0, keys: [] }
    const { grantedTtlS, renewedAt, keys } = lease
    const ttlS = Math.floor(grantedTtlS - (this.clock.now() - renewedAt) / 1_000)
    return { ttlS, grantedTtlS, keys: withKeys ? [...keys].map((name) => Buffer.from(name, 'latin1')) : [] }
  }

  /** What it is renewed to; 0 if there is none. */
  keepAlive(id: bigint): number {
    const lease = this.#leases.get(id)
    if (!lease) return 0
    this.#renew(id, lease)
    return lease.grantedTtlS
  }

  #renew(id: bigint, lease: Lease): void {
    lease.timer?.cancel()
    lease.renewedAt = this.clock.now()
    lease.timer = this.clock.timer(lease.grantedTtlS * 1_000, () => this.#endLease(id, 'expired'), 'background')
  }

  #endLease(id: bigint, how: 'revoked' | 'expired'): void {
    const lease = this.#leases.get(id)
    if (!lease) throw refusal('no such lease')
    this.trace.note(`lease ${id.toString(16)} ${how}`)
    lease.timer?.cancel()
    const writing: Writing = { revision: this.#revision + 1n, events: [] }
    for (const name of [...lease.keys].sort()) this.#remove(this.#entries.get(name)!, writing)
    this.#leases.delete(id)
    this.#written(writing)
  }

  // Watches

  /** From now on. Returns what ends it. */
  watch({ key, rangeEnd, prevKv = false, ...others }: WatchRequest, deliver: Deliver): () => void {
    refuseOthers(others)
    const isAbout = within({ key, ...(rangeEnd !== undefined && { rangeEnd }) })
    const watcher = { isAbout, withPrevKv: prevKv, deliver }
    this.#watchers.add(watcher)
    return () => void this.#watchers.delete(watcher)
  }

  #written({ revision, events }: Writing): void {
    if (events.length === 0) return
    this.#revision = revision
    for (const { isAbout, withPrevKv, deliver } of [...this.#watchers]) {
      const its = events.filter(({ key }) => isAbout(textOf(key)))
      if (its.length > 0) deliver(withPrevKv ? its : its.map((event) => ({ ...event, prevKv: undefined })), revision)
    }
  }
}

/** They would be left unheeded. */
function refuseOthers(others: object): void {
  const names = Object.entries(others).flatMap(([name, value]) => (value === undefined || name === 'kind' ? [] : [name]))
  if (names.length > 0) throw new Error(`The made-up etcd knows nothing of ${names.join(' or ')}.`)
}

function bytesOf(value: PutRequest['value'] = NOTHING): Buffer {
  return Buffer.from(value as Uint8Array)
}

function isTrueOf(compare: Compare, entry: KeyValue | undefined): boolean {
  const difference = compare.target === 'value' ? entry!.value.compare(compare.value) : Number(numberOf(compare.target, entry) - compare.value)
  const { result = 'equal' } = compare
  if (result === 'greater') return difference > 0
  if (result === 'less') return difference < 0
  return (difference === 0) === (result === 'equal')
}

function numberOf(target: Exclude<Compare['target'], 'value'>, entry: KeyValue | undefined): bigint {
  if (!entry) return 0n
  return { version: entry.version, create: entry.createRevision, mod: entry.modRevision, lease: entry.lease }[target]
}

/** As etcd counts: of a Txn the longest of its three lists; and what is within one has the rest. */
function checkCount({ compare = [], success = [], failure = [] }: TxnRequest, most: number): void {
  const count = Math.max(compare.length, success.length, failure.length)
  if (count > most) throw refusal('too many operations')
  if (compare.some(({ key }) => key.length === 0)) throw refusal('no key')
  for (const op of [...success, ...failure]) {
    if (op.kind === 'txn') checkCount(op, most - count)
    else if (op.key.length === 0) throw refusal('no key')
    if (op.kind !== 'put') continue
    if (op.ignoreValue && (op.value?.length ?? 0) > 0) throw refusal('value given')
    if (op.ignoreLease && (op.lease ?? 0n) !== 0n) throw refusal('lease given')
  }
}

interface Writes {
  readonly puts: Set<Key>
  readonly deletes: ((name: Key) => boolean)[]
}

/** No key may be put twice, nor deleted and put; but one Txn may put what a later one deletes. Of the two ways of a Txn only one is gone. */
function checkTwice(ops: readonly RequestOp[] = []): Writes {
  const deletes = ops.filter((op) => op.kind === 'delete').map(within)
  const puts = new Set<Key>()
  const add = (name: Key, isElsewhere = puts.has(name)) => {
    if (isElsewhere || deletes.some((isIn) => isIn(name))) throw refusal('duplicate key')
    puts.add(name)
  }
  for (const op of ops) {
    if (op.kind !== 'txn') continue
    const [one, other] = [checkTwice(op.success), checkTwice(op.failure)]
    for (const name of one.puts) add(name)
    for (const name of other.puts) add(name, puts.has(name) && !one.puts.has(name))
    deletes.push(...one.deletes, ...other.deletes)
  }
  for (const op of ops) if (op.kind === 'put') add(textOf(op.key))
  return { puts, deletes }
}

export type Call = 'range' | 'txn' | 'leaseGrant' | 'leaseRevoke' | 'leaseTimeToLive' | 'keepAlive'

/**
 * What becomes of a request. Of those that do not end well the caller hears nothing, and is told so after a while: `late` ones are carried
 * out all the same, `lateMs` after they were sent.
 */
export type Fate = 'well' | 'answer lost' | 'request lost' | 'not sent' | 'late'

const CALL_TIMEOUT_MS = 2_000

export class MadeUpClient implements EtcdClient {
  readonly name: string
  readonly trouble = undefined
  /** What becomes of the next request. */
  fateOf: (call: Call, request: TxnRequest | undefined) => Fate = () => 'well'
  /** How long a request, an answer or an event is on its way. */
  latencyMs: () => number = () => 1
  lateMs: () => number = () => 2 * CALL_TIMEOUT_MS
  readonly #store: MadeUpEtcd
  readonly #stream: WatchStream
  readonly #underWay = new Set<(error: EtcdError) => void>()
  #cutOffUntil = -Infinity
  #isClosed = false

  constructor(store: MadeUpEtcd, name: string) {
    this.#store = store
    this.name = name
    this.#stream = new WatchStream(store, () => this.latencyMs())
  }

  range(request: RangeRequest): Promise<RangeResponse> {
    return this.#call('range', () => this.#store.range(request))
  }

  txn(request: TxnRequest): Promise<TxnResponse> {
    return this.#call('txn', () => this.#store.txn(request), request)
  }

  leaseGrant(ttlS: number, id?: bigint): Promise<LeaseResponse> {
    return this.#call('leaseGrant', () => this.#store.leaseGrant(ttlS, id))
  }

  leaseRevoke(id: bigint): Promise<void> {
    return this.#call('leaseRevoke', () => this.#store.leaseRevoke(id))
  }

  leaseTimeToLive(id: bigint, withKeys: boolean): Promise<TimeToLive> {
    return this.#call('leaseTimeToLive', () => this.#store.leaseTimeToLive(id, withKeys))
  }

  keepAlive(id: bigint, _silentMs: number): Promise<number> {
    return this.#call('keepAlive', () => this.#store.keepAlive(id))
  }

  watch(request: WatchRequest, listener: WatchListener): Watch {
    return this.#stream.watch(request, listener)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const reject of this.#underWay) reject(closedError(true))
    this.#underWay.clear()
    this.#stream.drop()
  }

  /** The stream of watches breaks; a new one is opened at once. */
  loseWatches(): void {
    this.#stream.drop()
    if (!this.isCutOff) this.#stream.open()
  }

  get isCutOff(): boolean {
    return this.#store.clock.now() < this.#cutOffUntil
  }

  /** No watch tells anything meanwhile. What becomes of requests is for `fateOf` to say. */
  cutOff(ms: number): void {
    const { clock, trace } = this.#store
    trace.note(`${this.name} is cut off for ${ms.toFixed(0)} ms`)
    this.#cutOffUntil = Math.max(this.#cutOffUntil, clock.now() + ms)
    this.#stream.drop()
    clock.timer(ms, () => {
      if (!this.isCutOff && !this.#isClosed) this.#stream.open()
    }, 'background')
  }

  #call<T>(call: Call, run: () => T, request?: TxnRequest): Promise<T> {
    if (this.#isClosed) return Promise.reject(closedError(false))
    const fate = this.fateOf(call, request)
    if (fate !== 'well') this.#store.trace.note(`${this.name}: ${fate}: ${call} ${request ? writesOf(request).join(', ') : ''}`)
    return new Promise((resolve, reject) => {
      this.#underWay.add(reject)
      const settle = (ms: number, settled: () => void) => this.#after(ms, () => {
        if (this.#underWay.delete(reject)) settled()
      })
      if (fate !== 'well') settle(CALL_TIMEOUT_MS, () => reject(unheard(fate !== 'not sent')))
      if (fate === 'request lost' || fate === 'not sent') return
      this.#after(fate === 'late' ? this.lateMs() : this.latencyMs(), () => {
        if (fate === 'late') this.#store.trace.note(`${this.name}: now the late ${call}`)
        const outcome = outcomeOf(run)
        if (fate === 'well') settle(this.latencyMs(), () => ('error' in outcome ? reject(outcome.error as Error) : resolve(outcome.value)))
      })
    })
  }

  #after(ms: number, task: () => void): void {
    this.#store.clock.timer(ms, task, 'background')
  }
}

function outcomeOf<T>(run: () => T): { readonly value: T } | { readonly error: unknown } {
  try {
    return { value: run() }
  } catch (error) {
    return { error }
  }
}

function unheard(mayBeDone: boolean): EtcdError {
  const what = { code: CODE.deadlineExceeded, reason: 'timeout', mayBeDone, transient: true } as const
  return new EtcdError(`etcd has not answered within ${CALL_TIMEOUT_MS} ms`, what)
}

/** What a Txn may write, for people to read; those within it, too. */
export function writesOf({ success = [], failure = [] }: TxnRequest): string[] {
  return [...success, ...failure].flatMap((op) => {
    if (op.kind === 'txn') return writesOf(op)
    return op.kind === 'put' || op.kind === 'delete' ? [`${op.kind} ${textOf(op.key)}`] : []
  })
}

interface StandingWatch {
  readonly request: WatchRequest
  readonly listener: WatchListener
  isClosed: boolean
  /** Its listener knows that it is there. */
  isTold: boolean
  stop: (() => void) | undefined
}

/** All watches of one client: what they tell comes in the order in which it happened. */
class WatchStream {
  readonly #store: MadeUpEtcd
  readonly #latencyMs: () => number
  readonly #watches = new Set<StandingWatch>()
  #isOpen = true
  /** What was sent on an earlier one is lost. */
  #generation = 0
  #lastArrivesAt = 0

  constructor(store: MadeUpEtcd, latencyMs: () => number) {
    this.#store = store
    this.#latencyMs = latencyMs
  }

  watch(request: WatchRequest, listener: WatchListener): Watch {
    const watch: StandingWatch = { request, listener, isClosed: false, isTold: false, stop: undefined }
    this.#watches.add(watch)
    if (this.#isOpen) this.#askFor(watch)
    return { close: () => this.#close(watch) }
  }

  drop(): void {
    this.#isOpen = false
    this.#generation++
    for (const watch of this.#watches) {
      watch.stop?.()
      watch.stop = undefined
    }
  }

  /** Once more. Only now is it noticed that the last one was lost. */
  open(): void {
    this.#isOpen = true
    for (const watch of [...this.#watches]) {
      if (watch.isTold) watch.listener.onLost()
      watch.isTold = false
      this.#askFor(watch)
    }
  }

  #askFor(watch: StandingWatch): void {
    const { clock } = this.#store
    const generation = this.#generation
    clock.timer(this.#latencyMs(), () => {
      if (watch.isClosed || watch.stop || this.#generation !== generation) return
      const { revision } = this.#store
      this.#tell(watch, () => {
        watch.isTold = true
        watch.listener.onCreated(revision)
      })
      watch.stop = this.#store.watch(watch.request, (events, at) => this.#tell(watch, () => watch.listener.onEvents(events, at)))
    }, 'background')
  }

  #tell(watch: StandingWatch, what: () => void): void {
    const { clock } = this.#store
    const generation = this.#generation
    this.#lastArrivesAt = Math.max(this.#lastArrivesAt + 0.001, clock.now() + this.#latencyMs())
    clock.timer(this.#lastArrivesAt - clock.now(), () => {
      if (!watch.isClosed && this.#generation === generation) what()
    }, 'background')
  }

  #close(watch: StandingWatch): void {
    watch.isClosed = true
    watch.stop?.()
    this.#watches.delete(watch)
  }
}
