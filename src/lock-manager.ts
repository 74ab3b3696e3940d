/**
 * Where a call comes in: checks what it was given, looks whether this call chain holds the key already, and has the lock
 * acquired.
 */
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import type { BackendFactory } from './core/backend.js'
import { findInChain } from './core/chain.js'
import { Claims } from './core/claims.js'
import { systemClock, type Clock } from './core/clock.js'
import { ConfigurationError, LockAlreadyHeldError, LockNotHeldError, ManagerClosedError } from './core/errors.js'
import { fenceOf, Hold } from './core/hold.js'
import { checkKey } from './core/key.js'
import { logEvents, printWarnings } from './core/logger.js'
import {
  checkName,
  checkNames,
  checkTtl,
  resolveDefaults,
  resolveLockOptions,
  type JsonValue,
  type LockOptions,
  type ManagerOptions,
  type ResolvedLockOptions,
} from './core/options.js'
import { notAcquired } from './core/refusal.js'
import { adoptLock, HeldLock, LockHandle, ONE_OF_ONE, runUnder, type DistributedLock } from './primitives/lock.js'
import { LeaderElection, type ElectionOptions } from './primitives/leadership.js'
import { Sessions, type ManagerSurroundings, type Session, type SessionOptions } from './primitives/session.js'
import { StoredBoard } from './primitives/board.js'
import { stm, type StmOptions } from './primitives/stm.js'
import type { Transaction } from './primitives/transaction.js'

/** Who holds a resource, and who waits for it. */
export interface Resource {
  readonly key: string
  readonly limit: number
  readonly holders: readonly ResourceHolder[]
  readonly waiters: readonly { readonly owner: string; readonly take: number }[]
}

export interface ResourceHolder {
  /** Undefined for a client that is not holdfast. */
  readonly owner: string | undefined
  readonly fence: bigint | undefined
  readonly take: number
  readonly heldForMs: number | undefined
  readonly expiresInMs: number | undefined
  readonly type?: string
  readonly metadata?: JsonValue
}

/** Lost locks that were never released are remembered for `unlock`, the latest of them. */
const MAX_LOST = 1_000

/** Makes a manager on a backend. Touches no network: the first lock does. */
export function createLocks(backend: BackendFactory, options: ManagerOptions = {}): LockManager {
  return new LockManager(backend, options)
}

export class LockManager implements AsyncDisposable {
  /** Who holds this manager's locks, as others see it. */
  readonly owner: string
  readonly #claims: Claims
  /** What is asked for where a call does not say otherwise: by those who wait, and by those who try once. */
  readonly #wait: ResolvedLockOptions
  readonly #tryOnce: ResolvedLockOptions
  /** Locks that were lost and never released, for `unlock` to tell of: the latest, by key. */
  readonly #lost = new Map<string, HeldLock>()
  readonly #stopLog: () => void
  readonly #closing = new AbortController()
  readonly #around: ManagerSurroundings
  readonly #sessions: Sessions

  /** @internal */
  constructor(backend: BackendFactory, options: ManagerOptions, clock: Clock = systemClock()) {
    if (typeof backend !== 'function') {
      throw new ConfigurationError('createLocks() takes a backend, such as redisBackend(client) or memoryBackend().')
    }
    const { prefix = 'holdfast', owner = `${hostname()}:${process.pid}`, logger } = options
    checkName('prefix', prefix)
    checkName('owner', owner)
    this.#wait = resolveDefaults(options)
    this.#tryOnce = { ...this.#wait, waitMs: 0 }
    // Two processes can be given the same name, and one process can have two managers: each hears of its own claims only.
    this.owner = `${owner}#${randomBytes(4).toString('hex')}`
    this.#claims = new Claims(backend, { prefix, owner: this.owner, clock, retryMs: this.#wait.retryMs }, (hold) => this.#rememberLost(hold))
    const { retryMs } = this.#wait
    const board = this.#claims.backend.board ?? new StoredBoard(this.#claims, retryMs)
    this.#around = { claims: this.#claims, board, retryMs, closing: this.#closing.signal }
    this.#sessions = new Sessions(this.#around)
    this.#stopLog = logger ? logEvents(logger, this.owner) : printWarnings(this.owner)
  }

