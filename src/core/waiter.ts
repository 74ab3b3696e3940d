/**
 * A caller who waits for a resource: for as long as it wants to, or until it is cancelled. It waits at a seat; how the seat
 * comes to hold the resource is not its affair.
 */
import { onAbort } from './abort.js'
import type { Blocker, Leased } from './backend.js'
import type { Clock, Timer } from './clock.js'
import { HoldfastError } from './errors.js'
import type { Events } from './events.js'
import type { Hold, HoldTerms } from './hold.js'
import type { Linked } from './line.js'

export interface ClaimRequest extends HoldTerms {
  readonly ttlMs: number
  /** 0 is one try; Infinity waits without limit. */
  readonly waitMs: number
  /** How often to look where neither a wake-up nor an expiry will come. */
  readonly retryMs: number
  readonly fairness: 'bounded' | 'strict'
  /** Cancels the wait. */
  readonly signal: AbortSignal | undefined
  readonly type: string | undefined
  readonly metadata: string | undefined
  /** Of a session's claim, which has a name that can be found again. */
  readonly lease?: Leased
  readonly claimId?: string
}

export interface Refusal {
  readonly blocker: Blocker
  readonly waitedMs: number
}

/** What a caller makes of what comes of its wait; whatever that throws, it is told. */
export type Use<T> = (result: Hold | Refusal, request: ClaimRequest) => T

/** Who has asked. */
interface Caller<T> {
  readonly use: Use<T>
  readonly resolve: (used: T) => void
  readonly reject: (reason: unknown) => void
}

/** Where it waits. */
interface Place {
  readonly resource: string
  leave(waiter: Waiter): void
  /** What to tell it if it leaves now. */
  verdict(waiter: Waiter, waitedMs: number): Blocker | HoldfastError
}

export class Waiter implements Linked<Waiter> {
  readonly request: ClaimRequest
  readonly askedAt: number
  ahead: Waiter | undefined
  behind: Waiter | undefined
  readonly #place: Place
  readonly #around: { readonly clock: Clock; readonly events: Events }
  readonly #caller: Caller<any>
  #isWaiting = false
  #timer: Timer | undefined
  #ignoreSignal: (() => void) | undefined

  constructor(
    request: ClaimRequest,
    place: Place,
    around: { readonly clock: Clock; readonly events: Events },
    caller: Caller<any>,
  ) {
    this.request = request
    this.#place = place
    this.#around = around
    this.#caller = caller
    this.askedAt = around.clock.now()
    const { waitMs, signal } = request
    if (waitMs > 0 && waitMs < Infinity) this.#timer = around.clock.timer(waitMs, () => this.#waitIsOver(), 'awaited')
    if (signal) this.#ignoreSignal = onAbort(signal, () => this.cancel(signal.reason))
  }

  /** Its wait is over, whatever it will be told. */
  stop(): void {
    this.#timer?.cancel()
    this.#ignoreSignal?.()
  }

  /** It has to wait; said once, however many turns that takes. */
  waits(blocker: Blocker): void {
    if (this.#isWaiting) return
    this.#isWaiting = true
    this.#around.events.emit('waiting', this.#place.resource, { blocker })
  }

  held(hold: Hold): void {
    this.stop()
    const { events } = this.#around
    if (events.hears('acquired')) {
      const { fence, ttlMs } = hold
      events.emit('acquired', hold.key, { fence, ttlMs, waitedMs: this.#waitedMs() })
    }
    this.#tell(hold)
  }

  refused({ holder, ahead, waiting }: Blocker): void {
    this.stop()
    const refusal = { blocker: { holder, ahead, waiting }, waitedMs: this.#waitedMs() }
    this.#around.events.emit('refused', this.#place.resource, refusal)
    this.#tell(refusal)
  }

  failed(error: HoldfastError): void {
    this.stop()
    this.#around.events.emit('claim-failed', this.#place.resource, { error })
    this.#caller.reject(error)
  }

  /** By the caller's signal, or because the manager closes. */
  cancel(reason: unknown): void {
    this.stop()
    this.#place.leave(this)
    this.#around.events.emit('cancelled', this.#place.resource, { reason, waitedMs: this.#waitedMs() })
    this.#caller.reject(reason)
  }

  #waitIsOver(): void {
    const verdict = this.#place.verdict(this, this.request.waitMs)
    this.#place.leave(this)
    if (verdict instanceof HoldfastError) this.failed(verdict)
    else this.refused(verdict)
  }

  #tell(result: Hold | Refusal): void {
    const { use, resolve, reject } = this.#caller
    try {
      resolve(use(result, this.request))
    } catch (error) {
      reject(error)
    }
  }

  #waitedMs(): number {
    return this.#around.clock.now() - this.askedAt
  }
}
