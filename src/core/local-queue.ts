/**
 * Who of this process waits for one resource, in the order of their places on the store.
 *
 * Every waiter has a place of its own there. Any word of any of them keeps all of them alive on the store, so only the first
 * has a heartbeat, and it is due a while after the last word of anybody: if it counted from when one came to be first, a
 * process whose firsts follow each other quickly would never be heard.
 */
import type { ClaimLoop } from './claim-loop.js'

export class LocalQueue {
  readonly #waiters = new Set<ClaimLoop>()
  #heardAt = -Infinity

  get isEmpty(): boolean {
    return this.#waiters.size === 0
  }

  get #first(): ClaimLoop | undefined {
    return this.#waiters.values().next().value
  }

  /** Somebody of this process has spoken to the store about the resource. */
  heard(now: number): void {
    this.#heardAt = now
  }

  /** When a waiter has to speak to the store for the sake of all; Infinity if another will. */
  heartbeatAt(waiter: ClaimLoop, everyMs: number): number {
    return this.#first === waiter ? this.#heardAt + everyMs : Infinity
  }

  join(waiter: ClaimLoop): void {
    this.#waiters.add(waiter)
  }

  leave(waiter: ClaimLoop): void {
    const wasFirst = this.#first === waiter
    this.#waiters.delete(waiter)
    if (wasFirst) this.#first?.beFirst()
  }

  look(): void {
    for (const waiter of this.#waiters) waiter.look()
  }
}
