/**
 * Claiming: a key that nobody else has is put into the directory of the resource, and what was there before says what has become of it.
 *
 * Of a claim that is asked for again it is found out what came of it; it is made once more if its key is not there.
 */
import { ALL_SLOTS, type Claim, type ClaimState, type Leased } from '../../core/backend.js'
import { BackendError, SessionExpiredError } from '../../core/errors.js'
import { anotherLimit, neverHolds } from '../../core/slots.js'
import { follow, promised, type Asker } from './askers.js'
import type { ClaimValue } from './claim-value.js'
import { isLeaseGone, isNoSpace } from './errors.js'
import { checkRecent } from './fates.js'
import { memberDirectory, memberKey } from './keys.js'
import { Lease } from './leases.js'
import { Line } from './line.js'
import { TRIES } from './others.js'
import { OwnClaim } from './own-claim.js'
import type { Parts } from './parts.js'
import { isAlone, joining, joiningOnce, lineAfter, looking, taking, takingUp } from './requests.js'
import type { Outcome } from './txns.js'

type IfBusy = 'queue' | 'leave'
type Needed = Omit<Parts, 'sweeper'>

export class Claiming {
  readonly #parts: Needed
  /** In the name of sessions. */
  #asked = 0
  #members = 0

  constructor(parts: Needed) {
    this.#parts = parts
  }

