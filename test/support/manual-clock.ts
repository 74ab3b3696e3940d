/**
 * A clock that stands still until the test moves it. `advance` runs what is due on the way, in order; `jump` is what a blocked
 * event loop or a stopped process sees: time has passed, and no timer has fired yet.
 */
import type { Clock, Timer } from '../../src/core/clock.js'

interface PendingTimer {
  readonly at: number
  readonly task: () => void
  readonly purpose: 'background' | 'awaited'
}

const MAX_AT_ONCE = 10_000

export class ManualClock implements Clock {
  #now: number
  readonly #timers = new Set<PendingTimer>()

  constructor(startMs = 1_000_000) {
    this.#now = startMs
  }

  now(): number {
    return this.#now
  }

  timer(delayMs: number, task: () => void, purpose: 'background' | 'awaited'): Timer {
    const timer = { at: this.#now + Math.max(0, delayMs), task, purpose }
    this.#timers.add(timer)
    return { cancel: () => void this.#timers.delete(timer) }
  }

  /** How many timers wait to fire. */
  pending(purpose?: PendingTimer['purpose']): number {
    return [...this.#timers].filter((timer) => purpose === undefined || timer.purpose === purpose).length
  }

  /** Lets `ms` pass. Whatever is due runs at its moment, and promises settle before the next. */
  async advance(ms: number): Promise<void> {
    const until = this.#now + ms
    let atOnce = 0
    await settle()
    for (let next = this.#next(until); next; next = this.#next(until)) {
      this.#timers.delete(next)
      atOnce = next.at > this.#now ? 0 : atOnce + 1
      if (atOnce > MAX_AT_ONCE) throw new Error(`A busy loop: ${MAX_AT_ONCE} timers have fired at one moment.`)
      this.#now = Math.max(this.#now, next.at)
      next.task()
      await settle()
    }
    this.#now = Math.max(this.#now, until)
  }

  /** Moves the time on without running anything. */
  jump(ms: number): void {
    this.#now += ms
  }

  #next(until: number): PendingTimer | undefined {
    let next: PendingTimer | undefined
    // Of two for the same moment the one that was set first: a set keeps that order.
    for (const timer of this.#timers) if (timer.at <= until && (!next || timer.at < next.at)) next = timer
    return next
  }
}

/** Lets every promise settle that can: a turn of the event loop begins only when no microtask is left. */
export function settle(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve)
  })
}
