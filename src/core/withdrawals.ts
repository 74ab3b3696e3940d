/**
 * Frees, in the background, claims that nobody wants any more: a wait that was cancelled, a hold that was lost, a release that
 * failed. Tried again for as long as the claim could be in somebody's way.
 *
 * They are remembered for a while: one of their requests may have been on its way for so long that it comes after the
 * withdrawal, and then the claim is granted after all. And a store can bring claims back that ended long ago: after a failover
 * its queue may be what it was a second before. Each of them would be in the way for its whole TTL.
 */
import { asHoldfastError } from './answer.js'
import type { Backend, ReleaseState } from './backend.js'
import { OwnClaim, type Batcher } from './batcher.js'
import type { Clock } from './clock.js'
import { BackendError, type HoldfastError } from './errors.js'
import type { Events } from './events.js'

const FIRST_PAUSE_MS = 50
const MAX_PAUSE_MS = 1_000
/** Of one that is known by its id only. */
const UNKNOWN_TTL_MS = 10_000
const REMEMBERED_MS = 60_000
const MAX_REMEMBERED = 10_000

export class Withdrawals {
  readonly #backend: Backend
  readonly #batcher: Batcher
  readonly #clock: Clock
  readonly #events: Events
  readonly #pending = new Map<Promise<void>, string>()
  /** In the order of time. */
  readonly #remembered = new Map<string, { readonly claim: OwnClaim; readonly until: number }>()
  #closed = false

  constructor(backend: Backend, batcher: Batcher, clock: Clock, events: Events) {
    this.#backend = backend
    this.#batcher = batcher
    this.#clock = clock
    this.#events = events
  }

  /** `ttlMs`: how long the claim could be in the way, if it was extended. */
  start(claim: OwnClaim, ttlMs = claim.ttlMs): void {
    this.#remember(claim)
    const withdrawal = this.#run(claim, ttlMs).finally(() => this.#pending.delete(withdrawal))
    this.#pending.set(withdrawal, claim.id)
  }

  /** It is being let go of, and may still be there. */
  has(claim: OwnClaim): boolean {
    for (const id of this.#pending.values()) if (id === claim.id) return true
    return false
  }

  /** The store has told of a grant that nobody waits for. */
  cameBack(claimId: string, resource: string): void {
    const { claim } = this.#remembered.get(claimId) ?? {}
    this.start(claim ?? new OwnClaim({ id: claimId, resource, take: 1, limit: 1, ttlMs: UNKNOWN_TTL_MS }))
  }

  /** Waits for what is under way; from now on nothing is tried a second time. */
  async close(): Promise<void> {
    this.#closed = true
    await Promise.all(this.#pending.keys())
  }

  #remember(claim: OwnClaim): void {
    const now = this.#clock.now()
    this.#remembered.delete(claim.id)
    this.#remembered.set(claim.id, { claim, until: now + REMEMBERED_MS })
    for (const [id, { until }] of this.#remembered) {
      if (until > now && this.#remembered.size <= MAX_REMEMBERED) break
      this.#remembered.delete(id)
    }
  }

  async #run(claim: OwnClaim, ttlMs: number): Promise<void> {
    const until = this.#clock.now() + ttlMs
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2)) {
      const error = await this.#release(claim)
      if (!error) return
      this.#events.emit('release-failed', claim.resource, { error })
      const transient = error instanceof BackendError && error.transient
      if (!transient || this.#closed || this.#clock.now() > until) return
      await new Promise<void>((resume) => this.#clock.timer(pauseMs, resume, 'background'))
    }
  }

  /** However long it takes: sending it again would only pile up requests behind the one that hangs. */
  async #release(claim: OwnClaim): Promise<HoldfastError | undefined> {
    try {
      const state = await new Promise<ReleaseState>((answered, failed) => this.#batcher.release({ item: claim, answered, failed }))
      return state.status === 'failed' ? state.error : undefined
    } catch (error) {
      return asHoldfastError(error, this.#backend)
    }
  }
}