  /** Waits for the lock: without limit, or for `waitMs`, after which it rejects with `LockNotAcquiredError`. */
  lock(key: string, options?: LockOptions): Promise<DistributedLock> {
    return this.#lock(key, options)
  }

  /** The lock, or null if another holds it (after `waitMs`, if given). */
  async tryLock(key: string, options?: LockOptions): Promise<DistributedLock | null> {
    const request = this.#request(key, options, this.#tryOnce)
    const held = this.#heldByChain(key)
    if (held) return request.reentrant ? held.enter() : null
    return this.#claims.acquire(key, ONE_OF_ONE, request, (result) => (result instanceof Hold ? this.#keep(result).enter() : null))
  }

  /** Runs `fn` under the lock and returns what it returns. The lock is released whatever happens. */
  withLock<R>(key: string, fn: (lock: DistributedLock) => R): Promise<Awaited<R>>
  withLock<R>(key: string, options: LockOptions | undefined, fn: (lock: DistributedLock) => R): Promise<Awaited<R>>
  async withLock<R>(
    key: string,
    optionsOrFn: LockOptions | undefined | ((lock: DistributedLock) => R),
    maybeFn?: (lock: DistributedLock) => R,
  ): Promise<Awaited<R>> {
    const [options, fn] = typeof optionsOrFn === 'function' ? [undefined, optionsOrFn] : [optionsOrFn, maybeFn]
    if (typeof optionsOrFn === 'function' && maybeFn !== undefined) {
      throw new ConfigurationError('withLock(key, options, fn): the options come before the function.')
    }
    if (typeof fn !== 'function') throw new ConfigurationError('withLock(key, options?, fn) needs a function to run under the lock.')
    const handle = await this.#lock(key, options, options?.signal)
    try {
      return await runUnder(handle, () => fn(handle))
    } finally {
      await handle[Symbol.asyncDispose]()
    }
  }

  /**
   * Releases by name what this manager holds, whoever in this process has locked it: where several requests lock the same key,
   * release the handle instead. One level of it, if it was entered more than once.
   */
  async unlock(key: string): Promise<void> {
    checkKey(key)
    const holder = this.#claims.holdsOn(key).at(-1)?.holder
    const lock = holder instanceof HeldLock ? holder : this.#lost.get(key)
    const handle = lock?.handles.at(-1)
    if (!lock || !handle) throw new LockNotHeldError(key, `"${key}" is not locked by this manager. inspect() shows who holds it, forceRelease() takes it away.`)
    if (await handle.release()) return
    throw lock.hold.error ?? lock.hold.notHeld()
  }

  /** Every resource whose key begins with `prefix`, with its holders and waiters. */
  async *inspect(prefix = ''): AsyncIterable<Resource> {
    if (typeof prefix !== 'string') throw new ConfigurationError('inspect() takes the beginning of a key.')
    for await (const { key, limit, holders, waiters } of this.#claims.inspect(prefix)) {
      yield {
        key,
        limit,
        waiters,
        holders: holders.map(({ epoch, metadata, ...holder }) => ({
          ...holder,
          fence: epoch === undefined ? undefined : fenceOf(epoch),
          ...(metadata === undefined ? undefined : { metadata: parseMetadata(metadata) }),
        })),
      }
    }
  }

  /**
   * Takes a lock from whoever holds it; true if anybody did. The holder is told and lets go, or its TTL, which it can no longer
   * renew, ends it. With `now` the key is free at once, while the holder may still be at work.
   */
  async forceRelease(key: string, { now = false }: { readonly now?: boolean } = {}): Promise<boolean> {
    checkKey(key)
    const found = await this.#claims.revoke(key, now ? 'now' : 'told')
    if (found === 'outsider') {
      throw new LockNotHeldError(key, `"${key}" is held by a client that is not holdfast and cannot be told. Pass now: true to free it.`)
    }
    return found !== 'free'
  }

