/** What becomes of the claims of this process, whoever was asked about them or has told of them. */
import { BackendError } from '../../core/errors.js'
import type { RangeResponse } from './client/messages.js'
import { isNoSpace, mayBeDone } from './errors.js'
import { toBytes } from './keys.js'
import type { Lease } from './leases.js'
import { standingOf, type Line, type Standing } from './line.js'
import type { Message } from './mailbox.js'
import type { OwnClaim } from './own-claim.js'
import type { Parts } from './parts.js'
import { lineOf, looking } from './requests.js'
import type { Outcome } from './txns.js'

export class Fates {
  readonly #parts: Pick<Parts, 'scope' | 'txns' | 'directories' | 'lookouts' | 'others' | 'sweeper'>
  #isClosed = false

  constructor(parts: Pick<Parts, 'scope' | 'txns' | 'directories' | 'lookouts' | 'others' | 'sweeper'>) {
    this.#parts = parts
  }

  /** From now on it holds, by the word of the server at some moment after `since`. */
  holds(own: OwnClaim, since: number): void {
    this.#parts.lookouts.leave(own)
    const until = own.claim.lease ? Infinity : since + own.value.ttl
    own.until = own.state === 'held' ? Math.max(own.until, until) : until
    own.state = 'held'
    own.hasHeld = true
    this.#parts.sweeper.lookAt(own.until)
  }

