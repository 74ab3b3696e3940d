/**
 * The rule once more, as short as can be, to compare a backend with. A resource is one line of claims in the order they
 * came, and a claim holds if it and all before it fit into the limit. That needs no state of its own: what is before a
 * claim only ever gets less, so one that holds goes on holding.
 */
import type { Claim } from '../core/backend.js'

export interface Standing {
  readonly owner: string
  readonly claim: Claim
}

export class Model {
  readonly #lines = new Map<string, Standing[]>()

  claim(owner: string, claim: Claim, ifBusy: 'queue' | 'leave'): void {
    const line = this.line(claim.resource)
    if (!line.some((other) => other.claim.id === claim.id)) line.push({ owner, claim })
    if (ifBusy === 'leave' && !this.holds(claim)) this.release(claim)
  }

  release(claim: Claim): void {
    const line = this.line(claim.resource)
    this.#lines.set(claim.resource, line.filter((other) => other.claim.id !== claim.id))
  }

  revoke(resource: string): void {
    this.#lines.set(resource, this.line(resource).filter(({ claim }) => !this.holds(claim)))
  }

  holds(claim: Claim): boolean {
    const line = this.line(claim.resource)
    const at = line.findIndex((other) => other.claim.id === claim.id)
    const taken = line.slice(0, at + 1).reduce((sum, other) => sum + other.claim.take, 0)
    return at >= 0 && taken <= claim.limit
  }

  waits(claim: Claim): boolean {
    return this.line(claim.resource).some((other) => other.claim.id === claim.id) && !this.holds(claim)
  }

  holders(resource: string): Standing[] {
    return this.line(resource).filter(({ claim }) => this.holds(claim))
  }

  waiters(resource: string): Standing[] {
    return this.line(resource).filter(({ claim }) => !this.holds(claim))
  }

  line(resource: string): Standing[] {
    const line = this.#lines.get(resource) ?? []
    this.#lines.set(resource, line)
    return line
  }
}
