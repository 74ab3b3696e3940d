/**
 * The messages of etcd that are used here: what they say, and how. 64-bit numbers are bigints. Keys and values in an
 * answer are views of what was received: whoever keeps one for long copies it, or keeps all that came with it.
 */
import { Reader, Writer } from './wire.js'

/** As text it has a character for each byte. */
type Key = Uint8Array | string

export interface RangeRequest {
  readonly key: Key
  /** The first key that is not in the range any more; without one it is about a single key. */
  readonly rangeEnd?: Key
  readonly limit?: number
  readonly revision?: bigint
  readonly sort?: { readonly by: keyof typeof SORT_TARGET; readonly order: keyof typeof SORT_ORDER }
  /** Answered by whichever server is asked, from what it knows. */
  readonly serializable?: boolean
  readonly keysOnly?: boolean
  readonly countOnly?: boolean
  readonly minModRevision?: bigint
  readonly maxModRevision?: bigint
  readonly minCreateRevision?: bigint
  readonly maxCreateRevision?: bigint
}

export interface PutRequest {
  readonly key: Key
  /** As text it is written in UTF-8. */
  readonly value?: Uint8Array | string
  readonly lease?: bigint
  readonly prevKv?: boolean
  readonly ignoreValue?: boolean
  readonly ignoreLease?: boolean
}

export interface DeleteRequest {
  readonly key: Key
  readonly rangeEnd?: Key
  readonly prevKv?: boolean
}

export interface TxnRequest {
  readonly compare?: readonly Compare[]
  /** Carried out if all comparisons are true. */
  readonly success?: readonly RequestOp[]
  readonly failure?: readonly RequestOp[]
}

/** Of a range: true of each key in it. */
export type Compare = {
  readonly key: Key
  readonly rangeEnd?: Key
  /** Equal, if not given. */
  readonly result?: keyof typeof COMPARE_RESULT
} & (
  | { readonly target: 'version' | 'create' | 'mod' | 'lease'; readonly value: bigint }
  | { readonly target: 'value'; readonly value: Uint8Array }
)

export type RequestOp =
  | ({ readonly kind: 'range' } & RangeRequest)
  | ({ readonly kind: 'put' } & PutRequest)
  | ({ readonly kind: 'delete' } & DeleteRequest)
  | ({ readonly kind: 'txn' } & TxnRequest)

export interface KeyValue {
  readonly key: Buffer
  readonly value: Buffer
  readonly createRevision: bigint
  readonly modRevision: bigint
  readonly version: bigint
  /** 0n: none. */
  readonly lease: bigint
}

/** `revision` is the store's; in the answer of a transaction within one it is 0n: the outer one has it. */
export interface RangeResponse {
  readonly kind: 'range'
  readonly revision: bigint
  readonly kvs: readonly KeyValue[]
  readonly more: boolean
  readonly count: number
}

export interface PutResponse {
  readonly kind: 'put'
  readonly revision: bigint
  readonly prevKv: KeyValue | undefined
}

export interface DeleteResponse {
  readonly kind: 'delete'
  readonly revision: bigint
  readonly deleted: number
  readonly prevKvs: readonly KeyValue[]
}

export interface TxnResponse {
  readonly kind: 'txn'
  readonly revision: bigint
  readonly succeeded: boolean
  /** In the order of the operations. */
  readonly responses: readonly ResponseOp[]
}

export type ResponseOp = RangeResponse | PutResponse | DeleteResponse | TxnResponse

export interface WatchRequest {
  readonly key: Key
  readonly rangeEnd?: Key
  readonly filters?: readonly (keyof typeof WATCH_FILTER)[]
  readonly prevKv?: boolean
  /** From now on, if not given. */
  readonly startRevision?: bigint
}

export interface WatchEvent extends KeyValue {
  readonly type: 'put' | 'delete'
  readonly prevKv: KeyValue | undefined
}

export interface WatchResponse {
  readonly revision: bigint
  readonly watchId: bigint
  readonly created: boolean
  readonly canceled: boolean
  /** Not 0n: the start of the watch is not there any more. */
  readonly compactRevision: bigint
  readonly cancelReason: string
  /** The rest of its events follows. */
  readonly fragment: boolean
  readonly events: readonly WatchEvent[]
}

const SORT_ORDER = { ascend: 1, descend: 2 } as const
const SORT_TARGET = { key: 0, version: 1, create: 2, mod: 3, value: 4 } as const
const COMPARE_RESULT = { equal: 0, greater: 1, less: 2, 'not-equal': 3 } as const
/** The number of the target, and of the field that has what it is compared with. */
const COMPARE_TARGET = { version: [0, 4], create: [1, 5], mod: [2, 6], value: [3, 7], lease: [4, 8] } as const
const WATCH_FILTER = { noput: 0, nodelete: 1 } as const

