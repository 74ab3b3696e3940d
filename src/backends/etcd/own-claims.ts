/** The claims of this process, with what is known of each. */
import type { Claim } from '../../core/backend.js'
import { Registry, type Registered } from '../../core/registry.js'
import { writeValue, type ClaimValue } from './claim-value.js'
import type { Lease } from './leases.js'
import type { KeyNumber } from './numbers.js'

/**
 *   asked → waiting → held → revoked
 *   asked → held
 *   any of them → leaving (its key is being deleted) → gone
 */
export type OwnState = 'asked' | 'waiting' | 'held' | 'revoked' | 'leaving'

export class OwnClaim implements Registered<OwnClaim> {
  /** By its key. */
  next: OwnClaim | undefined
  readonly claim: Claim
  readonly directory: string
  readonly key: string
  lease: Lease
  value: ClaimValue
  state: OwnState = 'asked'
  createRevision = 0n
  /** Since when its key is known to be there, on this lease. */
  knownSince = Infinity
  /** While it holds: when it ends, by our clock, unless it is renewed. */
  until = Infinity
  /** Until it is answered, more may have happened than is known. */
  isUnsure = true
  /** Settled when no request that takes it to another lease is on its way; and how many have begun or ended. */
  moving: Promise<void> | undefined
  moves = 0
  /** While it holds: somebody may have revoked it, and we may not have heard of it. */
  isToBeSeen = false
  /** How many requests that may change it were sent. */
  writes = 0
  /** Settled when its key has been deleted, or could not be. */
  leaving: Promise<unknown> | undefined
  /** Of a session's: its key was there before, with whatever value. */
  wasThere = false
  /** None if another gave its key its name. */
  readonly keyNumber: KeyNumber | undefined

  constructor(claim: Claim, directory: string, key: string, lease: Lease, value: ClaimValue, keyNumber?: KeyNumber) {
    this.claim = claim
    this.directory = directory
    this.key = key
    this.lease = lease
    this.value = value
    this.keyNumber = keyNumber
  }

  /** What is written at its key. What a session has says what the session wants it to, and no more. */
  get text(): string {
    const { lease } = this.claim
    return lease ? (lease.value ?? '') : writeValue(this.value)
  }

  get name(): string {
    return this.key
  }

  get isHeld(): boolean {
    return this.state === 'held' || this.state === 'revoked'
  }
}

/** By its id. */
class Named implements Registered<Named> {
  readonly name: string
  next: Named | undefined
  own: OwnClaim

  constructor(own: OwnClaim) {
    this.name = own.claim.id
    this.own = own
  }
}

export class OwnClaims {
  readonly #byId = new Registry<Named>()
  readonly #byKey = new Registry<OwnClaim>()

  add(own: OwnClaim): void {
    const named = this.#byId.get(own.claim.id)
    if (named) named.own = own
    else this.#byId.add(new Named(own))
    const before = this.#byKey.get(own.key)
    if (before) this.#byKey.remove(before)
    this.#byKey.add(own)
  }

  /** Those that leave are no longer known by their id: it may be claimed anew. */
  named({ id, resource }: Claim): OwnClaim | undefined {
    const own = this.#byId.get(id)?.own
    return own?.claim.resource === resource ? own : undefined
  }

  at(key: string): OwnClaim | undefined {
    return this.#byKey.get(key)
  }

  leaves(own: OwnClaim): void {
    own.state = 'leaving'
    const named = this.#byId.get(own.claim.id)
    if (named?.own === own) this.#byId.remove(named)
  }

  gone(own: OwnClaim): void {
    this.leaves(own)
    this.#byKey.remove(own)
  }

  on(lease: Lease): OwnClaim[] {
    return [...this.#byKey].filter((own) => own.lease === lease)
  }

  [Symbol.iterator](): Iterator<OwnClaim> {
    return this.#byKey[Symbol.iterator]()
  }
}
