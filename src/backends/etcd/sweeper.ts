/** Ends claims at their time, though the lease that they are on goes on: one that nobody renews, or that nobody knows to be there. */
import type { Clock, Timer } from '../../core/clock.js'
import type { OwnClaim } from './own-claim.js'

export class Sweeper {
  readonly #claims: Iterable<OwnClaim>
  readonly #clock: Clock
  readonly #end: (own: OwnClaim) => void
  #at = Infinity
  #timer: Timer | undefined
  #isClosed = false

  constructor(claims: Iterable<OwnClaim>, clock: Clock, end: (own: OwnClaim) => void) {
    this.#claims = claims
    this.#clock = clock
    this.#end = end
  }

  /** Makes sure that it looks at `moment`. */
  lookAt(moment: number): void {
    if (moment >= this.#at || this.#isClosed) return
    this.#timer?.cancel()
    this.#at = moment
    this.#timer = this.#clock.timer(moment - this.#clock.now(), () => this.#sweep(), 'background')
  }

  #sweep(): void {
    this.#at = Infinity
    const now = this.#clock.now()
    let next = Infinity
    for (const own of [...this.#claims]) {
      if (own.until <= now) this.#end(own)
      else next = Math.min(next, own.until)
    }
    this.lookAt(next)
  }

  close(): void {
    this.#isClosed = true
    this.#timer?.cancel()
  }
}
