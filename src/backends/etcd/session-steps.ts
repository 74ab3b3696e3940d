/** The steps about a session itself: its claim is a lease, and has no key. What the session has are claims in steps.ts. */
import type { Claim, ClaimState, ReleaseState, Renewal, RenewState } from '../../core/backend.js'
import type { Answer } from './answers.js'
import type { Leases } from './leases.js'

export class SessionSteps {
  readonly #leases: Leases

  constructor(leases: Leases) {
    this.#leases = leases
  }

  /** Nobody else can have it: it is granted, or found. */
  claim(claim: Claim, _: 'queue' | 'leave', answer: Answer<ClaimState>): void {
    answer.follows(this.#open(claim))
  }

  async #open(claim: Claim): Promise<ClaimState> {
    const lease = await this.#leases.open(claim.lease!.id, claim.ttlMs)
    lease.session = claim
    return { status: 'held', epoch: 1n, waiting: 0 }
  }

  async renew({ claim }: Renewal): Promise<RenewState> {
    const lease = this.#leases.ofSession(claim.lease!.id)
    if (lease) await this.#leases.renew(lease)
    return lease && !lease.isOver ? { status: 'held', waiting: undefined } : { status: 'lost' }
  }

  /** With all that the session has. */
  release(claim: Claim, answer: Answer<ReleaseState>): void {
    answer.follows(this.#revoke(claim))
  }

  async #revoke(claim: Claim): Promise<ReleaseState> {
    await this.#leases.revoke(claim.lease!.id)
    return { status: 'released' }
  }
}
