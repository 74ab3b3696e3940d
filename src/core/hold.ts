/**
 * What one process holds, and until when.
 *
 *   held        → renewed by the keeper, if it is to be
 *   releasing   → a release is on its way; no longer renewed, and not lost any more either: the guarded work is over
 *   unreleased  → the release failed, and may have been carried out all the same: not held any more, but can be tried again
 *                 until its TTL has ended it
 *   released    → by its holder
 *   lost        → its deadline passed, or the store says that it is not ours
 *   transferred → given away; not ours to renew or release any more
 *
 *   held → releasing → released | unreleased;  unreleased → releasing | released;  held → lost | transferred
 */
import { answered, answeredOne } from './answer.js'
import { EXACT_WITHIN_MS, type Backend, type Claim } from './backend.js'
import type { Grant } from './claim-loop.js'
import type { Clock } from './clock.js'
import { deadlineOf } from './deadline.js'
import { LockNotHeldError, ManagerClosedError, OwnershipLostError, type HoldfastError } from './errors.js'
import type { Events } from './events.js'
import type { Keeper } from './keeper.js'

export interface HoldTerms {
  readonly autoRenew: boolean
  /** Default: a third of the TTL. */
  readonly renewEveryMs: number | undefined
  /** The hold ends after this long, renewed or not. */
  readonly maxHoldMs: number | undefined
}

/** What a hold needs from the process around it. */
export interface HoldSurroundings {
  readonly backend: Backend
  readonly clock: Clock
  readonly events: Events
  readonly keeper: Keeper
  withdraw(claim: Claim, unanswered?: Promise<unknown>, ttlMs?: number): void
  ended(hold: Hold): void
}

/** The store counts epochs; within one, the hold can be passed on this many times less one without asking it. */
export const TURNS = 1024

export function fenceOf(epoch: bigint, turn = 0): bigint {
  return epoch * BigInt(TURNS) + BigInt(turn)
}

export class Hold {
  readonly claim: Claim
  readonly epoch: bigint
  readonly turn: number
  readonly fence: bigint
  readonly acquiredAt: number
  /** A renewal is on its way. */
  awaitsRenewal = false
  readonly #around: HoldSurroundings
  readonly #options: HoldTerms
  #state: 'held' | 'releasing' | 'unreleased' | 'released' | 'lost' | 'transferred' = 'held'
  #ttlMs: number
  #deadline: number
  #renewAt: number
  /** Grows with every extend: replies to renewals under earlier terms no longer move the deadline. */
  #terms = 0
  #unanswered: Promise<unknown> | undefined
  #releasing: Promise<boolean> | undefined
  #extending: Promise<unknown> = Promise.resolve()
  #shortenedAt = -Infinity
  #error: HoldfastError | undefined
  #onEnd: Set<(reason: HoldfastError) => void> | undefined

  constructor(claim: Claim, grant: Grant, turn: number, options: HoldTerms, around: HoldSurroundings) {
    this.claim = claim
    this.epoch = grant.epoch
    this.turn = turn
    this.fence = fenceOf(grant.epoch, turn)
    this.#around = around
    this.#options = options
    this.#ttlMs = claim.ttlMs
    this.#deadline = grant.deadline
    this.#unanswered = grant.unanswered
    this.acquiredAt = around.clock.now()
    // Counted from when the TTL began, which may be a while ago: a slow reply must not make the first renewal too late.
    this.#renewAt = options.autoRenew ? grant.deadline - deadlineOf(0, this.#ttlMs) + this.renewEveryMs : Infinity
    around.keeper.add(this)
  }

  get key(): string {
    return this.claim.resource
  }

  get ttlMs(): number {
    return this.#ttlMs
  }

  get terms(): number {
    return this.#terms
  }

