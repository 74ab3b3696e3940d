/** The steps about a session itself: its claim is a lease, and has no key. What the session has are claims in claiming.ts. */
import type { Claim, ClaimState, ReleaseState, Renewal, RenewState } from '../../core/backend.js'
import { follow, type Asker } from './askers.js'
import type { Leases } from './leases.js'

export class SessionSteps {
  readonly #leases: Leases

  constructor(leases: Leases) {
    this.#leases = leases
  }

  /** Nobody else can have it: it is granted, or found. */
  claim(claim: Claim, _: 'queue' | 'leave', asker: Asker<ClaimState>): void {
    follow(this.#open(claim), asker)
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
  release(claim: Claim, asker: Asker<ReleaseState>): void {
    follow(this.#revoke(claim), asker)
  }

  async #revoke(claim: Claim): Promise<ReleaseState> {
    const { id, isTakenUp } = claim.lease!
    // Who tried in vain to take it up leaves it to who has it.
    if (isTakenUp && this.#leases.ofSession(id)?.session?.id !== claim.id) return { status: 'not-held' }
    return { status: (await this.#leases.revoke(id)) ? 'released' : 'unknown' }
  }
}
