/**
 * One claim on its way to the resource: the only wait loop in the code.
 *
 *   asking  → a request is on its way
 *   queued  → the claim has a place on the store; the loop sleeps until a wake-up, the moment the blocker could expire, its
 *             heartbeat, or the caller's deadline or abort
 *   backing → the store failed; asked again after a pause
 *   done    → held, refused, failed or cancelled
 *
 *   asking → queued → asking → … → done;  asking → backing → asking
 *
 * Asking is idempotent by claim id, so it is the cure for everything: a lost reply, a lost wake-up, a grant whose time is not
 * known, a place that was passed over. A grant is accepted in every state but `done`: a push can overtake the reply.
 * Leaving by any other way than `held` withdraws the claim behind the caller's back, after the request still on its way
 * (a withdrawal that overtakes its claim would leave a claim that nobody wants).
 */
import { onAbort } from './abort.js'
import { ANSWER_MS, asHoldfastError, noAnswer } from './answer.js'
import type { Backend, Blocker, Claim, ClaimState } from './backend.js'
import type { Clock, Timer } from './clock.js'
import { deadlineOf, isTooShort, marginMs } from './deadline.js'
import { BackendError, type HoldfastError } from './errors.js'

export interface Patience {
  /** 0 is one try; Infinity waits without limit. */
  readonly waitMs: number
  /** How often to look where neither a wake-up nor an expiry will come. */
  readonly retryMs: number
  /** Cancels the wait. */
  readonly signal: AbortSignal | undefined
}

export interface Grant {
  readonly epoch: bigint
  readonly deadline: number
  /** A request of this claim still on its way; a release has to come after it. */
  readonly unanswered: Promise<unknown> | undefined
}

/** What a loop needs from the process around it. */
export interface Surroundings {
  readonly backend: Backend
  readonly clock: Clock
  /** The claim got its place in the store's queue; called once. */
  queued(loop: ClaimLoop, blocker: Blocker): void
  /** It speaks to the store. */
  asks(loop: ClaimLoop): void
  /** When it has to speak to the store to keep its process's places there. */
  heartbeatAt(loop: ClaimLoop): number
  /** The store could not be asked; it will be asked again. */
  failed(loop: ClaimLoop, error: HoldfastError): void
  /** A fresh claim in the same place, for one that cannot be used any more. */
  another(loop: ClaimLoop): Claim
  /** The loop is over; called once, before the outcome. */
  done(loop: ClaimLoop): void
  /** Frees the claim in the background, after `unanswered`. */
  withdraw(claim: Claim, unanswered: Promise<unknown> | undefined): void
}

/** Told at the very moment, so that nothing can come between the end of the wait and what follows from it. */
export interface Outcome {
  held(grant: Grant): void
  refused(blocker: Blocker): void
  /** By the caller's signal, or because the manager closes. */
  cancelled(reason: unknown): void
  failed(error: HoldfastError): void
}

/** Past the blocker's expiry: the store counts whole milliseconds. */
const AFTER_EXPIRY_MS = 3
/** Those further back look later, so that an expiry brings one request and not a herd. */
const SPREAD_MS = 20
const MAX_SPREAD_MS = 500
const MAX_BACK_OFF_MS = 1_000
const MAX_OVERDUE_MS = 60_000
const OUT_OF_TOUCH_MS = 1_000
const MAX_LATE_REPLIES = 3

export class ClaimLoop {
  claim: Claim
  readonly #around: Surroundings
  readonly #patience: Patience
  readonly #outcome: Outcome
  readonly #startedAt: number
  #state: 'asking' | 'queued' | 'backing' | 'done' = 'asking'
  #timer: Timer | undefined
  #waitTimer: Timer | undefined
  #ignoreSignal: (() => void) | undefined
  #unanswered: Promise<unknown> | undefined
  /** Something happened while a request was on its way: its reply may be older than that. */
  #lookAgain = false
  #blocker: Blocker | undefined
  #blockedUntil = Infinity
  /** Grants up to this one are over, for a later holder was seen: news of them may still come. */
  #overEpoch = 0n
  #heldEpoch: bigint | undefined
  #hasPlace = false
  #error: HoldfastError | undefined
  #failures = 0
  #askedAt = 0
  #lateReplies = 0
  #overdueAsks = 0

  constructor(claim: Claim, patience: Patience, around: Surroundings, outcome: Outcome) {
    this.claim = claim
    this.#patience = patience
    this.#around = around
    this.#outcome = outcome
    this.#startedAt = around.clock.now()
  }

