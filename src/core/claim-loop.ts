/**
 * One claim on its way to the resource: the only wait loop in the code.
 *
 *   asking  → a request is on its way
 *   queued  → the claim has a place on the store; the loop sleeps until a wake-up, the moment the blocker could expire, or its
 *             heartbeat
 *   backing → the store failed; asked again after a pause
 *   done    → held, refused, failed or cancelled
 *
 *   asking → queued → asking → … → done;  asking → backing → asking
 *
 * Asking is idempotent by claim id, so it is the cure for everything: a lost reply, a lost wake-up, a grant whose time is not
 * known, a place that was passed over. A grant is accepted in every state but `done`: a push can overtake the reply.
 * Leaving by any other way than `held` withdraws the claim behind everybody's back.
 */
import { ANSWER_MS, asHoldfastError, noAnswer, type Answers, type Unanswered } from './answer.js'
import type { Backend, Blocker, ClaimState } from './backend.js'
import type { Batcher, Call, OwnClaim } from './batcher.js'
import type { Clock, Timer } from './clock.js'
import { deadlineOf, isTooShort, marginMs } from './deadline.js'
import { BackendError, type HoldfastError } from './errors.js'
import type { Linked } from './line.js'

export interface Pursuit {
  /** What becomes of a claim that cannot hold at once: with `leave`, one try is all. */
  readonly ifBusy: 'queue' | 'leave'
  /** How often to look where neither a wake-up nor an expiry will come. */
  readonly retryMs: number
  /** Whether what it holds is renewed by itself: then it need not be granted for its whole TTL. */
  readonly autoRenew: boolean
}

export interface Grant {
  readonly claim: OwnClaim
  readonly epoch: bigint
  readonly deadline: number
  /** How many wait behind it. */
  readonly waiting: number
  /** The moment at which this is told. */
  readonly now: number
}

/** What a loop needs from the process around it. */
export interface Surroundings {
  readonly backend: Backend
  readonly answers: Answers
  readonly batcher: Batcher
  readonly clock: Clock
  /** The claim got its place in the store's queue; called once. */
  queued(loop: ClaimLoop): void
  /** It speaks to the store. */
  asks(loop: ClaimLoop): void
  /** When it has to speak to the store to keep its process's places there. */
  heartbeatAt(loop: ClaimLoop): number
  /** The store could not be asked; it will be asked again. */
  failed(loop: ClaimLoop, error: HoldfastError): void
  /** Of what is held by that name: it may have been taken up. */
  epochOf(claim: OwnClaim): bigint | undefined
  /** A fresh claim in the same place, for one that cannot be used any more. */
  another(loop: ClaimLoop): OwnClaim
  /** The loop is over; called once, before the outcome. */
  done(loop: ClaimLoop): void
  /** Frees the claim in the background. */
  withdraw(claim: OwnClaim, ttlMs?: number): void
}

/** Told at the very moment, so that nothing can come between the end of the wait and what follows from it. */
export interface Outcome {
  held(grant: Grant): void
  refused(blocker: Blocker): void
  failed(error: HoldfastError): void
  /** It has to wait. */
  queued(blocker: Blocker): void
  /** Others wait for what it holds, or is about to. */
  contended(): void
  /** Nobody is to wait any longer. */
  cancel(reason: unknown): void
}

/** Past the blocker's expiry: the store counts whole milliseconds. */
const AFTER_EXPIRY_MS = 3
/** Those further back look later, so that an expiry brings one request and not a herd. */
const SPREAD_MS = 20
const MAX_SPREAD_MS = 500
const MAX_BACK_OFF_MS = 1_000
const LONGEST_SLEEP_MS = 600_000
const MAX_OVERDUE_MS = 60_000
const OUT_OF_TOUCH_MS = 1_000
const MAX_LATE_REPLIES = 3

export class ClaimLoop implements Linked<ClaimLoop> {
  claim: OwnClaim
  readonly outcome: Outcome
  ahead: ClaimLoop | undefined
  behind: ClaimLoop | undefined
  readonly #around: Surroundings
  readonly #pursuit: Pursuit
  readonly #startedAt: number
  #state: 'asking' | 'queued' | 'backing' | 'done' = 'asking'
  #timer: Timer | undefined
  #unanswered: Unanswered | undefined
  /** What is not answered yet. */
  #asked: Call<OwnClaim, ClaimState> | undefined
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

