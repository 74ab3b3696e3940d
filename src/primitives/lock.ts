/**
 * An exclusive lock: a claim that takes the one slot there is. A `HeldLock` is the hold; each entry into it (the first, and
 * the reentrant ones) has a handle of its own, and the last handle to leave releases it.
 */
import { createHash } from 'node:crypto'
import { onAbort, truthfulController } from '../core/abort.js'
import { OwnClaim } from '../core/batcher.js'
import { findInChain, runInChain } from '../core/chain.js'
import type { Claims } from '../core/claims.js'
import { ConfigurationError, type HoldfastError } from '../core/errors.js'
import { TURNS, type Hold, type HoldTerms } from '../core/hold.js'
import { checkKey } from '../core/key.js'
import { checkTerms, checkTtl } from '../core/options.js'
import { parseToken, tokenOf } from '../core/token.js'

export interface DistributedLock extends AsyncDisposable {
  readonly key: string
  /** The lock's value on the store. Whoever knows it can release the lock. */
  readonly token: string
  /** Grows with every new holder of the key. Send it along with what you write, and have it checked where the data is. */
  readonly fence: bigint
  /** Aborts when the lock is lost (`OwnershipLostError`) or the manager closes; never on an ordinary release. */
  readonly signal: AbortSignal
  /** How long the lock is certainly held if it is not renewed; 0 when it is not held any more. */
  readonly remainingMs: number
  /** True if it was ours, false if it was lost or released before. Rejects if the store failed; then it can be tried again. */
  release(): Promise<boolean>
  /** Sets what is left of the TTL, and the TTL of later renewals. */
  extend(ttlMs: number): Promise<void>
  /** Throws unless the lock is held at this very moment. Makes no request. */
  assertHeld(): void
  /** Gives the lock away, as a string for `adopt()` in another process. It contains the token. */
  transfer(): string
  /** Without the token. */
  toJSON(): { readonly key: string; readonly fence: string }
}

/** What a lock takes. */
export const ONE_OF_ONE = { take: 1, limit: 1 }

const NOBODY: readonly LockHandle[] = []

export class HeldLock {
  readonly claims: Claims
  readonly hold: Hold
  /** In the order in which they entered. Almost always it is one: an array that can grow would be larger than all the rest. */
  handles: readonly LockHandle[] = NOBODY

  constructor(claims: Claims, hold: Hold) {
    this.claims = claims
    this.hold = hold
  }

  /** `signal`: in callback forms, the caller's own, which the handle's then follows too. */
  enter(signal?: AbortSignal): LockHandle {
    const handle = new LockHandle(this, signal)
    this.handles = this.handles.length === 0 ? [handle] : [...this.handles, handle]
    return handle
  }

  leave(handle: LockHandle): void {
    this.handles = this.handles.length === 1 ? NOBODY : this.handles.filter((one) => one !== handle)
  }
}

export class LockHandle implements DistributedLock {
  readonly #lock: HeldLock
  readonly #callerSignal: AbortSignal | undefined
  #left = false
  #controller: AbortController | undefined
  #stopListening: (() => void)[] | undefined

  constructor(lock: HeldLock, callerSignal: AbortSignal | undefined) {
    this.#lock = lock
    this.#callerSignal = callerSignal
  }

  /** Not a member, so that users do not see it. */
  static heldBy(handle: LockHandle): HeldLock {
    return handle.#lock
  }

  get key(): string {
    return this.#lock.hold.key
  }

  get token(): string {
    const { hold, claims } = this.#lock
    hold.claim.isTold = true
    return tokenOf(hold.claim.id, hold.epoch, claims.owner)
  }

  get fence(): bigint {
    return this.#lock.hold.fence
  }

  get remainingMs(): number {
    return this.#left ? 0 : this.#lock.hold.remainingMs
  }

  /** Made on first use: an eager one costs more than the lock. */
  get signal(): AbortSignal {
    this.#controller ??= this.#makeController()
    this.#look()
    return this.#controller.signal
  }