export function writeRange(writer: Writer, request: RangeRequest): void {
  writer.bytes(1, request.key)
  writer.bytes(2, request.rangeEnd)
  writer.number(3, request.limit)
  writer.int64(4, request.revision)
  if (request.sort) {
    writer.number(5, SORT_ORDER[request.sort.order])
    writer.number(6, SORT_TARGET[request.sort.by])
  }
  writer.flag(7, request.serializable)
  writer.flag(8, request.keysOnly)
  writer.flag(9, request.countOnly)
  writer.int64(10, request.minModRevision)
  writer.int64(11, request.maxModRevision)
  writer.int64(12, request.minCreateRevision)
  writer.int64(13, request.maxCreateRevision)
}

function writePut(writer: Writer, request: PutRequest): void {
  writer.bytes(1, request.key)
  if (typeof request.value === 'string') writer.text(2, request.value)
  else writer.bytes(2, request.value)
  writer.int64(3, request.lease)
  writer.flag(4, request.prevKv)
  writer.flag(5, request.ignoreValue)
  writer.flag(6, request.ignoreLease)
}

function writeDelete(writer: Writer, request: DeleteRequest): void {
  writer.bytes(1, request.key)
  writer.bytes(2, request.rangeEnd)
  writer.flag(3, request.prevKv)
}

export function writeTxn(writer: Writer, { compare = [], success = [], failure = [] }: TxnRequest): void {
  for (const one of compare) writer.message(1, one, writeCompare)
  for (const one of success) writer.message(2, one, writeRequestOp)
  for (const one of failure) writer.message(3, one, writeRequestOp)
}

function writeCompare(writer: Writer, compare: Compare): void {
  const [target, field] = COMPARE_TARGET[compare.target]
  writer.number(1, COMPARE_RESULT[compare.result ?? 'equal'])
  writer.number(2, target)
  writer.bytes(3, compare.key)
  if (compare.target === 'value') writer.bytes(field, compare.value)
  else writer.int64Always(field, compare.value)
  writer.bytes(64, compare.rangeEnd)
}

function writeRequestOp(writer: Writer, op: RequestOp): void {
  if (op.kind === 'range') writer.message(1, op, writeRange)
  else if (op.kind === 'put') writer.message(2, op, writePut)
  else if (op.kind === 'delete') writer.message(3, op, writeDelete)
  else writer.message(4, op, writeTxn)
}

export function writeLeaseGrant(writer: Writer, { ttlS, id }: { readonly ttlS: number; readonly id: bigint }): void {
  writer.number(1, ttlS)
  writer.int64(2, id)
}

/** To revoke it, and to keep it alive. */
export function writeLeaseId(writer: Writer, id: bigint): void {
  writer.int64(1, id)
}

type TimeToLiveRequest = { readonly id: bigint; readonly withKeys: boolean }

export function writeLeaseTimeToLive(writer: Writer, request: TimeToLiveRequest): void {
  writer.int64(1, request.id)
  writer.flag(2, request.withKeys)
}

export function writeWatchCreate(writer: Writer, request: WatchRequest): void {
  writer.message(1, request, writeWatch)
}

function writeWatch(writer: Writer, request: WatchRequest): void {
  writer.bytes(1, request.key)
  writer.bytes(2, request.rangeEnd)
  writer.int64(3, request.startRevision)
  if (request.filters && request.filters.length > 0) {
    writer.bytes(5, Uint8Array.from(request.filters, (filter) => WATCH_FILTER[filter]))
  }
  writer.flag(6, request.prevKv)
  // Otherwise an answer that is larger than the server's limit is never sent.
  writer.flag(8, true)
}

export function writeWatchCancel(writer: Writer, watchId: bigint): void {
  writer.message(2, watchId, writeLeaseId)
}

export function writeAuthenticate(writer: Writer, request: { readonly name: string; readonly password: string }): void {
  writer.text(1, request.name)
  writer.text(2, request.password)
}

const NO_BYTES: Buffer = Buffer.alloc(0)

export function readRange(reader: Reader): RangeResponse {
  let revision = 0n
  let more = false
  let count = 0
  const kvs: KeyValue[] = []
  while (reader.next()) {
    if (reader.field === 1) revision = reader.message(readHeader)
    else if (reader.field === 2) kvs.push(reader.message(readKeyValue))
    else if (reader.field === 3) more = reader.flag()
    else if (reader.field === 4) count = reader.number()
  }
  return { kind: 'range', revision, kvs, more, count }
}

function readPut(reader: Reader): PutResponse {
  let revision = 0n
  let prevKv: KeyValue | undefined
  while (reader.next()) {
    if (reader.field === 1) revision = reader.message(readHeader)
    else if (reader.field === 2) prevKv = reader.message(readKeyValue)
  }
  return { kind: 'put', revision, prevKv }
}

function readDelete(reader: Reader): DeleteResponse {
  let revision = 0n
  let deleted = 0
  const prevKvs: KeyValue[] = []
  while (reader.next()) {
    if (reader.field === 1) revision = reader.message(readHeader)
    else if (reader.field === 2) deleted = reader.number()
    else if (reader.field === 3) prevKvs.push(reader.message(readKeyValue))
  }
  return { kind: 'delete', revision, deleted, prevKvs }
}