  /** `known`: what was in the way before, if those for whom it asks have waited already. */
  constructor(claim: OwnClaim, pursuit: Pursuit, around: Surroundings, outcome: Outcome, now: number, known?: Blocker) {
    this.claim = claim
    this.#blocker = known
    this.outcome = outcome
    this.#pursuit = pursuit
    this.#around = around
    this.#startedAt = now
  }

  /** In the run in which it was made: its time counts from then. */
  start(): void {
    this.#ask(this.#startedAt)
  }

  /** The store has told that the claim holds. */
  granted(epoch: bigint, since: number | undefined, waiting: number, forMs = this.claim.ttlMs): void {
    if (this.#state === 'done') return
    const isShort = forMs < this.claim.ttlMs && !this.#pursuit.autoRenew
    if (since === undefined || isShort || epoch <= this.#overEpoch) this.look()
    else this.#held(epoch, { since, forMs }, waiting, () => this.look())
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

  /** Nobody wants it any more. */
  cancel(): void {
    if (this.#finish()) this.#around.withdraw(this.claim)
  }

  /** What to tell somebody whose time to wait is over. Not to know is not the same as to be refused. */
  verdict(waitedMs: number): Blocker | HoldfastError {
    const { backend, clock } = this.#around
    const isOutOfTouch = this.#error !== undefined || (this.#asked !== undefined && clock.now() - this.#askedAt > OUT_OF_TOUCH_MS)
    // What was known before an outage is no answer either.
    return this.#blocker === undefined || isOutOfTouch ? (this.#error ?? noAnswer(backend, waitedMs)) : this.#blocker
  }

  /** What is in the way, as far as the store has told. */
  get blocker(): Blocker | undefined {
    return this.#blocker
  }

  #ask(sentAt = this.#around.clock.now()): void {
    this.#state = 'asking'
    this.#lookAgain = false
    const { backend, batcher } = this.#around
    this.#askedAt = sentAt
    this.#around.asks(this)
    this.#expectAnswer(sentAt)
    const { claim } = this
    const asked: Call<OwnClaim, ClaimState> = {
      item: claim,
      answered: (state) => {
        if (this.#asked === asked) this.#asked = undefined
        if (claim === this.claim) this.#heard(state, sentAt)
        else this.#heardTooLate(claim, state, undefined)
      },
      failed: (error) => {
        // Of one that was given up as overdue, no more need be said.
        if (this.#asked !== asked) return
        this.#asked = undefined
        if (this.#state !== 'done') this.#failedToAsk(asHoldfastError(error, backend))
      },
    }
    this.#asked = asked
    batcher.claim(asked, this.#pursuit.ifBusy)
  }

  #expectAnswer(now: number): void {
    this.#stopTimer()
    const overdue = () => this.#overdue()
    if (this.#overdueAsks === 0) this.#unanswered = this.#around.answers.expect(overdue, now)
    // Ever more patient, so that requests do not pile up behind one that hangs.
    else this.#setTimer(Math.min(MAX_OVERDUE_MS, ANSWER_MS * 2 ** this.#overdueAsks), overdue)
  }

  /**
   * It was granted, and taken away before we knew. (Only here is that certain: the store cannot tell it from an old request of a
   * claim whose holder is at work.) It goes, and another claim takes its place: whatever is still on its way about the first one
   * must not touch the second.
   */
  #startAfresh(): void {
    const { claim } = this
    this.claim = this.#around.another(this)
    // Only now: it takes back what of it is unsent, and that is no news for this one.
    this.#around.withdraw(claim)
    this.#ask()
  }

  #overdue(): void {
    const error = noAnswer(this.#around.backend)
    if (!this.#isPatient()) return this.#fail(error, true)
    this.#error = error
    this.#overdueAsks++
    this.#ask()
    // Last: whoever hears of it may end the wait.
    this.#around.failed(this, error)
  }

  #heard(state: ClaimState, sentAt: number): void {
    if (this.#state === 'done') return this.#heardTooLate(this.claim, state, this.#heldEpoch)
    this.#state = 'queued'
    switch (state.status) {
      case 'held':
        if (this.#lookAgain) this.#ask()
        else this.#held(state.epoch, { since: sentAt, forMs: this.claim.ttlMs }, state.waiting, () => this.#lateReply())
        break
      case 'refused':
        if (this.#finish()) this.outcome.refused(state)
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
        this.#waits(state)
    }
  }

  #waits(blocker: Blocker): void {
    const isNew = !this.#hasPlace
    this.#hasPlace = true
    if (isNew) this.#around.queued(this)
    if (this.#lookAgain) this.#ask()
    else this.#sleep()
    // Last: whoever hears of it may end the wait.
    if (isNew) this.outcome.queued(blocker)
  }

  /**
   * Nobody waits for this any more. If the request was carried out even later than that, the claim holds or waits anew and nobody
   * knows. What it held before is left alone: it may be another process's by now.
   */
  #heardTooLate(claim: OwnClaim, state: ClaimState, heldEpoch = this.#around.epochOf(claim)): void {
    const holds = state.status === 'held' && (heldEpoch === undefined || state.epoch > heldEpoch)
    // Waiting behind the very grant that it had itself: that was given away, and taken up as another claim.
    const waits = state.status === 'queued' && (heldEpoch === undefined || (state.holder?.epoch ?? 0n) >= heldEpoch)
    if (holds || waits) this.#around.withdraw(claim)
  }

  #isOver(epoch: bigint): void {
    if (epoch > this.#overEpoch) this.#overEpoch = epoch
  }

  #held(epoch: bigint, { since, forMs }: { since: number; forMs: number }, waiting: number, tooLate: () => void): void {
    const now = this.#around.clock.now()
    // No grant lasts longer than that from now, even if the store's clock was set forward since we compared ours with it.
    const deadline = Math.min(deadlineOf(since, forMs), now + forMs - marginMs(forMs))
    if (isTooShort(deadline - now, forMs)) return tooLate()
    this.#heldEpoch = epoch
    if (this.#finish()) this.outcome.held({ claim: this.claim, epoch, deadline, waiting, now })
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
    if (isUntold) ms = Math.min(ms, this.#pursuit.retryMs)
    // Somebody waits for it, so it keeps the process alive, whatever is known of how long that takes.
    this.#setTimer(Math.min(ms, LONGEST_SLEEP_MS), () => this.#ask())
  }

  #failedToAsk(error: HoldfastError): void {
    this.#error = error
    const transient = error instanceof BackendError && error.transient
    if (!transient || !this.#isPatient()) return this.#fail(error, transient || this.#hasPlace)
    this.#state = 'backing'
    const backOff = Math.min(MAX_BACK_OFF_MS, this.#pursuit.retryMs * 2 ** this.#failures++)
    this.#setTimer(backOff * (0.5 + Math.random() / 2), () => this.#ask())
    // Last: whoever hears of it may end the wait.
    this.#around.failed(this, error)
  }

  /** Before the first answer patience is short, so that a wrong address is noticed; after it, outages are waited out. */
  #isPatient(): boolean {
    if (this.#pursuit.ifBusy === 'leave') return false
    return this.#blocker !== undefined || this.#around.clock.now() - this.#startedAt < ANSWER_MS
  }

  #fail(error: HoldfastError, mayBeOnStore: boolean): void {
    if (!this.#finish()) return
    if (mayBeOnStore) this.#around.withdraw(this.claim)
    this.outcome.failed(error)
  }

  #finish(): boolean {
    if (this.#state === 'done') return false
    this.#state = 'done'
    this.#stopTimer()
    this.#around.done(this)
    return true
  }

  #setTimer(ms: number, task: () => void): void {
    this.#stopTimer()
    this.#timer = this.#around.clock.timer(ms, task, 'awaited')
  }

  #stopTimer(): void {
    this.#timer?.cancel()
    if (this.#unanswered) this.#around.answers.forget(this.#unanswered)
    this.#unanswered = undefined
  }
}
