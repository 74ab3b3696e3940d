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
 *   orphaned    → left to expire, with the session that it was part of
 *
 *   held → releasing → released | unreleased;  unreleased → releasing | released;  held → released | lost | transferred | orphaned
 *
 * A hold that is released while others of this process wait can be handed over to the next of them, in memory: then the claim
 * goes on, with another hold.
 */
import type { Answers } from './answer.js'
import { EXACT_WITHIN_MS, type Backend, type ReleaseState, type Renewal, type RenewState } from './backend.js'
import type { Batcher, OwnClaim } from './batcher.js'
import type { Clock } from './clock.js'
import { deadlineOf } from './deadline.js'
import { LockNotHeldError, OwnershipLostError, type HoldfastError } from './errors.js'
import type { Events } from './events.js'
import type { Keeper } from './keeper.js'
import type { Linked } from './line.js'

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
  readonly answers: Answers
  readonly batcher: Batcher
  readonly clock: Clock
  readonly events: Events
  readonly keeper: Keeper
  withdraw(claim: OwnClaim, ttlMs?: number): void
  began(hold: Hold): void
  ended(hold: Hold): void
}

/** Whose hold it is: where others may wait for it. */
export interface HoldSeat {
  /** Whether anybody waits there. */
  readonly hasLine: boolean
  /** Gives it to the next in line, if that may be; the result tells that one of it. */
  handOver(hold: Hold, now: number): (() => void) | undefined
  /** So many wait for it elsewhere. */
  waiting(others: number): void
  contended(): void
  ended(hold: Hold): void
}

/** The store counts epochs; within one, the hold can be passed on this many times less one without asking it. */
export const TURNS = 1024

/** While a process serves its own in memory, it asks this often whether others wait. */
const LOOK_EVERY_MS = 100

export function fenceOf(epoch: bigint, turn = 0): bigint {
  return epoch * BigInt(TURNS) + BigInt(turn)
}

export class Hold implements Linked<Hold>, Renewal {
  ahead: Hold | undefined
  behind: Hold | undefined
  /** Who works under it. */
  holder: object | undefined
  readonly claim: OwnClaim
  readonly epoch: bigint
  readonly turn: number
  readonly acquiredAt: number
  readonly seat: HoldSeat | undefined
  /** A renewal is on its way. */
  awaitsRenewal = false
  /** How many commits that require it may yet be carried out: the store could not tell the next holder in memory from this one. */
  commits = 0
  readonly #around: HoldSurroundings
  readonly terms: HoldTerms
  #state: 'held' | 'releasing' | 'unreleased' | 'released' | 'lost' | 'transferred' | 'orphaned' = 'held'
  #ttlMs: number
  #deadline: number
  #renewAt: number
  /** When it was last extended: replies to renewals from before that no longer move the deadline. */
  #extendedAt = -Infinity
  #releasing: Promise<boolean> | undefined
  #extending: Promise<unknown> | undefined
  #shortenedAt = -Infinity
  #error: HoldfastError | undefined
  #onEnd: Set<(reason: HoldfastError) => void> | undefined

  constructor(
    claim: OwnClaim,
    { epoch, deadline, turn, now }: { readonly epoch: bigint; readonly deadline: number; readonly turn: number; readonly now: number },
    terms: HoldTerms,
    around: HoldSurroundings,
    seat?: HoldSeat,
  ) {
    this.claim = claim
    this.epoch = epoch
    this.turn = turn
    this.seat = seat
    this.acquiredAt = now
    this.#around = around
    this.terms = terms
    this.#ttlMs = claim.ttlMs
    this.#deadline = deadline
    this.#renewAt = terms.autoRenew ? this.#heardAt + this.renewEveryMs : Infinity
    around.began(this)
  }

  get fence(): bigint {
    return fenceOf(this.epoch, this.turn)
  }

