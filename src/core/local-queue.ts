/**
 * Who of this process waits for one resource, in the order of their places on the store.
 *
 * Every waiter has a place of its own there. Only the first of them keeps the process's places alive by its heartbeat.
 */
import type { ClaimLoop } from './claim-loop.js'

export class LocalQueue {
  readonly #waiters = new Set<ClaimLoop>()

  get isEmpty(): boolean {
    return this.#waiters.size === 0
  }

  get first(): ClaimLoop | undefined {
    return this.#waiters.values().next().value
  }

  join(waiter: ClaimLoop): void {
    this.#waiters.add(waiter)
  }

  leave(waiter: ClaimLoop): void {
    const wasFirst = this.first === waiter
    this.#waiters.delete(waiter)
    if (wasFirst) this.first?.beFirst()
  }
}