export function readTxn(reader: Reader): TxnResponse {
  let revision = 0n
  let succeeded = false
  const responses: ResponseOp[] = []
  while (reader.next()) {
    if (reader.field === 1) revision = reader.message(readHeader)
    else if (reader.field === 2) succeeded = reader.flag()
    else if (reader.field === 3) responses.push(reader.message(readResponseOp))
  }
  return { kind: 'txn', revision, succeeded, responses }
}

function readResponseOp(reader: Reader): ResponseOp {
  let response: ResponseOp | undefined
  while (reader.next()) {
    if (reader.field === 1) response = reader.message(readRange)
    else if (reader.field === 2) response = reader.message(readPut)
    else if (reader.field === 3) response = reader.message(readDelete)
    else if (reader.field === 4) response = reader.message(readTxn)
  }
  // An empty transaction is answered with nothing at all.
  return response ?? { kind: 'txn', revision: 0n, succeeded: true, responses: [] }
}

/** Of a header only the revision is of interest. */
function readHeader(reader: Reader): bigint {
  let revision = 0n
  while (reader.next()) {
    if (reader.field === 3) revision = reader.int64()
  }
  return revision
}

function readKeyValue(reader: Reader): KeyValue {
  let key = NO_BYTES
  let value = NO_BYTES
  let createRevision = 0n
  let modRevision = 0n
  let version = 0n
  let lease = 0n
  while (reader.next()) {
    if (reader.field === 1) key = reader.bytes()
    else if (reader.field === 2) createRevision = reader.int64()
    else if (reader.field === 3) modRevision = reader.int64()
    else if (reader.field === 4) version = reader.int64()
    else if (reader.field === 5) value = reader.bytes()
    else if (reader.field === 6) lease = reader.int64()
  }
  return { key, value, createRevision, modRevision, version, lease }
}

export interface LeaseResponse {
  readonly id: bigint
  /** -1: there is none, as an answer about its time to live has it. */
  readonly ttlS: number
}

/** Of a grant, and of a keep-alive. */
export function readLease(reader: Reader): LeaseResponse {
  let id = 0n
  let ttlS = 0
  while (reader.next()) {
    if (reader.field === 2) id = reader.int64()
    else if (reader.field === 3) ttlS = Number(reader.int64())
  }
  return { id, ttlS }
}

export interface TimeToLive {
  /** -1: there is no such lease. */
  readonly ttlS: number
  readonly grantedTtlS: number
  readonly keys: readonly Buffer[]
}

export function readLeaseTimeToLive(reader: Reader): TimeToLive {
  let ttlS = 0
  let grantedTtlS = 0
  const keys: Buffer[] = []
  while (reader.next()) {
    if (reader.field === 3) ttlS = Number(reader.int64())
    else if (reader.field === 4) grantedTtlS = Number(reader.int64())
    else if (reader.field === 5) keys.push(reader.bytes())
  }
  return { ttlS, grantedTtlS, keys }
}

export function readWatchResponse(reader: Reader): WatchResponse {
  let revision = 0n
  let watchId = 0n
  let created = false
  let canceled = false
  let compactRevision = 0n
  let cancelReason = ''
  let fragment = false
  const events: WatchEvent[] = []
  while (reader.next()) {
    if (reader.field === 1) revision = reader.message(readHeader)
    else if (reader.field === 2) watchId = reader.int64()
    else if (reader.field === 3) created = reader.flag()
    else if (reader.field === 4) canceled = reader.flag()
    else if (reader.field === 5) compactRevision = reader.int64()
    else if (reader.field === 6) cancelReason = reader.text()
    else if (reader.field === 7) fragment = reader.flag()
    else if (reader.field === 11) events.push(reader.message(readWatchEvent))
  }
  return { revision, watchId, created, canceled, compactRevision, cancelReason, fragment, events }
}

function readWatchEvent(reader: Reader): WatchEvent {
  let type: WatchEvent['type'] = 'put'
  let kv: KeyValue | undefined
  let prevKv: KeyValue | undefined
  while (reader.next()) {
    if (reader.field === 1) type = reader.number() === 1 ? 'delete' : 'put'
    else if (reader.field === 2) kv = reader.message(readKeyValue)
    else if (reader.field === 3) prevKv = reader.message(readKeyValue)
  }
  const { key, value, createRevision, modRevision, version, lease } = kv ?? NO_KEY_VALUE
  return { type, key, value, createRevision, modRevision, version, lease, prevKv }
}

const NO_KEY_VALUE: KeyValue = {
  key: NO_BYTES,
  value: NO_BYTES,
  createRevision: 0n,
  modRevision: 0n,
  version: 0n,
  lease: 0n,
}

export function readToken(reader: Reader): string {
  let token = ''
  while (reader.next()) {
    if (reader.field === 2) token = reader.text()
  }
  return token
}

/** Of an answer that says nothing but that it is done. */
export function readNothing(): void {}