  /** When the store's last word about it was asked for, from which the TTL is counted. That may be a while ago. */
  get #heardAt(): number {
    return this.#deadline - deadlineOf(0, this.#ttlMs)
  }

  get key(): string {
    return this.claim.resource
  }

  get backend(): Backend {
    return this.#around.backend
  }

  get ttlMs(): number {
    return this.#ttlMs
  }

  /** Then it is not what others have asked for. */
  get isExtended(): boolean {
    return this.#extendedAt > -Infinity
  }

  /** The moment it ends unless it is renewed before. */
  get endsAt(): number {
    return Math.min(this.#deadline, this.acquiredAt + (this.terms.maxHoldMs ?? Infinity))
  }

  get isHeld(): boolean {
    this.look()
    return this.#state === 'held'
  }

  /** As far as was noticed so far. */
  get isKept(): boolean {
    return this.#state === 'held'
  }

  get isGivenAway(): boolean {
    return this.#state === 'transferred' || this.#state === 'orphaned'
  }

  get isLost(): boolean {
    return this.#state === 'lost'
  }

  /** Why it ended, if not by its holder. */
  get error(): HoldfastError | undefined {
    return this.#error
  }

  /** How long it can be handed over for. */
  remainsFor(now: number): number {
    return this.#deadline - now
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
    this.lose(expired ? `it was not renewed within its TTL (${this.#ttlMs} ms)` : `maxHoldMs (${this.terms.maxHoldMs}) is over`)
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

  /** On a lease of the store's own it may be another's when it is lost, who has the same lease: whoever still has that lets go of it. */
  letGo(): void {
    if (this.isLost && this.#isOnLease) this.#around.withdraw(this.claim, this.#ttlMs)
  }

  get #isOnLease(): boolean {
    return this.claim.lease !== undefined && this.#around.backend.leaseTtlMs !== undefined
  }

  lose(why: string): void {
    if (this.#state !== 'held') return
    this.#lost(why)
    // If the store still counts it as ours, the next in line need not wait for its TTL.
    if (!this.#isOnLease) this.#around.withdraw(this.claim, this.#ttlMs)
    this.seat?.ended(this)
  }

  #lost(why: string): void {
    const error = new OwnershipLostError(this.key, why)
    this.#end('lost')
    this.#abort(error)
    this.#around.events.emit('lost', this.key, { fence: this.fence, heldMs: this.#heldMs(), error })
  }

  #end(state: 'released' | 'lost' | 'transferred' | 'orphaned'): void {
    this.#state = state
    this.#around.ended(this)
  }

  /** What it is part of is closing: whoever works under this hold is told before it is released. */
  closing(reason: HoldfastError): void {
    if (this.#state === 'held') this.#abort(reason)
  }

  /** Leaves it to expire: nobody renews or releases it any more. */
  orphan(reason: HoldfastError): void {
    if (this.#state !== 'held') return
    this.#end('orphaned')
    this.#abort(reason)
    this.#around.events.emit('lost', this.key, { fence: this.fence, heldMs: this.#heldMs(), error: reason })
    this.seat?.ended(this)
  }

  /** True if it was ours. Rejects if the store could not be asked; then it can be tried again. */
  release(): Promise<boolean> {
    return this.handOver() ? HANDED_OVER : this.#giveBack()
  }

  /** Releases it in memory, if that can be: to the next in line here. */
  handOver(): boolean {
    if (this.#state !== 'held' || !this.seat?.hasLine || this.commits > 0) return false
    const now = this.#around.clock.now()
    const tellNext = now < this.endsAt ? this.seat.handOver(this, now) : undefined
    if (!tellNext) return false
    // It is over before the next hears of it: at no moment can anybody find two who hold.
    this.#end('released')
    this.#emitReleased()
    tellNext()
    return true
  }

  /** The claim goes on with whoever is next; called in the course of a release. */
  passOn(terms: HoldTerms, now: number): Hold {
    const { claim, epoch, turn } = this
    const successor = new Hold(claim, { epoch, deadline: this.#deadline, turn: turn + 1, now }, terms, this.#around, this.seat)
    successor.awaitsRenewal = this.awaitsRenewal
    // Else each of a quick succession of holds would ask as if no answer were on its way.
    if (turn > 0 || this.awaitsRenewal) {
      successor.#renewAt = Math.min(this.#renewAt, successor.acquiredAt + successor.renewEveryMs)
    }
    return successor
  }

  #giveBack(): Promise<boolean> {
    // Whoever comes second finds it released; if the first failed, it is the second's turn to try.
    if (this.#releasing) return this.#releasing.then(() => false, () => this.release())
    const isRetry = this.#state === 'unreleased'
    if (!isRetry && !this.isHeld) return Promise.resolve(false)
    this.#state = 'releasing'
    this.#renewAt = Infinity
    this.#releasing = this.#release(isRetry)
    this.seat?.ended(this)
    return this.#releasing
  }

  async #release(isRetry: boolean): Promise<boolean> {
    const { answers, batcher, keeper } = this.#around
    try {
      const state = await answers.of<ReleaseState>((answered, failed) => batcher.release({ item: this.claim, answered, failed }))
      this.#releasing = undefined
      if (state.status === 'failed') throw state.error
      // It was certainly ours when a release was first sent; one that failed may have released it.
      const ours = state.status !== 'not-held' || isRetry
      if (ours) {
        this.#end('released')
        this.#emitReleased()
      } else {
        this.#lost('the store said so when it was released')
      }
      return ours
    } catch (error) {
      this.#releasing = undefined
      this.#state = 'unreleased'
      keeper.schedule(this.endsAt)
      throw error
    }
  }

  #emitReleased(): void {
    const { events } = this.#around
    if (events.hears('released')) events.emit('released', this.key, { fence: this.fence, heldMs: this.#heldMs() })
  }

  /** Gives it up without waiting for the store, after a release that failed. */
  abandon(): void {
    if (this.#state !== 'unreleased') return
    this.#around.withdraw(this.claim, this.#ttlMs)
    this.#end('released')
  }

  /** Sets what is left, and the TTL of later renewals. */
  async extend(wantedMs: number): Promise<void> {
    this.assertHeld()
    const { answers, backend, batcher, clock } = this.#around
    const ttlMs = Math.max(wantedMs, backend.traits.minTtlMs)
    // One after the other, so that the store's word and ours are about the same extension.
    const extending = (this.#extending ?? Promise.resolve()).then(async () => {
      // A shortening may still be on its way a second time; until it is too late for that, nothing longer is promised.
      const waitMs = ttlMs > this.#ttlMs ? this.#shortenedAt + EXACT_WITHIN_MS - clock.now() : 0
      if (waitMs > 0) await new Promise<void>((resume) => clock.timer(waitMs, resume, 'awaited'))
      this.assertHeld()
      const sentAt = clock.now()
      const before = this.#ttlMs
      if (ttlMs < before) this.#shortenedAt = sentAt
      this.#extendedAt = sentAt
      this.#ttlMs = ttlMs
      this.#deadline = Math.min(this.#deadline, deadlineOf(sentAt, ttlMs))
      this.renewAgainAt(sentAt + this.renewEveryMs)
      this.#around.keeper.schedule(this.dueAt())
      const renewal = { claim: this.claim, ttlMs, exact: true }
      let state: RenewState
      try {
        state = await answers.of<RenewState>((answered, failed) => batcher.renew({ item: renewal, answered, failed }))
        if (state.status === 'failed') throw state.error
      } catch (error) {
        // Renewals that ask for it once more would be refused as it was.
        if (ttlMs > before) this.#goOnWith(before)
        throw error
      }
      if (state.status === 'revoked') this.lose('it was revoked')
      if (state.status === 'lost') this.lose('it expired or was taken away')
      this.assertHeld()
      if (state.status === 'held') this.#extended(sentAt, state.waiting)
    })
    this.#extending = extending.catch(() => {})
    return extending
  }

  #goOnWith(ttlMs: number): void {
    this.#ttlMs = ttlMs
    this.renewAgainAt(this.#heardAt + this.renewEveryMs)
    this.#around.keeper.schedule(this.dueAt())
  }

  /** Asks the store whether it is still ours. */
  async check(): Promise<boolean> {
    if (!this.isHeld) return false
    const { answers, batcher, clock } = this.#around
    const sentAt = clock.now()
    const renewal = { claim: this.claim, ttlMs: this.#ttlMs, exact: false, counting: true }
    const state = await answers.of<RenewState>((answered, failed) => batcher.renew({ item: renewal, answered, failed }))
    if (state.status === 'failed') throw state.error
    if (state.status === 'held') this.renewed(sentAt, state.waiting)
    else this.lose(state.status === 'revoked' ? 'it was revoked' : 'it expired or was taken away')
    return this.isHeld
  }

  /** Gives the hold away: from now on it is for whoever adopts it to renew and release. */
  transferred(): void {
    this.assertHeld()
    this.#end('transferred')
    this.#around.events.emit('transferred', this.key, { fence: this.fence, heldMs: this.#heldMs() })
    this.seat?.ended(this)
  }

  // For the keeper, who has it renewed as it is.

  get exact(): boolean {
    return false
  }

  get counting(): boolean {
    return this.isPassedOn
  }

  dueAt(): number {
    if (this.#state === 'releasing') return Infinity
    return this.#state === 'held' ? Math.min(this.#renewAt, this.endsAt) : this.endsAt
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
    if (this.terms.autoRenew) this.#renewAt = Math.min(this.#renewAt, at)
  }

  renewed(sentAt: number, waiting: number | undefined): void {
    if (sentAt > this.#extendedAt) this.#extended(sentAt, waiting)
    else if (waiting !== undefined) this.seat?.waiting(waiting)
  }

  #extended(sentAt: number, waiting: number | undefined): void {
    if (waiting !== undefined) this.seat?.waiting(waiting)
    this.#deadline = Math.max(this.#deadline, deadlineOf(sentAt, this.#ttlMs))
    if (this.terms.autoRenew) this.#renewAt = sentAt + this.renewEveryMs
    this.#around.keeper.schedule(this.dueAt())
  }

  /** It is one of a row that is handed over in memory: then it has to be known whether others wait elsewhere. */
  get isPassedOn(): boolean {
    return this.turn > 0 && this.seat !== undefined && this.seat.hasLine
  }

  /** Somebody has come to wait for it here. */
  waitedFor(): void {
    if (!this.isPassedOn) return
    this.renewAgainAt(this.#heardAt + LOOK_EVERY_MS)
    this.#around.keeper.schedule(this.dueAt())
  }

  get renewEveryMs(): number {
    const { renewEveryMs } = this.terms
    const everyMs = renewEveryMs !== undefined && renewEveryMs < this.#ttlMs ? renewEveryMs : this.#ttlMs / 3
    return this.isPassedOn ? Math.min(everyMs, LOOK_EVERY_MS) : everyMs
  }

  #heldMs(): number {
    return this.#around.clock.now() - this.acquiredAt
  }

  #abort(error: HoldfastError): void {
    this.#error ??= error
    for (const listener of this.#onEnd ?? []) listener(this.#error)
  }
}

const HANDED_OVER = Promise.resolve(true)
