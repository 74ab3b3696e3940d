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

  /** Each process at a time of its own, so that they do not all come at once. */
  start(): void {
    if (this.#isStopped) return
    const delayMs = EVERY_MS * (0.75 + Math.random() / 2)
    // What fails now is tried next time, and whoever uses the store hears of it otherwise.
    this.#timer = this.#clock.timer(delayMs, () => void this.#tidy().catch(() => {}).then(() => this.start()), 'background')
  }

  stop(): void {
    this.#isStopped = true
    this.#timer?.cancel()
  }
}
