/**
 * Software transactional memory, with the meaning that it has in etcd's client for Go. A function reads and writes keys; what it
 * writes is kept until it returns, and then committed all at once, if what it read still stands. If not, it is applied again.
 *
 * A try is reading    → `apply` runs; what it reads comes from the store, once for each key
 *             stale   → what it wants to read cannot be told any more as of its first read → another try
 *             failed  → a read failed, or `apply` threw → over: nothing is written
 *             commits → committed → over
 *                       conflict  → another try, which has the values that the answer brought
 *                       unknown   → over: rejected, since to apply it again might be to do it twice
 *
 * In each of them an abort, or the manager's end, rejects at once; and once a commit was sent, it may have happened all the same.
 */
import { onAbort } from '../core/abort.js'
import { asHoldfastError, noAnswer, type Answers } from '../core/answer.js'
import type { Backend, Commit, CommitState, Comparison, Snapshot, Versioned, VersionedStore } from '../core/backend.js'
import type { Clock } from '../core/clock.js'
import { BackendError, ConfigurationError, ConflictError } from '../core/errors.js'
import { checkKey } from '../core/key.js'
import { checkNames } from '../core/options.js'

/**
 * - `serializable-snapshot`: what was read is of one moment, and nothing that was read or is written has changed since
 * - `serializable`: what was read is of one moment, and has not changed since
 * - `repeatable-reads`: what was read has not changed since
 * - `read-committed`: what was read was there at some time
 */
export type Isolation = 'serializable-snapshot' | 'serializable' | 'repeatable-reads' | 'read-committed'

interface Demands {
  readonly isOfOneMoment: boolean
  readonly comparesReads: boolean
  readonly comparesWrites: boolean
}

const ISOLATIONS: Readonly<Record<Isolation, Demands>> = {
  'serializable-snapshot': { isOfOneMoment: true, comparesReads: true, comparesWrites: true },
  serializable: { isOfOneMoment: true, comparesReads: true, comparesWrites: false },
  'repeatable-reads': { isOfOneMoment: false, comparesReads: true, comparesWrites: false },
  'read-committed': { isOfOneMoment: false, comparesReads: false, comparesWrites: false },
}

export interface StmOptions {
  /** Default: `serializable-snapshot`. */
  readonly isolation?: Isolation
  /** Keys that will be read: they come together, in the one request before the first try. */
  readonly prefetch?: readonly string[]
  /** Rejects at once, with its reason. What has not been sent by then is not written. */
  readonly signal?: AbortSignal
  /** After so many conflicts it rejects with `ConflictError`. Default: no limit. */
  readonly maxTries?: number
  /** Told what came of it, before the promise is resolved. */
  readonly onCommit?: (commit: Committed) => void
}

export interface Committed {
  /** Of the commit; or, of a transaction that only read, of what it has seen. */
  readonly revision: bigint
  /** How often the function was applied. */
  readonly tries: number
}

/** What a transaction's function has to do with the store. It is over when the function has returned. */
export interface Transaction {
  /**
   * The value of a key as text, or '' if there is none. Of several keys, the first one that this transaction has written or, if it
   * has written none, has read; and if it has read none of them either, all are read at once, and it is that of the first.
   */
  get(...keys: readonly [string, ...string[]]): Promise<string>
  /** The same, as bytes; undefined if there is none. */
  getBytes(...keys: readonly [string, ...string[]]): Promise<Uint8Array | undefined>
  put(key: string, value: string | Uint8Array): void
  del(key: string): void
  /** The revision of the commit that wrote what the store has of the key; 0n if it has nothing. */
  rev(key: string): Promise<bigint>
}

const STM_OPTIONS: readonly (keyof StmOptions)[] = ['isolation', 'prefetch', 'signal', 'maxTries', 'onCommit']
/** Between one try and the next: at random, up to a time that doubles with each. */
const FIRST_PAUSE_MS = 1
const LONGEST_PAUSE_MS = 100

export interface StmSurroundings {
  readonly backend: Backend
  readonly clock: Clock
  readonly answers: Answers
  /** Aborted when the manager is closed. */
  readonly closing: AbortSignal
}

export async function stm<R>(around: StmSurroundings, apply: (tx: Transaction) => R, options: StmOptions = {}): Promise<Awaited<R>> {
  const run = new Run(around, apply, options)
  return untilAborted(() => run.result(), [options.signal, around.closing])
}

