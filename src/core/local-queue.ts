/**
 * What this process has on its way to one resource: the seats that callers can share, and the claims that wait on the store, in
 * the order of their places there.
 *
 * Any word of any of those claims keeps all of them alive on the store, so only the first has a heartbeat, and it is due a while
 * after the last word of anybody: if it counted from when one came to be first, a process whose firsts follow each other quickly
 * would never be heard.
 */
import type { ClaimLoop } from './claim-loop.js'
import { Line } from './line.js'
import type { Seat } from './seat.js'

export class LocalQueue {
  readonly seats: Seat[] = []
  #waiting: Line<ClaimLoop> | undefined
  #heardAt = -Infinity

  get isEmpty(): boolean {
    return this.seats.length === 0 && !this.#waiting?.first
  }

  /** Somebody of this process has spoken to the store about the resource. */
  heard(now: number): void {
    this.#heardAt = now
  }

  /** When a claim has to speak to the store for the sake of all; Infinity if another will. */
  heartbeatAt(claim: ClaimLoop, everyMs: number): number {
    return this.#waiting?.first === claim ? this.#heardAt + everyMs : Infinity
  }

  join(claim: ClaimLoop): void {
    this.#waiting ??= new Line()
    this.#waiting.join(claim)
  }

  leave(claim: ClaimLoop): void {
    if (!this.#waiting) return
    const wasFirst = this.#waiting.first === claim
    this.#waiting.leave(claim)
    if (wasFirst) this.#waiting.first?.beFirst()
  }

  look(): void {
    for (const claim of this.#waiting ?? []) claim.look()
  }
}
