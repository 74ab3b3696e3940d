/**
 * Frees, in the background, claims that nobody wants any more: a wait that was cancelled, a grant that came too late, a hold
 * that was lost, a release that failed. Tried again for as long as the claim could be in somebody's way.
 */
import { answered, answeredOne } from './answer.js'
import type { Backend, Claim } from './backend.js'
import type { Clock } from './clock.js'
import { BackendError, type HoldfastError } from './errors.js'
import type { Events } from './events.js'

const FIRST_PAUSE_MS = 50
const MAX_PAUSE_MS = 1_000

export class Withdrawals {
  readonly #backend: Backend
  readonly #clock: Clock
  readonly #events: Events
  readonly #pending = new Set<Promise<void>>()
  #closed = false

  constructor(backend: Backend, clock: Clock, events: Events) {
    this.#backend = backend
    this.#clock = clock
    this.#events = events
  }

  /** `unanswered`: requests of this claim that have to be answered first, or be overdue. */
  start(claim: Claim, unanswered?: Promise<unknown>): void {
    const withdrawal = this.#run(claim, unanswered).finally(() => this.#pending.delete(withdrawal))
    this.#pending.add(withdrawal)
  }

  /** Waits for what is under way; from now on nothing is tried a second time. */
  async close(): Promise<void> {
    this.#closed = true
    await Promise.all(this.#pending)
  }

  async #run(claim: Claim, unanswered: Promise<unknown> | undefined): Promise<void> {
    if (unanswered) await answered(unanswered, this.#clock, this.#backend.name).catch(() => {})
    const until = this.#clock.now() + claim.ttlMs
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2)) {
      const error = await this.#release(claim)
      if (!error) return
      this.#events.emit('release-failed', claim.resource, { error })
      const transient = error instanceof BackendError && error.transient
      if (!transient || this.#closed || this.#clock.now() > until) return
      await new Promise<void>((resume) => this.#clock.timer(pauseMs, resume, 'background'))
    }
  }

  async #release(claim: Claim): Promise<HoldfastError | undefined> {
    try {
      const state = await answeredOne(this.#backend.release([claim]), this.#clock, this.#backend.name)
      return state.status === 'failed' ? state.error : undefined
    } catch (error) {
      return error as HoldfastError
    }
  }
}