  claim(claim: Claim, ifBusy: IfBusy, asker: Asker<ClaimState>): void {
    const never = neverHolds(claim)
    if (never) return asker.answered(never)
    const own = this.#parts.directories.named(claim)
    if (own) follow(this.#askAgain(own, ifBusy), asker)
    // Where there are several slots, only who is in line knows whether there is one left.
    else if (ifBusy === 'leave' && claim.limit > 1) follow(this.#tryToJoin(claim), asker)
    else this.#ask(claim, ifBusy, asker, 1)
  }

  // Asking

  #ask(claim: Claim, ifBusy: IfBusy, asker: Asker<ClaimState>, tries: number): void {
    if (claim.lease) return follow(this.#askForSession(claim, claim.lease, ifBusy), asker)
    const sentAt = this.#now
    const askOn = (lease: Lease) => this.#askOn(lease, new Asking(this, claim, ifBusy, asker, tries, sentAt))
    const lease = this.#parts.leases.for(claim.ttlMs, sentAt)
    if (lease instanceof Lease) askOn(lease)
    else lease.then(askOn).catch((error: unknown) => asker.failed(error))
  }

  /**
   * What a session has of a resource has one key: the last is let go of before the next is asked for, or that would have its place and
   * fence. But only by who came later: what took its time here, or is asked once more, may find one that holds by now.
   */
  async #askForSession(claim: Claim, { id }: Leased, ifBusy: IfBusy, order = ++this.#asked): Promise<ClaimState> {
    const { directories, releasing, leases } = this.#parts
    const key = memberKey(memberDirectory(claim.resource), id)
    for (let last = directories.at(key); last; last = directories.at(key)) {
      if (last.order >= order && !last.isLeaving) throw new BackendError('The session has asked for it anew meanwhile.', { transient: true })
      await releasing.letGoOf(last).catch(() => {})
      if (directories.at(key) === last) throw new BackendError('What the session had there could not be let go of yet.', { transient: true })
    }
    // With nothing in between: two who have seen that there is none must not both be there.
    const lease = leases.ofSession(id)
    if (!lease) throw hasEnded({ id })
    return promised((asker) => this.#askOn(lease, new Asking(this, claim, ifBusy, asker, 1, this.#now, order)))
  }

  #askOn(lease: Lease, asking: Asking): void {
    const { txns, leases } = this.#parts
    const { claim, ifBusy, sentAt, order } = asking
    const own = claim.lease ? this.#newMember(claim, lease, order) : this.#newOwn(claim, lease)
    asking.own = own
    txns.ask(ifBusy === 'leave' ? taking(own) : claim.lease ? joiningOnce(own) : joining(own), asking)
    asking.covered = leases.coverMeanwhile(lease, sentAt)
  }

  #newOwn(claim: Claim, lease: Lease): OwnClaim {
    const { keys, directories } = this.#parts
    const directory = directories.of(claim)
    const keyNumber = directories.takeNumber(directory)
    const own = new OwnClaim(claim, directory, keys.claim(directory.name, lease.name, keyNumber), lease, this.#valueOf(claim), keyNumber)
    own.writes++
    directories.add(own)
    return own
  }

  #newMember(claim: Claim, lease: Lease, order: number): OwnClaim {
    const { directories, keys } = this.#parts
    const directory = directories.of(claim)
    // Also if it is claimed anew: what became void before is not valid any more.
    const voidKey = keys.void(lease.id, `${claim.id}-${++this.#members}`)
    const own = new OwnClaim(claim, directory, memberKey(directory.name, lease.id), lease, this.#valueOf(claim), undefined, voidKey)
    own.order = order
    own.writes++
    directories.add(own)
    return own
  }

  #valueOf({ id, take, limit, ttlMs, type, metadata }: Claim): ClaimValue {
    return { id, owner: this.#parts.scope.owner, ttl: ttlMs, at: Date.now(), take, limit, type, metadata }
  }

  // What comes of it

  /** For `Asking`, as are the next two. */
  answered(asking: Asking, outcome: Outcome): void {
    const state = this.#heard(asking.own!, asking.sentAt, asking.ifBusy, outcome)
    if (state instanceof Promise) state.then((its) => asking.asker.answered(its), (error: unknown) => this.failed(asking, error))
    else asking.asker.answered(state)
  }

  failed({ own, claim, ifBusy, asker, tries }: Asking, error: unknown): void {
    const { leases, fates } = this.#parts
    const { lease } = own!
    if (isLeaseGone(error)) leases.over(lease)
    if (lease.isOver && claim.lease) return asker.failed(hasEnded(claim.lease))
    if (lease.isOver && tries < TRIES) return this.#ask(claim, ifBusy, asker, tries + 1)
    fates.maybeThere(own!, error)
    asker.failed(error)
  }

  unanswered({ own }: Asking, error: unknown): void {
    this.#parts.fates.unanswered(own!, error)
  }

  /** At once, if it was alone. */
  #heard(own: OwnClaim, sentAt: number, ifBusy: IfBusy, outcome: Outcome): ClaimState | Promise<ClaimState> {
    // Its key went with it, and nobody would be told.
    if (own.lease.isOver) throw new BackendError('The lease ended meanwhile.', { transient: true })
    if (own.isLeaving) return this.#withdrawn(own)
    own.isUnsure = false
    own.wasThere ||= !outcome.succeeded
    if (!isAlone(outcome)) return this.#heardOfOthers(own, sentAt, ifBusy, outcome)
    own.createRevision = own.modRevision = outcome.revision
    own.knownSince = this.#now
    return this.#held(own, sentAt, 0)
  }

