/** A claim of this process, with what is known of it. */
import type { Claim, ReleaseState } from '../../core/backend.js'
import { writeValue, type ClaimValue } from './claim-value.js'
import type { Directory } from './directories.js'
import type { Lease } from './leases.js'

/**
 *   asked → waiting → held → revoked
 *   asked → held
 *   any of them → leaving (its key is being deleted) → gone
 */
export type OwnState = 'asked' | 'waiting' | 'held' | 'revoked' | 'leaving'

export class OwnClaim {
  readonly claim: Claim
  readonly directory: Directory
  readonly key: string
  /** Of a session's: who was asked for later has a higher one. */
  order = 0
  /** Of a session's: where there is something, what was asked for this claim is void. */
  readonly voidKey: string | undefined
  lease: Lease
  value: ClaimValue
  state: OwnState = 'asked'
  createRevision = 0n
  /** When its key was last written, as far as is known. */
  modRevision = 0n
  /** Since when its key is known to be there, on this lease. */
  knownSince = Infinity
  /** Since when all answers about it were of before it was made. */
  behindSince = Infinity
  /** While it holds: when it ends, by our clock, unless it is renewed. */
  until = Infinity
  /** Until it is answered, more may have happened than is known. */
  isUnsure = true
  /** It was asked for again before that: the first request may still be carried out. */
  wasUnsure = false
  /** Settled when no request that takes it to another lease is on its way; and how many have begun or ended. */
  moving: Promise<void> | undefined
  moves = 0
  /** Where it may be instead, or may yet come to be: it was to be taken there, and nothing was heard of that. */
  maybeOn: Set<Lease> | undefined
  /** While it holds: somebody may have revoked it, and we may not have heard of it. */
  isToBeSeen = false
  /** How many requests that may change it were sent. */
  writes = 0
  /** Of a session's: settled when its key has been deleted, or could not be. */
  leaving: Promise<ReleaseState> | undefined
  /** Of a session's: its key was there before, with whatever value; and it was written once more since. */
  wasThere = false
  isTakenUp = false
  /** It holds, or did. */
  hasHeld = false
  /** It is found by its id. */
  isNamed = true
  /** Another of this process has its key by now. */
  isDisplaced = false
  /** None if another gave its key its name. */
  readonly keyNumber: number | undefined

  constructor(claim: Claim, directory: Directory, key: string, lease: Lease, value: ClaimValue, keyNumber?: number, voidKey?: string) {
    this.claim = claim
    this.directory = directory
    this.key = key
    this.lease = lease
    this.value = value
    this.keyNumber = keyNumber
    this.voidKey = voidKey
  }

  /** What is written at its key. What a session has says what the session wants it to, and no more. */
  get text(): string {
    const { lease } = this.claim
    if (lease) return lease.value ?? ''
    return writeValue(this.value)
  }

  get isHeld(): boolean {
    return this.state === 'held' || this.state === 'revoked'
  }

  get isLeaving(): boolean {
    return this.state === 'leaving'
  }

  /** Of a session's: whether its key may be there without our knowing, or yet come to be. */
  get isInDoubt(): boolean {
    return this.voidKey !== undefined && (this.isUnsure || this.wasUnsure)
  }

  /** Nothing that was asked for can happen any more. */
  settled(): void {
    this.isUnsure = false
    this.wasUnsure = false
  }

  /** All that was to change it was answered, and it is no more than so many requests: none of them was sent again. */
  isSpotless(most: number): boolean {
    return !this.isUnsure && this.writes <= most && this.moves === 0
  }

  /** Whatever is at its key when that is deleted is this claim: the key has had its one name and lease, and nobody else can have taken it over. */
  get isOnlyOurs(): boolean {
    return this.keyNumber !== undefined && this.isSpotless(2) && !this.claim.isTold
  }
}