  assertHeld(): void {
    this.#lock.hold.assertHeld()
    if (this.#left) throw this.#lock.hold.notHeld()
  }

  release(): Promise<boolean> {
    if (this.#left) return NOT_OURS
    const { handles, hold } = this.#lock
    if (handles.length === 1 && !hold.handOver()) return this.#release()
    this.#leave()
    return handles.length === 1 || hold.isHeld ? OURS : NOT_OURS
  }

  async #release(): Promise<boolean> {
    const ours = await this.#lock.hold.release()
    if (!this.#left) this.#leave()
    return ours
  }

  async extend(ttlMs: number): Promise<void> {
    checkTtl(ttlMs)
    this.assertHeld()
    await this.#lock.hold.extend(ttlMs)
  }

  transfer(): string {
    this.assertHeld()
    const { hold, claims, handles } = this.#lock
    const { terms } = hold
    if (handles.length > 1) {
      throw new ConfigurationError(`"${this.key}" has been entered ${handles.length} times; only the last to leave can give it away.`)
    }
    if (hold.turn + 1 >= TURNS) {
      throw new ConfigurationError(`"${this.key}" has been passed on ${hold.turn} times in one hold: as often as a fence can tell.`)
    }
    const token = this.token
    const heldMs = claims.clock.now() - hold.acquiredAt
    hold.transferred()
    this.#leave()
    return encodeTransfer({
      prefix: claims.events.source.prefix,
      key: this.key,
      token,
      turn: hold.turn + 1,
      ttlMs: hold.ttlMs,
      autoRenew: terms.autoRenew,
      renewEveryMs: terms.renewEveryMs,
      maxHoldMs: terms.maxHoldMs === undefined ? undefined : Math.max(1, terms.maxHoldMs - heldMs),
      type: hold.claim.type,
      metadata: hold.claim.metadata,
    })
  }

  toJSON(): { key: string; fence: string } {
    return { key: this.key, fence: String(this.fence) }
  }

  /** Never rejects: what guarded work has done must not be hidden by a store that fails afterwards. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release()
    } catch (error) {
      const { claims, hold } = this.#lock
      claims.events.emit('release-failed', this.key, { error: error as HoldfastError })
      hold.abandon()
      if (!this.#left) this.#leave()
    }
  }

  #leave(): void {
    this.#left = true
    this.#lock.leave(this)
    for (const stop of this.#stopListening ?? []) stop()
    this.#stopListening = undefined
  }

  #makeController(): AbortController {
    const controller = truthfulController(() => this.#look())
    const { hold } = this.#lock
    if (hold.error) {
      controller.abort(hold.error)
    } else if (!this.#left) {
      this.#stopListening = [hold.onEnd((reason) => controller.abort(reason))]
      const signal = this.#callerSignal
      if (signal) this.#stopListening.push(onAbort(signal, () => controller.abort(signal.reason)))
    }
    return controller
  }

  #look(): void {
    if (this.#left) return
    this.#lock.hold.look()
    if (this.#callerSignal?.aborted) this.#controller?.abort(this.#callerSignal.reason)
  }
}

/** The lock that the running code is guarded by: the innermost, if there are several. */
export function currentLock(): DistributedLock | undefined {
  return findInChain((held): held is LockHandle => held instanceof LockHandle)
}

/** Runs `fn` as what this lock guards. */
export function runUnder<T>(lock: DistributedLock, fn: () => T): T {
  return runInChain(lock, fn)
}

const OURS = Promise.resolve(true)
const NOT_OURS = Promise.resolve(false)

interface Transfer extends HoldTerms {
  readonly prefix: string
  readonly key: string
  readonly token: string
  readonly turn: number
  readonly ttlMs: number
  readonly type: string | undefined
  readonly metadata: string | undefined
}

const TRANSFER_MARK = 'holdfast-transfer-1.'

function encodeTransfer(transfer: Transfer): string {
  return TRANSFER_MARK + Buffer.from(JSON.stringify(transfer)).toString('base64url')
}

/** Takes up a lock that another process gave away with `transfer()`. */
export async function adoptLock(claims: Claims, transfer: string): Promise<Hold> {
  const { prefix, key, token, turn, ttlMs, type, metadata, autoRenew, renewEveryMs, maxHoldMs } = decodeTransfer(transfer)
  const ours = claims.events.source.prefix
  if (prefix !== ours) throw new ConfigurationError(`This lock was transferred under the prefix "${prefix}"; this manager has "${ours}".`)
  const { claimId, epoch } = parseToken(token)!
  // A new holder has an id of its own. It is made from the token, so that one who asks again after a lost reply is the same.
  const id = createHash('sha256').update(`${token}\n${claims.owner}`).digest('hex').slice(0, 32)
  const terms = { autoRenew, renewEveryMs, maxHoldMs }
  const claim = new OwnClaim({ id, resource: key, ...ONE_OF_ONE, ttlMs, type, metadata })
  return claims.adopt(claim, { id: claimId, token }, epoch, turn, terms)
}

function decodeTransfer(text: string): Transfer {
  const bad = new ConfigurationError('This is not what transfer() gives.')
  if (typeof text !== 'string' || !text.startsWith(TRANSFER_MARK)) throw bad
  let transfer: Transfer
  try {
    transfer = JSON.parse(Buffer.from(text.slice(TRANSFER_MARK.length), 'base64url').toString()) as Transfer
  } catch {
    throw bad
  }
  if (typeof transfer !== 'object' || transfer === null) throw bad
  const { key, token, turn, type, metadata } = transfer
  checkKey(key)
  checkTerms(transfer)
  if (!Number.isInteger(turn) || turn < 1 || turn >= TURNS || typeof token !== 'string' || !parseToken(token)) throw bad
  if ((type !== undefined && typeof type !== 'string') || (metadata !== undefined && !isJson(metadata))) throw bad
  return transfer
}

function isJson(text: unknown): boolean {
  try {
    JSON.parse(text as string)
    return typeof text === 'string'
  } catch {
    return false
  }
}