/** What is known of a key, and as of when. */
interface Known {
  readonly entry: Versioned | undefined
  readonly asOf: bigint
}

type Snapshots = Map<string, Known>
type Fetch = (keys: readonly string[], at?: bigint) => Promise<Snapshot | undefined>

class Run<R> {
  readonly #around: StmSurroundings
  readonly #store: VersionedStore
  readonly #apply: (tx: Transaction) => R
  readonly #isolation: Isolation
  readonly #prefetch: readonly string[]
  readonly #maxTries: number
  readonly #signals: readonly (AbortSignal | undefined)[]
  readonly #onCommit: ((commit: Committed) => void) | undefined

  constructor(around: StmSurroundings, apply: (tx: Transaction) => R, options: StmOptions) {
    if (typeof apply !== 'function') throw new ConfigurationError('stm(apply, options?) needs a function to apply.')
    checkNames('stm', options, STM_OPTIONS)
    const { isolation = 'serializable-snapshot', prefetch = [], signal, maxTries = Infinity, onCommit } = options
    if (!Object.hasOwn(ISOLATIONS, isolation)) {
      throw new ConfigurationError(`isolation is one of ${Object.keys(ISOLATIONS).join(', ')}, not ${JSON.stringify(isolation)}.`)
    }
    if (!Array.isArray(prefetch)) throw new ConfigurationError('prefetch is a list of keys.')
    for (const key of prefetch) checkKey(key)
    if (signal !== undefined && !(signal instanceof AbortSignal)) throw new ConfigurationError('signal must be an AbortSignal.')
    if (!(maxTries === Infinity || (Number.isSafeInteger(maxTries) && maxTries >= 1))) {
      throw new ConfigurationError(`maxTries is a whole number from 1, or Infinity, not ${String(maxTries)}.`)
    }
    if (onCommit !== undefined && typeof onCommit !== 'function') throw new ConfigurationError('onCommit must be a function.')
    const { store, name } = around.backend
    if (!store) throw new ConfigurationError(`The ${name} backend has no transactions yet.`)
    this.#around = around
    this.#store = store
    this.#apply = apply
    this.#isolation = isolation
    this.#prefetch = [...new Set(prefetch)]
    this.#maxTries = maxTries
    this.#signals = [signal, around.closing]
    this.#onCommit = onCommit
  }

  async result(): Promise<Awaited<R>> {
    let known: Snapshots = this.#prefetch.length > 0 ? await this.#read(this.#prefetch) : new Map()
    for (let tries = 1; ; tries++) {
      const attempt = new Try(this.#isolation, known, (keys, at) => {
        this.#throwIfAborted()
        return this.#inTime(this.#store.read(keys, at))
      })
      let result: Awaited<R> | undefined
      let thrown: { readonly error: unknown } | undefined
      try {
        result = await this.#apply(attempt)
      } catch (error) {
        thrown = { error }
      }
      this.#throwIfAborted()
      const wanted = [...new Set([...this.#prefetch, ...attempt.end()])]
      // Whatever `apply` has made of a read that failed: what it writes rests on nothing.
      if (attempt.failure) throw attempt.failure.error
      if (attempt.isStale) {
        known = await this.#read(wanted)
      } else if (thrown) {
        throw thrown.error
      } else {
        const state = await this.#commit(attempt, wanted)
        if (state.status === 'committed') {
          this.#onCommit?.({ revision: state.revision, tries })
          return result as Awaited<R>
        }
        known = snapshotOf(wanted, state)
      }
      if (tries >= this.#maxTries) {
        const count = tries === 1 ? 'its only try' : `each of ${tries} tries`
        throw new ConflictError(`The transaction met a conflict in ${count}: others have changed what it read. Nothing was written.`)
      }
      await this.#pause(tries)
    }
  }

  async #commit(attempt: Try, reads: readonly string[]): Promise<Exclude<CommitState, { status: 'unknown' }>> {
    const commit = { ...attempt.toCommit(), reads }
    const seen = attempt.seenAt(commit)
    if (seen !== undefined) return { status: 'committed', revision: seen }
    const state = await this.#sent(commit)
    if (state.status !== 'unknown') return state
    throw new BackendError(`It is unknown whether the transaction was committed, and it is not applied again: ${state.error.message}`, {
      cause: state.error,
      transient: false,
    })
  }

  /** With no answer in time there is no telling. */
  #sent(commit: Commit): Promise<CommitState> {
    const { answers, backend } = this.#around
    return new Promise((resolve, reject) => {
      const unanswered = answers.expect(() => resolve({ status: 'unknown', error: noAnswer(backend) }))
      this.#store.commit(commit).then(
        (state) => {
          answers.forget(unanswered)
          resolve(state)
        },
        (error: unknown) => {
          answers.forget(unanswered)
          reject(asHoldfastError(error, backend))
        },
      )
    })
  }

  async #read(keys: readonly string[]): Promise<Snapshots> {
    return snapshotOf(keys, (await this.#inTime(this.#store.read(keys)))!)
  }

  #inTime<T>(request: Promise<T>): Promise<T> {
    return this.#around.answers.inTime(request)
  }

  async #pause(tries: number): Promise<void> {
    const mostMs = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (tries - 1))
    const pausedMs = Math.random() * mostMs
    await new Promise<void>((resolve) => {
      // Whoever aborts is answered at once; this one must not keep the process alive after that.
      const done = () => {
        timer.cancel()
        for (const stop of stops) stop()
        resolve()
      }
      const timer = this.#around.clock.timer(pausedMs, done, 'awaited')
      const stops = this.#signals.map((signal) => (signal ? onAbort(signal, done) : () => {}))
    })
    this.#throwIfAborted()
  }

  #throwIfAborted(): void {
    for (const signal of this.#signals) signal?.throwIfAborted()
  }
}

