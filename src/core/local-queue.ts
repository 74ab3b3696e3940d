/**
 * All that this process has to do with one resource: the seats that callers can share, the claims on their way to it, in the order
 * in which they were first made, and what it holds.
 *
 * Any word of any claim that waits keeps all of them alive on the store, so only the first has a heartbeat, and it is due a while
 * after the last word of anybody: if it counted from when one came to be first, a process whose firsts follow each other quickly
 * would never be heard.
 */
import type { ClaimLoop } from './claim-loop.js'
import type { Hold } from './hold.js'
import { Line } from './line.js'
import type { Registered } from './registry.js'
import type { Seat } from './seat.js'

export class LocalQueue implements Registered<LocalQueue> {
  readonly name: string
  next: LocalQueue | undefined
  /** Mostly there is one of each. */
  readonly seats: Seat[] = []
  readonly holds: Hold[] = []
  readonly #claims = new Line<ClaimLoop>()
  #heardAt = -Infinity

  constructor(resource: string) {
    this.name = resource
  }

  get isEmpty(): boolean {
    return this.seats.length === 0 && this.holds.length === 0 && !this.#claims.first
  }

  get claims(): Iterable<ClaimLoop> {
    return this.#claims
  }

  claim(id: string): ClaimLoop | undefined {
    let one = this.#claims.first
    while (one && one.claim.id !== id) one = one.behind
    return one
  }

  hold(claimId: string): Hold | undefined {
    for (const one of this.holds) if (one.claim.id === claimId) return one
    return undefined
  }

  /** Somebody of this process has spoken to the store about the resource. */
  heard(now: number): void {
    this.#heardAt = now
  }

  /** When a claim has to speak to the store for the sake of all; Infinity if another will. */
  heartbeatAt(claim: ClaimLoop, everyMs: number): number {
    return this.#firstWaiting === claim ? this.#heardAt + everyMs : Infinity
  }

  join(claim: ClaimLoop): void {
    this.#claims.join(claim)
  }

  leave(claim: ClaimLoop): void {
    const wasFirst = this.#firstWaiting === claim
    this.#claims.leave(claim)
    if (wasFirst) this.#firstWaiting?.beFirst()
  }

  look(): void {
    for (const claim of this.#claims) claim.look()
  }

  /** One that has no place yet is about to be heard of anyway, or not at all. */
  get #firstWaiting(): ClaimLoop | undefined {
    let one = this.#claims.first
    while (one && one.claim.place === undefined) one = one.behind
    return one
  }
}