  /** The moment it ends unless it is renewed before. */
  get endsAt(): number {
    return Math.min(this.#deadline, this.acquiredAt + (this.#options.maxHoldMs ?? Infinity))
  }

  get isHeld(): boolean {
    this.look()
    return this.#state === 'held'
  }

  /** As far as was noticed so far. */
  get isKept(): boolean {
    return this.#state === 'held'
  }

  get isLost(): boolean {
    return this.#state === 'lost'
  }

  /** Why it ended, if not by its holder. */
  get error(): HoldfastError | undefined {
    return this.#error
  }

  get remainingMs(): number {
    return this.isHeld ? Math.max(0, this.endsAt - this.#around.clock.now()) : 0
  }

  /** Timers can be late, a clock is not: whoever asks for the state looks first. */
  look(): void {
    if (this.#state !== 'held' && this.#state !== 'unreleased') return
    const now = this.#around.clock.now()
    if (now < this.endsAt) return
    if (this.#state === 'unreleased') return this.#end('released')
    const expired = now >= this.#deadline
    this.lose(expired ? `it was not renewed within its TTL (${this.#ttlMs} ms)` : `maxHoldMs (${this.#options.maxHoldMs}) is over`)
  }

  assertHeld(): void {
    this.look()
    if (this.#state === 'lost') throw this.#error!
    if (this.#state !== 'held') throw this.notHeld()
  }

  notHeld(): LockNotHeldError {
    const how = this.#state === 'transferred' ? 'it was transferred' : this.#state === 'unreleased' ? 'its release failed' : 'it was released'
    return new LockNotHeldError(this.key, `The lock on "${this.key}" is not held any more: ${how}.`)
  }

  /** Calls `listener` when the hold ends otherwise than by its holder; the result takes that back. */
  onEnd(listener: (reason: HoldfastError) => void): () => void {
    const listeners = (this.#onEnd ??= new Set())
    listeners.add(listener)
    return () => listeners.delete(listener)
  }

  lose(why: string): void {
    if (this.#state !== 'held') return
    this.#lost(why)
    // If the store still counts it as ours, the next in line need not wait for its TTL.
    this.#around.withdraw(this.claim, this.#unanswered, this.#ttlMs)
  }

  #lost(why: string): void {
    const error = new OwnershipLostError(this.key, why)
    this.#end('lost')
    this.#abort(error)
    this.#around.events.emit('lost', this.key, { fence: this.fence, heldMs: this.#heldMs(), error })
  }

  #end(state: 'released' | 'lost' | 'transferred'): void {
    this.#state = state
    this.#around.keeper.remove(this)
    this.#around.ended(this)
  }

  /** The manager is closing: whoever works under this hold is told before it is released. */
  closing(): void {
    if (this.#state === 'held') this.#abort(new ManagerClosedError())
  }

  /** True if it was ours. Rejects if the store could not be asked; then it can be tried again. */
  async release(): Promise<boolean> {
    if (this.#releasing) {
      // Whoever comes second finds it released; if the first failed, it is the second's turn to try.
      const released = await this.#releasing.then(
        () => true,
        () => false,
      )
      return released ? false : this.release()
    }
    const isRetry = this.#state === 'unreleased'
    if (!isRetry && !this.isHeld) return false
    this.#state = 'releasing'
    this.#renewAt = Infinity
    this.#releasing = this.#release(isRetry)
    try {
      return await this.#releasing
    } finally {
      this.#releasing = undefined
    }
  }

  async #release(isRetry: boolean): Promise<boolean> {
    const { backend, clock, keeper, events } = this.#around
    try {
      if (this.#unanswered) await answered(this.#unanswered, clock, backend).catch(() => {})
      const state = await answeredOne(backend.release([this.claim]), clock, backend)
      if (state.status === 'failed') throw state.error
      // It was certainly ours when a release was first sent; one that failed may have released it.
      const ours = state.status !== 'not-held' || isRetry
      if (ours) {
        this.#end('released')
        events.emit('released', this.key, { fence: this.fence, heldMs: this.#heldMs() })
      } else {
        this.#lost('the store said so when it was released')
      }
      return ours
    } catch (error) {
      this.#state = 'unreleased'
      keeper.schedule(this.endsAt)
      throw error
    }
  }

  /** Gives it up without waiting for the store, after a release that failed. */
  abandon(): void {
    if (this.#state !== 'unreleased') return
    this.#around.withdraw(this.claim, this.#unanswered, this.#ttlMs)
    this.#end('released')
  }

  /** Sets what is left, and the TTL of later renewals. */
  async extend(wantedMs: number): Promise<void> {
    this.assertHeld()
    const { backend, clock } = this.#around
    const ttlMs = Math.max(wantedMs, backend.traits.minTtlMs)
    // One after the other, so that the store's word and ours are about the same extension.
    const extending = this.#extending.then(async () => {
      // A shortening may still be on its way a second time; until it is too late for that, nothing longer is promised.
      const waitMs = ttlMs > this.#ttlMs ? this.#shortenedAt + EXACT_WITHIN_MS - clock.now() : 0
      if (waitMs > 0) await new Promise<void>((resume) => clock.timer(waitMs, resume, 'awaited'))
      this.assertHeld()
      const sentAt = clock.now()
      if (ttlMs < this.#ttlMs) this.#shortenedAt = sentAt
      this.#terms++
      this.#ttlMs = ttlMs
      this.#deadline = Math.min(this.#deadline, deadlineOf(sentAt, ttlMs))
      this.renewAgainAt(sentAt + this.renewEveryMs)
      this.#around.keeper.schedule(this.dueAt())
      const renewal = { claim: this.claim, ttlMs, exact: true }
      const state = await answeredOne(backend.renew([renewal]), clock, backend)
      if (state.status === 'failed') throw state.error
      if (state.status === 'revoked') this.lose('it was revoked')
      if (state.status === 'lost') this.lose('it expired or was taken away')
      this.assertHeld()
      this.renewed(sentAt, this.#terms)
    })
    this.#extending = extending.catch(() => {})
    return extending
  }

  /** Gives the hold away: from now on it is for whoever adopts it to renew and release. */
  transferred(): void {
    this.assertHeld()
    this.#end('transferred')
    this.#around.events.emit('transferred', this.key, { fence: this.fence, heldMs: this.#heldMs() })
  }

  // For the keeper.

  dueAt(): number {
    if (this.#state === 'releasing') return Infinity
    return Math.min(this.#renewAt, this.endsAt)
  }

  /** A little early, so that holds that were acquired one after another come to share a request. */
  isDue(now: number): boolean {
    return now >= this.#renewAt - this.renewEveryMs / 4
  }

  renewalSent(now: number): void {
    this.awaitsRenewal = true
    this.#renewAt = now + this.renewEveryMs
  }

  renewAgainAt(at: number): void {
    if (this.#options.autoRenew) this.#renewAt = Math.min(this.#renewAt, at)
  }

  renewed(sentAt: number, terms: number): void {
    if (terms !== this.#terms) return
    this.#deadline = Math.max(this.#deadline, deadlineOf(sentAt, this.#ttlMs))
    if (this.#options.autoRenew) this.#renewAt = sentAt + this.renewEveryMs
    this.#around.keeper.schedule(this.dueAt())
  }

  get renewEveryMs(): number {
    const { renewEveryMs } = this.#options
    return renewEveryMs !== undefined && renewEveryMs < this.#ttlMs ? renewEveryMs : this.#ttlMs / 3
  }

  #heldMs(): number {
    return this.#around.clock.now() - this.acquiredAt
  }

  #abort(error: HoldfastError): void {
    this.#error ??= error
    for (const listener of this.#onEnd ?? []) listener(this.#error)
  }
}