  start(): void {
    const { waitMs, signal } = this.#patience
    if (waitMs > 0 && waitMs < Infinity) this.#waitTimer = this.#around.clock.timer(waitMs, () => this.#waitIsOver(), 'awaited')
    if (signal) this.#ignoreSignal = onAbort(signal, () => this.cancel(signal.reason))
    this.#ask()
  }

  /** The store has told that the claim holds. */
  granted(epoch: bigint, since: number | undefined): void {
    if (this.#state === 'done') return
    if (since === undefined || epoch <= this.#overEpoch) this.look()
    else this.#held(epoch, since, () => this.look())
  }

  /** Something may have changed on the store. */
  look(): void {
    if (this.#state === 'asking') this.#lookAgain = true
    else if (this.#state !== 'done') this.#ask()
  }

  /** Those before it in this process have left: from now on its heartbeat counts. */
  beFirst(): void {
    if (this.#state === 'queued') this.#sleep()
  }

  cancel(reason: unknown): void {
    if (!this.#finish()) return
    this.#withdraw()
    this.#outcome.cancelled(reason)
  }

  #ask(): void {
    this.#state = 'asking'
    this.#lookAgain = false
    const { backend, clock } = this.#around
    const sentAt = clock.now()
    this.#askedAt = sentAt
    this.#around.asks(this)
    // Ever more patient, so that requests do not pile up behind one that hangs.
    this.#setTimer(Math.min(MAX_OVERDUE_MS, ANSWER_MS * 2 ** this.#overdueAsks), () => this.#overdue())
    const { claim } = this
    const request = backend.claim([claim], this.#patience.waitMs === 0 ? 'leave' : 'queue').then(
      ([state]) => {
        if (this.#unanswered === request) this.#unanswered = undefined
        if (claim === this.claim) this.#heard(state!, sentAt)
        else this.#heardTooLate(claim, state!, undefined)
      },
      (error: unknown) => {
        // Of one that was given up as overdue, no more need be said.
        if (this.#unanswered !== request) return
        this.#unanswered = undefined
        if (this.#state !== 'done') this.#failedToAsk(asHoldfastError(error, backend))
      },
    )
    this.#unanswered = request
  }

  /**
   * It was granted, and taken away before we knew. (Only here is that certain: the store cannot tell it from an old request of a
   * claim whose holder is at work.) It goes, and another claim takes its place: whatever is still on its way about the first one
   * must not touch the second.
   */
  #startAfresh(): void {
    this.#withdraw()
    this.claim = this.#around.another(this)
    this.#ask()
  }

  #overdue(): void {
    const error = noAnswer(this.#around.backend)
    if (!this.#isPatient()) return this.#fail(error, true)
    this.#error = error
    this.#overdueAsks++
    this.#around.failed(this, error)
    this.#ask()
  }

  #heard(state: ClaimState, sentAt: number): void {
    if (this.#state === 'done') return this.#heardTooLate(this.claim, state, this.#heldEpoch)
    this.#state = 'queued'
    switch (state.status) {
      case 'held':
        if (this.#lookAgain) this.#ask()
        else this.#held(state.epoch, sentAt, () => this.#lateReply())
        break
      case 'refused':
        if (this.#finish()) this.#outcome.refused(state)
        break
      case 'failed':
        this.#failedToAsk(state.error)
        break
      case 'revoked':
        this.#isOver(state.epoch)
        this.#startAfresh()
        break
      case 'queued':
        this.claim.place = state.place
        this.#blocker = state
        this.#blockedUntil = this.#around.clock.now() + (state.holder?.expiresInMs ?? Infinity)
        if (state.holder?.epoch !== undefined) this.#isOver(state.holder.epoch - 1n)
        this.#failures = 0
        this.#error = undefined
        this.#lateReplies = 0
        if (!this.#hasPlace) {
          this.#hasPlace = true
          this.#around.queued(this, state)
        }
        if (this.#lookAgain) this.#ask()
        else this.#sleep()
    }
  }

  /**
   * Nobody waits for this any more. If the request was carried out even later than that, the claim holds or waits anew and nobody
   * knows. What it held before is left alone: it may be another process's by now.
   */
  #heardTooLate(claim: Claim, state: ClaimState, heldEpoch: bigint | undefined): void {
    const holds = state.status === 'held' && (heldEpoch === undefined || state.epoch > heldEpoch)
    // Waiting behind the very grant that it had itself: that was given away, and taken up as another claim.
    const waits = state.status === 'queued' && (heldEpoch === undefined || (state.holder?.epoch ?? 0n) >= heldEpoch)
    if (holds || waits) this.#around.withdraw(claim, undefined)
  }

  #isOver(epoch: bigint): void {
    if (epoch > this.#overEpoch) this.#overEpoch = epoch
  }

  #held(epoch: bigint, since: number, tooLate: () => void): void {
    const { ttlMs } = this.claim
    const now = this.#around.clock.now()
    // No grant lasts longer than a TTL from now, even if the store's clock was set forward since we compared ours with it.
    const deadline = Math.min(deadlineOf(since, ttlMs), now + ttlMs - marginMs(ttlMs))
    if (isTooShort(deadline - now, ttlMs)) return tooLate()
    this.#heldEpoch = epoch
    if (this.#finish()) this.#outcome.held({ epoch, deadline, unanswered: this.#unanswered })
  }

  /** Asking again gives the claim its full TTL. If that is always late too, nobody would ever get to work. */
  #lateReply(): void {
    if (++this.#lateReplies < MAX_LATE_REPLIES) return this.#ask()
    const { backend } = this.#around
    const message = `Answers from ${backend.name} take longer than 80 % of ttlMs (${this.claim.ttlMs}): a longer TTL is needed.`
    this.#fail(new BackendError(message, { transient: true }), true)
  }

  #sleep(): void {
    this.#state = 'queued'
    const { holder, ahead } = this.#blocker!
    const now = this.#around.clock.now()
    let ms = this.#around.heartbeatAt(this) - now
    ms = Math.min(ms, this.#blockedUntil - now + AFTER_EXPIRY_MS + Math.min(ahead * SPREAD_MS, MAX_SPREAD_MS))
    // Nobody tells us when an outsider lets go.
    const isUntold = !holder || (holder.owner === undefined && ahead === 0) || this.#around.backend.traits.wakes === 'poll'
    if (isUntold) ms = Math.min(ms, this.#patience.retryMs)
    if (ms === Infinity) this.#timer?.cancel()
    else this.#setTimer(ms, () => this.#ask())
  }

  #failedToAsk(error: HoldfastError): void {
    this.#error = error
    const transient = error instanceof BackendError && error.transient
    if (!transient || !this.#isPatient()) return this.#fail(error, transient || this.#hasPlace)
    this.#around.failed(this, error)
    this.#state = 'backing'
    const backOff = Math.min(MAX_BACK_OFF_MS, this.#patience.retryMs * 2 ** this.#failures++)
    this.#setTimer(backOff * (0.5 + Math.random() / 2), () => this.#ask())
  }

  /** Before the first answer patience is short, so that a wrong address is noticed; after it, outages are waited out. */
  #isPatient(): boolean {
    if (this.#patience.waitMs === 0) return false
    return this.#blocker !== undefined || this.#around.clock.now() - this.#startedAt < ANSWER_MS
  }

  #waitIsOver(): void {
    const { backend, clock } = this.#around
    const isOutOfTouch = this.#error !== undefined || (this.#unanswered !== undefined && clock.now() - this.#askedAt > OUT_OF_TOUCH_MS)
    if (this.#blocker === undefined || isOutOfTouch) {
      // Not to know is not the same as to be refused, and what was known before an outage is no answer either.
      this.#fail(this.#error ?? noAnswer(backend, this.#patience.waitMs), true)
    } else if (this.#finish()) {
      this.#withdraw()
      this.#outcome.refused(this.#blocker)
    }
  }

  #fail(error: HoldfastError, mayBeOnStore: boolean): void {
    if (!this.#finish()) return
    if (mayBeOnStore) this.#withdraw()
    this.#outcome.failed(error)
  }

  #finish(): boolean {
    if (this.#state === 'done') return false
    this.#state = 'done'
    this.#timer?.cancel()
    this.#waitTimer?.cancel()
    this.#ignoreSignal?.()
    this.#around.done(this)
    return true
  }

  #withdraw(): void {
    this.#around.withdraw(this.claim, this.#unanswered)
  }

  #setTimer(ms: number, task: () => void): void {
    this.#timer?.cancel()
    this.#timer = this.#around.clock.timer(ms, task, 'awaited')
  }
}