  /** Whoever released it did not wait for the answer, and may have come before it. */
  async #withdrawn(own: OwnClaim): Promise<ClaimState> {
    await this.#parts.releasing.letGoOf(own)
    return { status: 'failed', error: new BackendError('The claim was withdrawn meanwhile.', { transient: true }) }
  }

  async #heardOfOthers(own: OwnClaim, sentAt: number, ifBusy: IfBusy, outcome: Outcome): Promise<ClaimState> {
    const { lookouts, others, fates, releasing } = this.#parts
    const { claim, key } = own
    const line = lineAfter(own, outcome)
    const standing = line.find(key)
    const limit = line.limitBeside(key)
    const isOther = limit !== undefined && limit !== claim.limit
    if (!standing) {
      fates.forget(own, own.isSpotless(1))
      if (isOther) return anotherLimit(claim, limit)
      // What made it seem taken is further down, of another prefix.
      return line.standings.length === 0 ? this.#tryToJoin(claim, own.order) : { status: 'refused', ...line.blocker() }
    }
    own.createRevision = standing.createRevision
    if (standing.modRevision > own.modRevision) own.modRevision = standing.modRevision
    own.knownSince = this.#now
    const isGone = isToBeTakenUp(own, line.holds(standing)) && !(await this.#isTakenUp(own))
    if (own.isLeaving) return this.#withdrawn(own)
    if (isGone) return this.#askAnew(own, ifBusy)
    if (isOther) {
      await releasing.letGoOf(own)
      return anotherLimit(claim, limit)
    }
    // What is known may be newer than the line, and who holds goes on holding.
    if (own.isHeld || line.holds(standing)) {
      if (standing.value?.revoked) own.state = 'revoked'
      if (own.state === 'revoked') return { status: 'revoked', epoch: own.createRevision }
      return this.#held(own, sentAt, line.waiting)
    }
    if (ifBusy === 'leave') {
      await releasing.letGoOf(own)
      return { status: 'refused', ...new Line(line.standings.filter((other) => other !== standing)).blocker() }
    }
    const blocker = line.blocker(key)
    if (own.state === 'asked') own.state = 'waiting'
    own.until = Infinity
    lookouts.join(own)
    if (blocker.ahead === 0) others.tellHolders(line, 'contended').catch(() => {})
    return { status: 'queued', place: String(own.createRevision), ...blocker }
  }

  /** Who had the session before may have let go of it, by a request that is still to come: that must not find what it was sent for. */
  async #isTakenUp(own: OwnClaim): Promise<boolean> {
    own.isUnsure = true
    try {
      const { succeeded, revision } = await this.#parts.txns.run(takingUp(own))
      own.isUnsure = false
      if (!succeeded) return false
      own.modRevision = revision
    } catch (error) {
      // For want of space that has to do without.
      if (!isNoSpace(error)) throw error
    }
    own.isTakenUp = true
    return true
  }

  #held(own: OwnClaim, sentAt: number, waiting: number): ClaimState {
    this.#parts.fates.holds(own, sentAt)
    return { status: 'held', epoch: own.createRevision, waiting }
  }

  // Asking again, and asking carefully

  /** Asked before: whatever came of it. If its key is not there, it is a new claim. */
  async #askAgain(own: OwnClaim, ifBusy: IfBusy): Promise<ClaimState> {
    const { txns, leases, fates, renewing } = this.#parts
    const sentAt = this.#now
    const { claim, lease, isUnsure, moves } = own
    if (own.isLeaving) return this.#askInstead(own, ifBusy)
    // Somebody wants it: it is not to be swept meanwhile.
    own.until = own.isHeld ? Math.max(own.until, sentAt + own.value.ttl) : Infinity
    const step = isUnsure && ifBusy === 'queue' ? joiningOnce(own) : looking(own)
    if (isUnsure) {
      own.writes++
      own.wasUnsure = true
    }
    let outcome: Outcome
    try {
      [outcome] = await Promise.all([
        txns.run({ ...step, kind: isUnsure ? 'claim' : 'other', directory: own.directory, lease: lease.id }),
        leases.cover(lease, sentAt),
      ])
      checkRecent(own, outcome, this.#now)
    } catch (error) {
      if (isLeaseGone(error)) leases.over(lease)
      // What may have been there went with it, and nothing comes there any more.
      if (own.lease.isOver) return this.#askAnew(own, ifBusy)
      fates.maybeThere(own, error)
      throw error
    }
    const line = lineAfter(own, outcome)
    // The line may be older than what has become of it since.
    if (own.isLeaving) return this.#askInstead(own, ifBusy)
    if (!fates.isMine(own, line.find(own.key)) || own.lease.isOver) return this.#askAnew(own, ifBusy)
    const state = await this.#heard(own, sentAt, ifBusy, outcome)
    // What was extended since it was asked is not cut short by that.
    if (state.status === 'held' && own.moves === moves && !own.moving && own.value.ttl !== claim.ttlMs) await renewing.move(own, claim.ttlMs, sentAt)
    return state
  }

  /** Of one whose key is being deleted. */
  #askInstead(own: OwnClaim, ifBusy: IfBusy): Promise<ClaimState> {
    this.#parts.directories.leaves(own)
    return this.#onceMore(own, ifBusy)
  }

  /** Of one whose key is not there. */
  async #askAnew(own: OwnClaim, ifBusy: IfBusy): Promise<ClaimState> {
    const { claim, lease } = own
    this.#parts.fates.forget(own)
    if (lease.isOver && claim.lease) throw hasEnded(claim.lease)
    return this.#onceMore(own, ifBusy)
  }

  #onceMore({ claim, order }: OwnClaim, ifBusy: IfBusy): Promise<ClaimState> {
    if (claim.lease) return this.#askForSession(claim, claim.lease, ifBusy, order)
    return promised((asker) => this.claim(claim, ifBusy, asker))
  }

  /** With several slots: who would not wait looks first, then joins, and leaves if others were faster. */
  async #tryToJoin(claim: Claim, order?: number): Promise<ClaimState> {
    const { directories, others } = this.#parts
    const line = await others.read(directories.nameOf(claim))
    const limit = line.limitBeside('')
    if (limit !== undefined && limit !== claim.limit) return anotherLimit(claim, limit)
    const taken = line.standings.reduce((sum, { value }) => sum + (value?.take ?? ALL_SLOTS), 0)
    if (taken + claim.take > claim.limit) return { status: 'refused', ...line.blocker() }
    const state = await (claim.lease
      ? this.#askForSession(claim, claim.lease, 'queue', order)
      : promised<ClaimState>((asker) => this.#ask(claim, 'queue', asker, 1)))
    if (state.status !== 'queued') return state
    const own = directories.named(claim)
    return own ? this.#askAgain(own, 'leave') : state
  }

  get #now(): number {
    return this.#parts.scope.clock.now()
  }
}

