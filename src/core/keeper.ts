/**
 * Keeps everything that a manager holds: one timer and one renewal loop for all of it, in batched requests.
 *
 * Loss is decided here, from the local deadline alone, and never waits for a reply: a reply can only move the deadline.
 */
import { asHoldfastError, noAnswer } from './answer.js'
import type { Backend, RenewState } from './backend.js'
import { byPart, type Batcher, type OwnClaim } from './batcher.js'
import type { Clock, Timer } from './clock.js'
import type { HoldfastError } from './errors.js'
import type { Events } from './events.js'
import type { Hold } from './hold.js'
import { Line } from './line.js'

const MAX_BATCH = 1_000
const MIN_RETRY_MS = 20

export class Keeper {
  readonly #backend: Backend
  readonly #batcher: Batcher
  readonly #clock: Clock
  readonly #events: Events
  /** The hold that has the claim now. */
  readonly #holdOf: (claim: OwnClaim) => Hold | undefined
  readonly #holds = new Line<Hold>()
  #timer: Timer | undefined
  #timerAt = Infinity

  constructor(backend: Backend, batcher: Batcher, clock: Clock, events: Events, holdOf: (claim: OwnClaim) => Hold | undefined) {
    this.#backend = backend
    this.#holdOf = holdOf
    this.#batcher = batcher
    this.#clock = clock
    this.#events = events
  }

  all(): readonly Hold[] {
    return [...this.#holds]
  }

  add(hold: Hold): void {
    this.#holds.join(hold)
    this.schedule(hold.dueAt())
  }

  /** The timer is left alone: it finds out by itself that there is less to do. */
  remove(hold: Hold): void {
    this.#holds.leave(hold)
  }

  /** Makes sure that the keeper looks at `at`. */
  schedule(at: number): void {
    if (at >= this.#timerAt) return
    this.#timer?.cancel()
    this.#timerAt = at
    this.#timer = this.#clock.timer(at - this.#clock.now(), () => this.#beat(), 'background')
  }

  stop(): void {
    this.#timer?.cancel()
    this.#timerAt = Infinity
  }

  #beat(): void {
    this.#timerAt = Infinity
    const now = this.#clock.now()
    const due: Hold[] = []
    const over: Hold[] = []
    // Nobody is told of anything yet: whoever is may release others, and those would not be found any more.
    const next = this.#sort(now, due, over)
    if (next < Infinity) this.schedule(next)
    for (const part of byPart(due, this.#backend, ({ key }) => key)) {
      for (let i = 0; i < part.length; i += MAX_BATCH) this.#renew(part.slice(i, i + MAX_BATCH), now)
    }
    for (const hold of over) hold.look()
  }

  /** Finds what is due and what is over, and gives the moment at which the next will be. */
  #sort(now: number, due: Hold[], over: Hold[]): number {
    let next = Infinity
    for (let hold = this.#holds.first; hold; hold = hold.behind) {
      if (hold.endsAt <= now) {
        over.push(hold)
      } else if (hold.isKept && hold.isDue(now)) {
        due.push(hold)
        next = Math.min(next, now + hold.renewEveryMs, hold.endsAt)
      } else {
        next = Math.min(next, hold.dueAt())
      }
    }
    return next
  }

  #renew(holds: readonly Hold[], sentAt: number): void {
    for (const hold of holds) {
      if (hold.awaitsRenewal) this.#failed(hold, sentAt, noAnswer(this.#backend, Math.round(hold.renewEveryMs)))
      hold.renewalSent(sentAt)
    }
    this.#batcher.renewAll(holds).then(
      (states) => {
        for (let i = 0; i < holds.length; i++) this.#renewed(this.#current(holds[i]!), states[i]!, sentAt)
      },
      (error: unknown) => {
        const failed = { status: 'failed', error: asHoldfastError(error, this.#backend) } as const
        for (const hold of holds) this.#renewed(this.#current(hold), failed, sentAt)
      },
    )
  }

  /** By now another hold may have its claim. */
  #current(hold: Hold): Hold | undefined {
    return hold.isKept ? hold : this.#holdOf(hold.claim)
  }

  #renewed(hold: Hold | undefined, state: RenewState, sentAt: number): void {
    if (!hold) return
    hold.awaitsRenewal = false
    if (!hold.isKept) return
    switch (state.status) {
      case 'held':
        hold.renewed(sentAt, state.waiting)
        break
      case 'lost':
        hold.lose('it expired or was taken away')
        break
      case 'revoked':
        hold.lose('it was revoked')
        break
      case 'failed': {
        const now = this.#clock.now()
        this.#failed(hold, now, state.error)
        hold.renewAgainAt(now + Math.max(MIN_RETRY_MS, (hold.endsAt - now) / 5))
        this.schedule(hold.dueAt())
      }
    }
  }

  #failed({ key, fence, endsAt }: Hold, now: number, error: HoldfastError): void {
    this.#events.emit('renew-failed', key, { fence, remainingMs: endsAt - now, error })
  }
}