  /** One that has waited holds. */
  granted(own: OwnClaim, line: Line): void {
    // Whenever it came to hold, the server counts from there.
    const since = own.lease.isSessions ? this.#now : own.lease.renewedAt
    const { resource, id: claimId } = own.claim
    const { createRevision, modRevision, value } = line.find(own.key)!
    // By the time that its holder has begun, it might be over: who asks has the lease renewed first, and is told of a revocation.
    if (this.#now - since > own.value.ttl / 2 || value?.revoked) return this.#parts.scope.wake({ kind: 'look', resource })
    own.createRevision = createRevision
    own.modRevision = modRevision
    this.holds(own, since)
    this.#parts.scope.wake({ kind: 'granted', resource, claimId, epoch: own.createRevision, since, waiting: line.waiting })
  }

  told([kind, key, createRevision]: Message): void {
    const own = this.#parts.directories.at(key)
    if (!own || own.isLeaving) return
    const { resource, id: claimId } = own.claim
    // It can overtake the answer to the claim, and who still asks or waits looks again.
    if (!own.isHeld) {
      own.isToBeSeen = true
      return this.#parts.scope.wake({ kind, resource, claimId })
    }
    if (String(own.createRevision) !== createRevision) return
    if (kind === 'lost') return this.lost(own)
    if (kind === 'revoked') own.state = 'revoked'
    this.#parts.scope.wake({ kind, resource, claimId })
  }

  lost(own: OwnClaim): void {
    const { state, claim: { resource, id: claimId } } = own
    this.forget(own)
    if (this.#isClosed) return
    if (state === 'held' || state === 'revoked') this.#parts.scope.wake({ kind: 'lost', resource, claimId })
    else if (state === 'waiting') this.#parts.scope.wake({ kind: 'look', resource })
  }

  forget(own: OwnClaim, isSpotless = false): void {
    this.#parts.lookouts.leave(own)
    if (own.isInDoubt && !own.lease.isOver) this.#abandon(own)
    else this.gone(own, isSpotless)
  }

  /** Nobody wants it any more. */
  #abandon(own: OwnClaim): void {
    const { directories, sweeper } = this.#parts
    directories.leaves(own)
    own.until = this.#now
    sweeper.lookAt(own.until)
  }

  /** `isSpotless`: nothing that was asked for about it can still happen. */
  gone(own: OwnClaim, isSpotless: boolean): void {
    const { directories, sweeper } = this.#parts
    const displaced = directories.gone(own)
    // Nobody has looked at it meanwhile.
    if (displaced) sweeper.lookAt(displaced.until)
    if (own.keyNumber === undefined) return
    if (isSpotless) directories.freeNumber(own.directory, own.keyNumber)
    else directories.spendNumbers()
  }

  /** What was refused has left nothing behind. Of all else that fails, such as the renewal of the lease, that is not known. */
  unanswered(own: OwnClaim, error: unknown): void {
    if (!mayBeDone(error) && !own.wasUnsure) this.gone(own, false)
  }

  /**
   * It may be there. Unless it is asked for again, it goes at its TTL: else it would stay for as long as its lease is kept alive. For want
   * of space nobody asks again, and no more can come of it than has.
   */
  maybeThere(own: OwnClaim, error: unknown): void {
    if (own.state !== 'asked') return
    own.until = this.#now + (isNoSpace(error) ? 0 : own.value.ttl)
    this.#parts.sweeper.lookAt(own.until)
  }

  // What is there now

  async look(own: OwnClaim): Promise<Line> {
    const outcome = await this.#parts.txns.run({ ...looking(own), kind: 'other' })
    checkRecent(own, outcome, this.#now)
    return lineOf(own.directory.name, outcome.responses[0])
  }

  isMine({ claim, lease, createRevision }: OwnClaim, standing: Standing | undefined): boolean {
    if (!claim.lease) return standing?.value?.id === claim.id
    return standing?.lease === lease.id && (createRevision === 0n || standing.createRevision === createRevision)
  }

  /** One that holds was looked at. */
  seen(own: OwnClaim, line: Line): void {
    if (!own.isHeld) return
    own.isToBeSeen = false
    const standing = line.find(own.key)
    if (!this.isMine(own, standing)) return this.lost(own)
    if (standing!.value?.revoked && own.state !== 'revoked') this.told(['revoked', own.key, String(own.createRevision)])
  }

  /** News of those on this lease may have been missed. */
  lookAtAll(lease: Lease): void {
    for (const own of this.#parts.directories.on(lease)) {
      own.isToBeSeen = true
      if (own.state !== 'held') continue
      this.look(own).then((line) => this.seen(own, line)).catch(() => {})
    }
  }

  /** What a lease has is told by a member that may be behind. */
  confirmLoss(own: OwnClaim): void {
    const { lease } = own
    const judge = (line: Line) => {
      const isStill = own.lease === lease && this.#parts.directories.at(own.key) === own && !own.isLeaving
      if (isStill && !this.isMine(own, line.find(own.key))) this.lost(own)
    }
    // If it cannot be read now, the next beat finds it missing again.
    this.look(own).then(judge).catch(() => {})
  }

  /** It may have been let go of since, or its key have become that of another claim: so it is deleted only as it was seen. */
  async deleteUnknown(key: string, lease: Lease): Promise<void> {
    const { responses } = await this.#parts.txns.run({ kind: 'other', success: [{ kind: 'range', key: toBytes(key) }], isLikely: true })
    const [found] = (responses[0] as RangeResponse).kvs
    if (found?.lease === lease.id && !lease.isOver && !this.#parts.directories.at(key)) await this.#parts.others.delete([standingOf(found)])
  }

  /** What is lost from now on is no news for anybody. */
  close(): void {
    this.#isClosed = true
  }

  get #now(): number {
    return this.#parts.scope.clock.now()
  }
}

/**
 * While its leader changes, etcd 3.4 may answer with what was true a moment ago: then what was just made is not in it. If it does so for as
 * long as a lease lasts, a snapshot was restored, and that is how things are now.
 */
export function checkRecent(own: OwnClaim, { revision }: Outcome, now: number): void {
  if (revision >= own.createRevision) {
    own.behindSince = Infinity
    return
  }
  own.behindSince = Math.min(own.behindSince, now)
  if (now - own.behindSince < own.lease.lastsMs) throw new BackendError('etcd has answered with what was true before.', { transient: true })
}