/** A session's key that was there before. What a leader says is not said once more. */
function isToBeTakenUp({ voidKey, wasThere, isTakenUp, claim: { lease } }: OwnClaim, holds: boolean): boolean {
  return voidKey !== undefined && wasThere && !isTakenUp && !(holds && lease!.value !== undefined)
}

/** One try. */
class Asking implements Asker<Outcome> {
  readonly claim: Claim
  readonly ifBusy: IfBusy
  readonly asker: Asker<ClaimState>
  readonly tries: number
  readonly sentAt: number
  readonly order: number
  own: OwnClaim | undefined
  /** When its lease lasts long enough; it does already if undefined. */
  covered: Promise<void> | undefined
  readonly #claiming: Claiming

  constructor(claiming: Claiming, claim: Claim, ifBusy: IfBusy, asker: Asker<ClaimState>, tries: number, sentAt: number, order = 0) {
    this.#claiming = claiming
    this.claim = claim
    this.ifBusy = ifBusy
    this.asker = asker
    this.tries = tries
    this.sentAt = sentAt
    this.order = order
  }

  answered(outcome: Outcome): void {
    const claiming = this.#claiming
    if (!this.covered) return claiming.answered(this, outcome)
    this.covered.then(() => claiming.answered(this, outcome)).catch((error: unknown) => claiming.failed(this, error))
  }

  failed(error: unknown): void {
    this.#claiming.unanswered(this, error)
    this.#claiming.failed(this, error)
  }
}

/** There is no other lease that a session could have its claims on; one that has come since is of whoever has taken the session up again. */
function hasEnded({ id }: Pick<Leased, 'id'>): SessionExpiredError {
  return new SessionExpiredError(`The session ${id.toString(16)} has ended: etcd has no such lease any more.`)
}
