/**
 * Software transactional memory, with the meaning that it has in etcd's client for Go. A function reads and writes keys; what it
 * writes is kept until it returns, and then committed all at once, if what it read still stands. If not, it is applied again.
 *
 * A try is reading    → `apply` runs; what it reads comes from the store, once for each key
 *             stale   → what it wants to read cannot be told any more as of its first read → another try
 *             failed  → a read failed, or `apply` threw → over: nothing is written
 *             commits → committed → over
 *                       conflict  → another try: the first time at once, with the values that the answer brought, later after a pause,
 *                                   with values that are read then
 *                       not held  → over: rejected, since what it requires will not be so again
 *                       unknown   → over: rejected, since to apply it again might be to do it twice
 *
 * In each of them an abort, or the manager's end, rejects at once; and once a commit was sent, it may have happened all the same.
 */
import { onAbort, pause } from '../core/abort.js'
import { asHoldfastError, noAnswer, type Answers } from '../core/answer.js'
import type { Backend, Commit, CommitState, VersionedStore } from '../core/backend.js'
import type { Clock } from '../core/clock.js'
import { BackendError, ConfigurationError, ConflictError, type HoldfastError } from '../core/errors.js'
import type { Hold } from '../core/hold.js'
import { checkKey } from '../core/key.js'
import { checkNames, checkSignal } from '../core/options.js'
import { ISOLATIONS, snapshotOf, Try, type Isolation, type Snapshots, type Transaction } from './transaction.js'

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

const STM_OPTIONS: readonly (keyof StmOptions)[] = ['isolation', 'prefetch', 'signal', 'maxTries', 'onCommit']
/** Before the third try and each after that: at random, up to as long as one, two, four, and then eight tries like the last take. */
const MOST_TRIES_PAUSED = 8
/** What `mostMs` of a pause is between. */
const LEAST_MS = 1
const LONGEST_MS = 100

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
    if (signal !== undefined) checkSignal(signal)
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
    const { clock } = this.#around
    let startedAt = clock.now()
    let known = await this.#read(this.#prefetch)
    for (let tries = 1; ; tries++) {
      this.#throwIfAborted()
      const attempt = new Try(this.#isolation, this.#around.backend, known, (keys, at) => {
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
      let brought: Snapshots | undefined
      if (attempt.isStale) {
        attempt.required()
      } else if (thrown) {
        throw thrown.error
      } else {
        const state = await this.#commit(attempt, tries === 1 ? wanted : [])
        if (state.status === 'committed') {
          this.#onCommit?.({ revision: state.revision, tries })
          return result as Awaited<R>
        }
        if (tries === 1) brought = snapshotOf(wanted, state)
      }
      if (tries >= this.#maxTries) {
        const count = tries === 1 ? 'its only try' : `each of ${tries} tries`
        throw new ConflictError(`The transaction met a conflict in ${count}: others have changed what it read. Nothing was written.`)
      }
      // What an answer has brought is tried at once, or not at all: where others write without a pause, whoever tries it after one is
      // always too late.
      if (tries > 1) await this.#pause(Math.min(2 ** (tries - 2), MOST_TRIES_PAUSED) * (clock.now() - startedAt))
      startedAt = clock.now()
      known = brought ?? (await this.#read(wanted))
    }
  }

  async #commit(attempt: Try, reads: readonly string[]): Promise<Exclude<CommitState, { status: 'unknown' | 'not-held' }>> {
    const holds = attempt.required()
    const commit = { ...attempt.toCommit(), reads, ...(holds.length > 0 && { holds: holds.map(({ claim, epoch }) => ({ claim, epoch })) }) }
    const seen = attempt.seenAt(commit)
    if (seen !== undefined) return { status: 'committed', revision: seen }
    const state = await this.#sent(commit, holds)
    if (state.status === 'not-held') throw denied(holds.find(({ claim }) => claim.id === state.claim.id)!)
    if (state.status !== 'unknown') return state
    throw new BackendError(`It is unknown whether the transaction was committed, and it is not applied again: ${state.error.message}`, {
      cause: state.error,
      transient: false,
    })
  }

  /** With no answer in time there is no telling. */
  #sent(commit: Commit, holds: readonly Hold[]): Promise<CommitState> {
    const { answers, backend } = this.#around
    for (const hold of holds) hold.commits++
    const settled = () => {
      for (const hold of holds) hold.commits--
    }
    return new Promise((resolve, reject) => {
      const unanswered = answers.expect(() => resolve({ status: 'unknown', error: noAnswer(backend) }))
      this.#store.commit(commit).then(
        (state) => {
          answers.forget(unanswered)
          if (state.status !== 'unknown') settled()
          resolve(state)
        },
        (error: unknown) => {
          answers.forget(unanswered)
          settled()
          reject(asHoldfastError(error, backend))
        },
      )
    })
  }

  async #read(keys: readonly string[]): Promise<Snapshots> {
    return keys.length === 0 ? new Map() : snapshotOf(keys, (await this.#inTime(this.#store.read(keys)))!)
  }

  #inTime<T>(request: Promise<T>): Promise<T> {
    return this.#around.answers.inTime(request)
  }

  #pause(mostMs: number): Promise<void> {
    return pause(this.#around.clock, Math.random() * Math.min(Math.max(mostMs, LEAST_MS), LONGEST_MS), ...this.#signals)
  }

  #throwIfAborted(): void {
    for (const signal of this.#signals) signal?.throwIfAborted()
  }
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

/** The store has said that it does not hold: it is that, unless it has ended otherwise meanwhile. */
function denied(hold: Hold): HoldfastError {
  hold.lose('the store said so when a transaction that requires it was to be committed')
  return hold.error ?? hold.notHeld()
}