/** One application of the function. */
class Try implements Transaction {
  readonly #isolation: Isolation
  readonly #fetch: Fetch
  /** What came along before anybody asked for it. */
  readonly #known: Snapshots
  readonly #reads: Snapshots = new Map()
  /** Null: deleted. */
  readonly #writes = new Map<string, Uint8Array | null>()
  /** The revision of the first read. */
  #base: bigint | undefined
  /** What is asked for in one turn is fetched together, and one fetch after the other: the first decides as of when. */
  #wanted = new Set<string>()
  #fetching: Promise<void> = Promise.resolve()
  #isOver = false
  #missed: readonly string[] = []
  /** What it wanted to read has changed since its first read. */
  isStale = false
  failure: { readonly error: unknown } | undefined

  constructor(isolation: Isolation, known: Snapshots, fetch: Fetch) {
    this.#isolation = isolation
    this.#known = known
    this.#fetch = fetch
    this.#base = known.values().next().value?.asOf
  }

  get(...keys: readonly [string, ...string[]]): Promise<string> {
    return heard(this.#first(keys).then((value) => (value ? textOf(value) : '')))
  }

  getBytes(...keys: readonly [string, ...string[]]): Promise<Uint8Array | undefined> {
    return heard(this.#first(keys).then((value) => value && new Uint8Array(value)))
  }

  put(key: string, value: string | Uint8Array): void {
    this.#check([key])
    this.#writes.set(key, bytesOf(value))
  }

  del(key: string): void {
    this.#check([key])
    this.#writes.set(key, null)
  }

  rev(key: string): Promise<bigint> {
    return heard(this.#rev(key))
  }

  async #rev(key: string): Promise<bigint> {
    this.#check([key])
    return (await this.#read([key])).entry?.revision ?? 0n
  }

  async #first(keys: readonly string[]): Promise<Uint8Array | undefined> {
    this.#check(keys)
    const written = keys.find((key) => this.#writes.has(key))
    if (written !== undefined) return this.#writes.get(written) ?? undefined
    return (await this.#read(keys)).entry?.value
  }

  async #read(keys: readonly string[]): Promise<Known> {
    for (const key of keys) {
      const known = this.#known.get(key)
      if (known && !this.#reads.has(key)) this.#reads.set(key, known)
    }
    const read = keys.find((key) => this.#reads.has(key))
    if (read !== undefined) return this.#reads.get(read)!
    for (const key of keys) this.#wanted.add(key)
    await (this.#fetching = this.#fetching.then(() => this.#fetchWanted()))
    return this.#reads.get(keys[0]!)!
  }

  async #fetchWanted(): Promise<void> {
    const keys = [...this.#wanted].filter((key) => !this.#reads.has(key))
    this.#wanted.clear()
    if (keys.length === 0) return
    const at = ISOLATIONS[this.#isolation].isOfOneMoment ? this.#base : undefined
    try {
      const snapshot = await this.#fetch(keys, at)
      if (!snapshot) {
        this.isStale = true
        this.#missed = keys
        throw new ConflictError('What this transaction wants to read has changed since its first read. It is applied again.')
      }
      this.#base ??= snapshot.revision
      for (const [key, known] of snapshotOf(keys, snapshot)) this.#reads.set(key, known)
    } catch (error) {
      if (!this.isStale) this.failure = { error }
      throw error
    }
  }

  #check(keys: readonly string[]): void {
    if (this.#isOver) throw new ConfigurationError('This transaction is over: await whatever belongs to it before its function returns.')
    if (keys.length === 0) throw new ConfigurationError('get() takes at least one key.')
    for (const key of keys) checkKey(key)
  }

  /** Nothing is read or written any more. → the keys that it has read, or wanted to: the next try will, too */
  end(): readonly string[] {
    this.#isOver = true
    return [...this.#reads.keys(), ...this.#missed]
  }

  toCommit(): Omit<Commit, 'reads'> {
    const { comparesReads, comparesWrites } = ISOLATIONS[this.#isolation]
    const comparisons: Comparison[] = []
    if (comparesReads) {
      for (const [key, { entry }] of this.#reads) comparisons.push({ key, is: 'equal', revision: entry?.revision ?? 0n })
    }
    if (comparesWrites && this.#base !== undefined) {
      // Of what was read and is written, more is asked already.
      for (const key of this.#writes.keys()) {
        if (!this.#reads.has(key)) comparisons.push({ key, is: 'at-most', revision: this.#base })
      }
    }
    const puts = []
    const deletes = []
    for (const [key, value] of this.#writes) {
      if (value) puts.push({ key, value })
      else deletes.push(key)
    }
    return { comparisons, puts, deletes }
  }

  /** Nothing is written, and what was read was there together at this revision: then there is nothing to commit. */
  seenAt({ comparisons, puts, deletes }: Commit): bigint | undefined {
    if (puts.length + deletes.length > 0) return undefined
    const base = this.#base ?? 0n
    const isOfOneMoment = ISOLATIONS[this.#isolation].isOfOneMoment || [...this.#reads.values()].every(({ asOf }) => asOf === base)
    return comparisons.length === 0 || isOfOneMoment ? base : undefined
  }
}

function snapshotOf(keys: readonly string[], { revision, values }: Snapshot): Snapshots {
  return new Map(keys.map((key, i) => [key, { entry: values[i], asOf: revision }]))
}

/** Rejects at once when one of them is aborted. What `work` does after that is not awaited. */
async function untilAborted<T>(work: () => Promise<T>, signals: readonly (AbortSignal | undefined)[]): Promise<T> {
  for (const signal of signals) signal?.throwIfAborted()
  const stops: (() => void)[] = []
  try {
    return await new Promise<T>((resolve, reject) => {
      for (const signal of signals) {
        if (signal) stops.push(onAbort(signal, () => reject(signal.reason)))
      }
      work().then(resolve, reject)
    })
  } finally {
    for (const stop of stops) stop()
  }
}

/** A read that nobody awaits fails the transaction, but not the process. */
function heard<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {})
  return promise
}

function bytesOf(value: string | Uint8Array): Uint8Array {
  if (value instanceof Uint8Array) return Uint8Array.from(value)
  if (typeof value !== 'string') throw new ConfigurationError(`A value is a string or bytes, not a ${typeof value}. jsonKey() is for others.`)
  if (/\p{Surrogate}/u.test(value)) throw new ConfigurationError('A value must be well-formed Unicode; this one has a lone surrogate.')
  return Buffer.from(value)
}

function textOf({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString()
}

/** A key whose value is JSON, and of which type. */
export interface JsonKey<Value> {
  readonly key: string
  /** Undefined if there is none. */
  get(tx: Transaction): Promise<Value | undefined>
  put(tx: Transaction, value: Value): void
  del(tx: Transaction): void
}

/** Names a key together with the type of its value: `const stock = jsonKey<{ left: number }>('stock:42')`. */
export function jsonKey<Value>(key: string): JsonKey<Value> {
  checkKey(key)
  return {
    key,
    async get(tx) {
      const text = await tx.get(key)
      return text === '' ? undefined : (JSON.parse(text) as Value)
    },
    put(tx, value) {
      const text = JSON.stringify(value) as string | undefined
      if (text === undefined) throw new ConfigurationError(`The value of "${key}" must be a JSON value, not a ${typeof value}.`)
      tx.put(key, text)
    },
    del: (tx) => tx.del(key),
  }
}
