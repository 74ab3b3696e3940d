/**
 * Tidying up, now and then: a resource's row stays when it is released, since making and deleting rows is what costs (and what
 * deadlocks some databases), and goes when it was not used for a while.
 */
import type { Clock, Timer } from '../../core/clock.js'

/** A row that nobody touched for so long is not a hot one. */
export const IDLE_MS = 60_000
const EVERY_MS = 60_000

export class Tidying {
  readonly #clock: Clock
  readonly #tidy: () => Promise<unknown>
  #timer: Timer | undefined
  #isStopped = false

  constructor(clock: Clock, tidy: () => Promise<unknown>) {
    this.#clock = clock
    this.#tidy = tidy
  }

  /** At once, or programs that end soon would never do it; then each process at times of its own, so that they do not all come at once. */
  start(): void {
    // What fails now is tried next time, and whoever uses the store hears of it otherwise.
    void this.#tidy().catch(() => {}).then(() => {
      if (this.#isStopped) return
      this.#timer = this.#clock.timer(EVERY_MS * (0.75 + Math.random() / 2), () => this.start(), 'background')
    })
  }

  stop(): void {
    this.#isStopped = true
    this.#timer?.cancel()
  }
}