  /** Takes up a lock that another process gave away with `transfer()`. */
  async adopt(transfer: string): Promise<DistributedLock> {
    return this.#keep(await adoptLock(this.#claims, transfer)).enter()
  }

  /**
   * Applies a function that reads and writes keys, and commits what it wrote all at once; if others have changed what it read, it
   * is applied again. So it must do nothing but that. → what it returned
   */
  stm<R>(apply: (tx: Transaction) => R, options?: StmOptions): Promise<Awaited<R>> {
    const { backend, clock, answers } = this.#claims
    return stm({ backend, clock, answers, closing: this.#closing.signal }, apply, options)
  }

  /** What mutexes and elections live by: `new Mutex(session, prefix)`, `new Election(session, prefix)`. */
  session(options?: SessionOptions): Promise<Session> {
    return this.#sessions.open(options)
  }

  /** An election that manages its session by itself. */
  election(name: string, options: ElectionOptions = {}): LeaderElection {
    checkKey(name)
    checkNames('election', options, ['ttlMs'])
    const { ttlMs = this.#wait.ttlMs } = options
    checkTtl(ttlMs)
    return new LeaderElection(name, { ttlMs }, this.#sessions, this.#around)
  }

  /** Aborts the signals of all its locks, releases them, and ends every wait with `ManagerClosedError`. */
  async close(): Promise<void> {
    this.#closing.abort(new ManagerClosedError())
    try {
      await this.#claims.close()
    } finally {
      this.#stopLog()
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /** @internal Whether the store is there and fit for locks. */
  ready(): Promise<void> {
    return this.#claims.backend.ready()
  }

  /** @internal What keeps the store from being reached, if that is known. */
  get trouble(): Error | undefined {
    return this.#claims.backend.trouble
  }

  /** In callback forms, the handle's signal follows the caller's own. */
  #lock(key: string, options: LockOptions | undefined, signal?: AbortSignal): Promise<LockHandle> {
    try {
      const request = this.#request(key, options, this.#wait)
      const held = this.#heldByChain(key)
      if (held && !request.reentrant) throw new LockAlreadyHeldError(key)
      // At once: an outer release that comes later leaves it held for the inner one.
      if (held) return Promise.resolve(held.enter(signal))
      return this.#claims.acquire(key, ONE_OF_ONE, request, (result) => {
        if (result instanceof Hold) return this.#keep(result).enter(signal)
        // Whoever listens to events may have closed the manager by now.
        this.#claims.assertOpen()
        throw notAcquired(key, result, request.waitMs, this.owner)
      })
    } catch (error) {
      return Promise.reject(error)
    }
  }

  #request(key: string, options: LockOptions | undefined, defaults: ResolvedLockOptions): ResolvedLockOptions {
    checkKey(key)
    const request = options === undefined ? defaults : resolveLockOptions(options, defaults)
    this.#claims.assertOpen()
    request.signal?.throwIfAborted()
    return request
  }

  #heldByChain(key: string): HeldLock | undefined {
    const guards = (handle: LockHandle) => {
      const { claims, hold } = LockHandle.heldBy(handle)
      return claims === this.#claims && hold.key === key && hold.isHeld
    }
    const handle = findInChain((held): held is LockHandle => held instanceof LockHandle && guards(held))
    return handle && LockHandle.heldBy(handle)
  }

  #keep(hold: Hold): HeldLock {
    this.#claims.assertOpen()
    const lock = new HeldLock(this.#claims, hold)
    hold.holder = lock
    if (this.#lost.size > 0) this.#lost.delete(hold.key)
    // It can have ended in the meantime.
    if (hold.isLost) this.#rememberLost(hold)
    return lock
  }

  #rememberLost({ key, holder }: Hold): void {
    if (!(holder instanceof HeldLock)) return
    this.#lost.delete(key)
    this.#lost.set(key, holder)
    if (this.#lost.size > MAX_LOST) this.#lost.delete(this.#lost.keys().next().value!)
  }
}

/** Somebody else may have written there: then it is shown as it is. */
function parseMetadata(text: string): JsonValue {
  try {
    return JSON.parse(text) as JsonValue
  } catch {
    return text
  }
}
