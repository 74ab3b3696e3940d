/** The steps in etcd: what is asked for about one claim is a part of a transaction that others share. */
import {
  ALL_SLOTS, type Claim, type ClaimState, type Held, type Leased, type ReleaseState, type Renewal, type RenewState,
  type ResourceState, type RevokeState, type Scope,
} from '../../core/backend.js'
import { BackendError, SessionExpiredError } from '../../core/errors.js'
import { anotherLimit, neverHolds } from '../../core/slots.js'
import { parseToken } from '../../core/token.js'
import { writeValue, type ClaimValue } from './claim-value.js'
import type { EtcdClient } from './client/client.js'
import type { DeleteResponse, RangeResponse, RequestOp } from './client/messages.js'
import { Directories } from './directories.js'
import { isLeaseGone, mayBeDone } from './errors.js'
import { inspect } from './inspect.js'
import { memberDirectory, memberKey, toBytes, Keys } from './keys.js'
import { Leases, type Lease, type LeaseListener } from './leases.js'
import { Line, standingOf, type Standing } from './line.js'
import { Lookouts, type LookoutListener } from './lookouts.js'
import { readMessage, type Message } from './mailbox.js'
import { Others, TRIES } from './others.js'
import { OwnClaim } from './own-claim.js'
import { isAlone, isOn, joining, joiningOnce, lineAfter, lineOf, looking, rangeOf, taking } from './requests.js'
import { Sweeper } from './sweeper.js'
import { Txns, type Outcome } from './txns.js'

/** A claim whose key could not be deleted is tried again. */
const SWEEP_AGAIN_MS = 500
/** Whoever closes waits no longer for the server to know. */
const LEAVE_MS = 1_000

export class Steps implements LeaseListener, LookoutListener {
  readonly #client: EtcdClient
  readonly #scope: Scope
  readonly #keys: Keys
  readonly #txns: Txns
  readonly leases: Leases
  readonly #lookouts: Lookouts
  readonly #claims: Directories
  readonly #others: Others
  readonly #sweeper: Sweeper
  #isClosed = false

  constructor(client: EtcdClient, scope: Scope) {
    this.#client = client
    this.#scope = scope
    this.#keys = new Keys(scope.prefix)
    this.#claims = new Directories(this.#keys)
    this.#txns = new Txns(client, this.#claims)
    this.leases = new Leases(client, this.#txns, this.#keys, scope.clock, this)
    this.#lookouts = new Lookouts(client, scope.clock, this, this.#claims)
    this.#others = new Others(client, this.#txns, this.#keys)
    this.#sweeper = new Sweeper(this.#claims, scope.clock, (own) => {
      this.#claims.leaves(own)
      this.#delete(own).catch(() => {})
    })
  }

  /** A list of so many follows. */
  begin(size: number): void {
    this.#txns.begin(size)
  }

  // Claiming

  claim(claim: Claim, ifBusy: 'queue' | 'leave'): Promise<ClaimState> {
    const never = neverHolds(claim)
    if (never) return Promise.resolve(never)
    const own = this.#claims.named(claim)
    if (own) return this.#askAgain(own, ifBusy)
    // Where there are several slots, only who is in line knows whether there is one left.
    return ifBusy === 'leave' && claim.limit > 1 ? this.#tryToJoin(claim) : this.#ask(claim, ifBusy)
  }

  async #ask(claim: Claim, ifBusy: 'queue' | 'leave'): Promise<ClaimState> {
    if (claim.lease) await this.#afterLast(claim, claim.lease)
    for (let tries = 1; ; tries++) {
      const sentAt = this.#now
      const lease = claim.lease ? this.#leaseOf(claim.lease) : this.leases.for(claim.ttlMs, sentAt)
      const own = this.#newOwn(claim, lease instanceof Promise ? await lease : lease)
      const outcome = this.#txns.run(ifBusy === 'leave' ? taking(own) : claim.lease ? joiningOnce(own) : joining(own))
      const covered = this.#covered(own.lease, sentAt)
      let answer: Outcome | undefined
      try {
        answer = await outcome
        if (covered) await covered
        const state = this.#asked(own, sentAt, ifBusy, answer)
        return state instanceof Promise ? await state : state
      } catch (error) {
        if (!answer) this.#unanswered(own, error)
        if (isLeaseGone(error)) this.leases.over(own.lease)
        if (own.lease.isOver && claim.lease) throw hasEnded(claim.lease)
        if (own.lease.isOver && tries < TRIES) continue
        this.#failedToAsk(own)
        throw error
      }
    }
  }

  #leaseOf({ id }: Leased): Lease {
    const lease = this.leases.ofSession(id)
    if (!lease) throw hasEnded({ id })
    return lease
  }

  /** The session is another's by now, or will be, who has the same keys for the same things: none of them is touched from here any more. */
  async leave(id: bigint, waiting: 'stays' | 'goes'): Promise<void> {
    const lease = this.leases.ofSession(id)
    if (!lease) return
    this.leases.leave(lease)
    const left = this.#claims.on(lease)
    const going = waiting === 'goes' ? left.filter(({ isHeld }) => !isHeld) : []
    // From now on nobody knows them by their name, who would delete them once more.
    for (const own of going) this.#claims.leaves(own)
    const gone = Promise.allSettled(going.map((own) => this.#delete(own)))
    for (const own of left) if (!going.includes(own)) this.#forget(own)
    if (going.length > 0) await inTime(gone)
    for (const own of going) this.#forget(own)
  }

  /** What a session has of a resource has one key: the last is let go of before the next is asked for. */
  async #afterLast({ resource }: Claim, { id }: Leased): Promise<void> {
    const key = memberKey(memberDirectory(resource), id)
    await this.#claims.at(key)?.leaving?.catch(() => {})
    if (this.#claims.at(key)?.state === 'leaving') throw new BackendError('What the session had there could not be let go of yet.', { transient: true })
  }

  /** What was refused has left nothing behind. Of all else that fails, such as the renewal of the lease, that is not known. */
  #unanswered(own: OwnClaim, error: unknown): void {
    if (!mayBeDone(error)) this.#gone(own, false)
  }

  /** It may be there. Unless it is asked for again, it goes at its TTL: else it would stay for as long as its lease is kept alive. */
  #failedToAsk(own: OwnClaim): void {
    if (own.state !== 'asked') return
    own.until = this.#now + own.value.ttl
    this.#sweeper.lookAt(own.until)
  }

  /** To be awaited after what else is under way: it may fail before that. */
  #covered(lease: Lease, moment: number): Promise<void> | undefined {
    const covered = this.leases.cover(lease, moment)
    covered?.catch(() => {})
    return covered
  }

  /** Asked before: whatever came of it. If its key is not there, it is a new claim. */
  async #askAgain(own: OwnClaim, ifBusy: 'queue' | 'leave'): Promise<ClaimState> {
    const sentAt = this.#now
    const { claim, lease, isUnsure } = own
    if (own.state === 'leaving') {
      this.#claims.leaves(own)
      return this.claim(claim, ifBusy)
    }
    // Somebody wants it: it is not to be swept meanwhile.
    own.until = own.isHeld ? Math.max(own.until, sentAt + own.value.ttl) : Infinity
    const step = isUnsure && ifBusy === 'queue' ? joiningOnce(own) : looking(own)
    if (isUnsure) own.writes++
    let outcome: Outcome
    try {
      [outcome] = await Promise.all([
        this.#txns.run({ ...step, kind: isUnsure ? 'claim' : 'other', directory: own.directory, lease: lease.id }),
        this.leases.cover(lease, sentAt),
      ])
      checkRecent(own, outcome)
    } catch (error) {
      if (isLeaseGone(error)) this.leases.over(lease)
      // What may have been there went with it, and nothing comes there any more.
      if (own.lease.isOver) return this.#askAnew(own, ifBusy)
      this.#failedToAsk(own)
      throw error
    }
    const line = lineAfter(own, outcome)
    // The line may be older than what has become of it since.
    if (isLeaving(own)) {
      this.#claims.leaves(own)
      return this.claim(claim, ifBusy)
    }
    if (!this.#isMine(own, line.find(own.key)) || lease.isOver) return this.#askAnew(own, ifBusy)
    const state = await this.#asked(own, sentAt, ifBusy, outcome)
    if (state.status === 'held' && own.value.ttl !== claim.ttlMs) await this.#move(own, claim.ttlMs, sentAt)
    return state
  }

  async #askAnew(own: OwnClaim, ifBusy: 'queue' | 'leave'): Promise<ClaimState> {
    const { claim, lease } = own
    this.#forget(own)
    if (lease.isOver && claim.lease) throw hasEnded(claim.lease)
    return this.claim(claim, ifBusy)
  }

  /** With several slots: who would not wait looks first, then joins, and leaves if others were faster. */
  async #tryToJoin(claim: Claim): Promise<ClaimState> {
    const line = await this.#others.read(this.#claims.nameOf(claim))
    const limit = line.limitBeside('')
    if (limit !== undefined && limit !== claim.limit) return anotherLimit(claim, limit)
    const taken = line.standings.reduce((sum, { value }) => sum + (value?.take ?? ALL_SLOTS), 0)
    if (taken + claim.take > claim.limit) return { status: 'refused', ...line.blocker() }
    const state = await this.#ask(claim, 'queue')
    if (state.status !== 'queued') return state
    const own = this.#claims.named(claim)
    return own ? this.#askAgain(own, 'leave') : state
  }

  /** At once, if it was alone. */
  #asked(own: OwnClaim, sentAt: number, ifBusy: 'queue' | 'leave', outcome: Outcome): ClaimState | Promise<ClaimState> {
    // Its key went with it, and nobody would be told.
    if (own.lease.isOver) throw new BackendError('The lease ended meanwhile.', { transient: true })
    if (isLeaving(own)) return this.#withdrawn(own)
    own.isUnsure = false
    own.wasThere ||= !outcome.succeeded
    if (!isAlone(outcome)) return this.#askedAmong(own, sentAt, ifBusy, outcome)
    own.createRevision = outcome.revision
    own.knownSince = this.#now
    return this.#held(own, sentAt, 0)
  }

  /** Whoever released it did not wait for the answer, and may have come before it. */
  async #withdrawn(own: OwnClaim): Promise<ClaimState> {
    await this.#delete(own)
    return { status: 'failed', error: new BackendError('The claim was withdrawn meanwhile.', { transient: true }) }
  }

  async #askedAmong(own: OwnClaim, sentAt: number, ifBusy: 'queue' | 'leave', outcome: Outcome): Promise<ClaimState> {
    const { claim, key } = own
    const line = lineAfter(own, outcome)
    const standing = line.find(key)
    const limit = line.limitBeside(key)
    const isOther = limit !== undefined && limit !== claim.limit
    if (!standing) {
      this.#forget(own, isSpotless(own, 1))
      if (isOther) return anotherLimit(claim, limit)
      // What made it seem taken is further down, of another prefix.
      return line.standings.length === 0 ? this.#tryToJoin(claim) : { status: 'refused', ...line.blocker() }
    }
    own.createRevision = standing.createRevision
    own.knownSince = this.#now
    if (isOther) {
      await this.#delete(own)
      return anotherLimit(claim, limit)
    }
    if (line.holds(standing)) {
      if (standing.value?.revoked) own.state = 'revoked'
      if (own.state === 'revoked') return { status: 'revoked', epoch: own.createRevision }
      return this.#held(own, sentAt, line.waiting)
    }
    if (ifBusy === 'leave') {
      await this.#delete(own)
      return { status: 'refused', ...new Line(line.standings.filter((other) => other !== standing)).blocker() }
    }
    const blocker = line.blocker(key)
    if (own.state === 'asked') own.state = 'waiting'
    this.#lookouts.join(own)
    if (blocker.ahead === 0) this.#others.tellHolders(line, 'contended').catch(() => {})
    return { status: 'queued', place: String(own.createRevision), ...blocker }
  }

  #held(own: OwnClaim, sentAt: number, waiting: number): ClaimState {
    this.#holds(own, sentAt)
    return { status: 'held', epoch: own.createRevision, waiting }
  }

  #holds(own: OwnClaim, since: number): void {
    this.#lookouts.leave(own)
    const until = own.claim.lease ? Infinity : since + own.value.ttl
    own.until = own.state === 'held' ? Math.max(own.until, until) : until
    own.state = 'held'
    this.#sweeper.lookAt(own.until)
  }

  #newOwn(claim: Claim, lease: Lease): OwnClaim {
    const { id, take, limit, ttlMs, type, metadata } = claim
    const value: ClaimValue = {
      v: 1, id, owner: this.#scope.owner, ttl: ttlMs, at: Date.now(), take, limit, type, metadata,
    }
    if (claim.lease) return this.#newMember(claim, lease, value)
    const directory = this.#claims.of(claim)
    const keyNumber = this.#claims.takeNumber(directory)
    const own = new OwnClaim(claim, directory, this.#keys.claim(directory.name, lease.name, keyNumber), lease, value, keyNumber)
    own.writes++
    this.#claims.add(own)
    return own
  }

  #newMember(claim: Claim, lease: Lease, value: ClaimValue): OwnClaim {
    const directory = this.#claims.of(claim)
    const own = new OwnClaim(claim, directory, memberKey(directory.name, lease.id), lease, value)
    own.writes++
    const before = this.#claims.at(own.key)
    this.#claims.add(own)
    if (before) this.#supersede(before)
    return own
  }

  /** Nobody wants it any more, but its key may be there: then that is the next one's, and not for who lets go of this one to delete. */
  #supersede(own: OwnClaim): void {
    this.#lookouts.leave(own)
    this.#claims.gone(own)
    if (own.isUnsure) own.lease.ghosts.add(own.key)
  }

  // Renewing

  async renew(renewal: Renewal): Promise<RenewState> {
    // It may say another thing by the time of the answer.
    const { claim, ttlMs, exact, from, counting } = renewal
    if (from !== undefined) return this.#takeOver(claim, ttlMs, from)
    const own = this.#claims.named(claim)
    const sentAt = this.#now
    // It may hold without our knowing.
    if (own?.state === 'waiting') this.#settle(own, await this.#look(own))
    if (!own?.isHeld || own.until <= sentAt) return { status: 'lost' }
    if (own.state === 'revoked') {
      this.#seen(own, await this.#look(own))
      return this.#renewed(own, undefined)
    }
    const needsAnother = exact ? ttlMs !== own.value.ttl : ttlMs > own.value.ttl
    const renewed = needsAnother ? this.#move(own, ttlMs, sentAt) : this.#prolong(own, ttlMs, sentAt)
    const [line] = await Promise.all([counting || own.isToBeSeen ? this.#look(own) : undefined, renewed])
    if (line) this.#seen(own, line)
    return this.#renewed(own, line?.waiting)
  }

  #settle(own: OwnClaim, line: Line): void {
    const standing = line.find(own.key)
    if (own.state === 'waiting' && standing && line.holds(standing)) this.granted(own, line)
  }

  #renewed(own: OwnClaim, waiting: number | undefined): RenewState {
    if (this.#claims.at(own.key) !== own || !own.isHeld) return { status: 'lost' }
    return own.state === 'revoked' ? { status: 'revoked' } : { status: 'held', waiting }
  }

  async #prolong(own: OwnClaim, ttlMs: number, sentAt: number): Promise<void> {
    let moves: number
    // The lease that it is on has to be renewed, and one that it is leaving does not tell whether it is there.
    do {
      await own.moving
      moves = own.moves
      await this.leases.renew(own.lease)
    } while (own.moves !== moves)
    if (own.isHeld) own.until = Math.max(own.until, sentAt + ttlMs)
  }

  /** To a lease of another length: with the same place, since the key stays. One after the other: each is from where it is. */
  #move(own: OwnClaim, ttlMs: number, sentAt: number): Promise<void> {
    const moved = (own.moving ?? Promise.resolve()).then(() => this.#moveNow(own, ttlMs, sentAt))
    const moving: Promise<void> = moved.catch(() => {}).then(() => {
      if (own.moving === moving) own.moving = undefined
    })
    own.moving = moving
    return moved
  }

  async #moveNow(own: OwnClaim, ttlMs: number, sentAt: number): Promise<void> {
    const lease = await this.leases.for(ttlMs)
    if (!own.isHeld) return
    const value: ClaimValue = { ...own.value, ttl: ttlMs }
    const covered = this.#covered(lease, sentAt)
    own.moves++
    own.writes++
    // Until it is answered, neither lease tells whether it is there.
    own.knownSince = Infinity
    try {
      const { succeeded } = await this.#txns.run({
        kind: 'other', compare: [isOn(own)], success: [{ kind: 'put', key: toBytes(own.key), value: writeValue(value), lease: lease.id }],
        isLikely: false, lease: lease.id,
      })
      if (!succeeded) return this.#forget(own)
      own.lease = lease
      own.value = value
    } catch (error) {
      if (isLeaseGone(error)) this.leases.over(lease)
      throw error
    } finally {
      own.moves++
      own.knownSince = this.#now
    }
    await covered
    // It was not among those of that lease when they were lost.
    if (lease.isOver) return this.#lost(own)
    if (!own.isHeld) return
    own.until = sentAt + ttlMs
    this.#sweeper.lookAt(own.until)
  }

  async #look(own: OwnClaim): Promise<Line> {
    const outcome = await this.#txns.run({ ...looking(own), kind: 'other' })
    checkRecent(own, outcome)
    return lineOf(own.directory.name, outcome.responses[0])
  }

  /** Another's claim becomes ours, under the same epoch. It changes its lease: so nothing that is late of its owner's touches it. */
  async #takeOver(claim: Claim, ttlMs: number, from: string): Promise<RenewState> {
    const given = parseToken(from)
    for (let tries = 1; tries <= TRIES; tries++) {
      const sentAt = this.#now
      const line = await this.#others.read(this.#claims.nameOf(claim))
      const standing = line.standings.find((one) => isGiven(one, claim, this.#scope.owner) || (given && isGiven(one, { id: given.claimId }, given.owner, given.epoch)))
      if (!standing || !line.holds(standing)) return { status: 'lost' }
      if (standing.value!.revoked) return { status: 'revoked' }
      const known = this.#claims.named(claim)
      if (known?.isHeld && known.key === standing.key) return this.renew({ claim, ttlMs, exact: false })
      // The answer to an earlier try was lost.
      if (known?.state === 'asked' && known.lease.id === standing.lease) return await this.#tookOver(known, sentAt, line)
      const shared = await this.leases.for(ttlMs)
      const lease = shared.id === standing.lease ? await this.leases.another(ttlMs) : shared
      const value: ClaimValue = { ...standing.value!, id: claim.id, owner: this.#scope.owner, ttl: ttlMs }
      const own = new OwnClaim(claim, this.#claims.of(claim), standing.key, lease, value)
      own.createRevision = standing.createRevision
      const before = this.#claims.at(standing.key)
      // What was read is of the past: its key is another's.
      if (before && before.claim.id !== standing.value!.id) continue
      this.#claims.add(own)
      const outcome = this.#txns.run({
        kind: 'other', compare: [{ key: toBytes(own.key), target: 'mod', value: standing.modRevision }],
        success: [{ kind: 'put', key: toBytes(own.key), value: writeValue(value), lease: lease.id }], isLikely: false, lease: lease.id,
      })
      let answer: Outcome | undefined
      try {
        answer = await outcome
        const { succeeded } = answer
        if (succeeded && before) this.#claims.gone(before)
        // The key has its number, and is not ours to name any more.
        if (succeeded && before?.keyNumber !== undefined) this.#claims.spendNumbers()
        if (succeeded) return await this.#tookOver(own, sentAt, line)
      } catch (error) {
        if (!answer) this.#unanswered(own, error)
        if (isLeaseGone(error)) this.leases.over(lease)
        this.#failedToAsk(own)
        if (before && !this.#claims.at(own.key)) this.#claims.add(before)
        throw error
      }
      if (before) this.#claims.add(before)
      this.#claims.gone(own)
    }
    return { status: 'lost' }
  }

  async #tookOver(own: OwnClaim, sentAt: number, { waiting }: Line): Promise<RenewState> {
    own.isUnsure = false
    own.knownSince = this.#now
    await this.leases.cover(own.lease, sentAt)
    if (own.lease.isOver || isLeaving(own)) return { status: 'lost' }
    this.#holds(own, sentAt)
    return { status: 'held', waiting }
  }

  // Releasing

  release(claim: Claim): Promise<ReleaseState> {
    const own = this.#claims.named(claim)
    // What is not known here is not the session's any more.
    if (claim.lease && !own) return Promise.resolve({ status: 'not-held' })
    return own ? this.#delete(own) : this.#others.release(claim)
  }

  #delete(own: OwnClaim): Promise<ReleaseState> {
    const deleted = this.#deleteNow(own)
    own.leaving = deleted
    return deleted
  }

  async #deleteNow(own: OwnClaim): Promise<ReleaseState> {
    const { isUnsure, isHeld, key, directory } = own
    if (own.claim.lease && this.#claims.at(key) !== own) return { status: 'not-held' }
    this.#lookouts.leave(own)
    own.state = 'leaving'
    own.writes++
    if (own.claim.lease && own.createRevision === 0n && !(await this.#isFound(own))) return { status: 'unknown' }
    const remove: RequestOp = { kind: 'delete', key }
    // One that waits may have come to hold it without our knowing.
    const success: RequestOp[] = isHeld ? [remove] : [rangeOf(directory), remove]
    let outcome: Outcome
    try {
      outcome = await this.#txns.run({ kind: 'release', ...(isOnlyOurs(own) ? {} : { compare: [isOn(own)] }), success, isLikely: !isUnsure })
    } catch (error) {
      own.isUnsure ||= mayBeDone(error)
      this.#sweepAgain(own)
      throw error
    }
    const { succeeded, responses } = outcome
    const deleted = succeeded ? (responses.at(-1) as DeleteResponse).deleted : 0
    this.#gone(own, deleted === 1 && isSpotless(own, 2))
    // It may have gone to another lease without our knowing.
    if (!succeeded && own.moves > 0) return this.#others.release(own.claim)
    if (deleted === 0) return { status: isUnsure ? 'unknown' : 'not-held' }
    if (isHeld) return { status: 'released' }
    const line = lineOf(own.directory.name, responses[0])
    const standing = line.find(key)
    return { status: standing && line.holds(standing) ? 'released' : 'not-held' }
  }

  /**
   * The next that the session has there has the same key on the same lease: so it is deleted only as it was created, or what is late of
   * this would delete that one.
   */
  async #isFound(own: OwnClaim): Promise<boolean> {
    try {
      const standing = (await this.#look(own)).find(own.key)
      if (this.#isMine(own, standing)) own.createRevision = standing!.createRevision
      else this.#gone(own, false)
    } catch (error) {
      this.#sweepAgain(own)
      throw error
    }
    return own.createRevision > 0n
  }

  #sweepAgain(own: OwnClaim): void {
    own.until = this.#now
    this.#sweeper.lookAt(this.#now + SWEEP_AGAIN_MS)
  }

  // For transactions

  /** A claim that holds under this epoch, as far as is known: its place in the line is its epoch, too. */
  findHeld({ claim, epoch }: Held): OwnClaim | undefined {
    const own = this.#claims.named(claim)
    return own?.state === 'held' && own.createRevision === epoch && own.until > this.#now ? own : undefined
  }

  // Whosever it is

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.#others.revoke(resource, when)
  }

  inspect(beginning: string): AsyncIterable<ResourceState> {
    return inspect(this.#client, this.#keys, beginning)
  }

  // What leases and lookouts tell

  isUsed(lease: Lease): boolean {
    for (const own of this.#claims) if (own.lease === lease) return true
    return false
  }

  granted(own: OwnClaim, line: Line): void {
    // Whenever it came to hold, the server counts from there.
    const since = own.lease.isSessions ? this.#now : own.lease.renewedAt
    const { resource, id: claimId } = own.claim
    // By the time that its holder has begun, it might be over: who asks has the lease renewed first.
    if (this.#now - since > own.value.ttl / 2) return this.#scope.wake({ kind: 'look', resource })
    own.createRevision = line.find(own.key)!.createRevision
    this.#holds(own, since)
    this.#scope.wake({ kind: 'granted', resource, claimId, epoch: own.createRevision, since, waiting: line.waiting })
  }

  vanished(own: OwnClaim): void {
    this.#lost(own)
  }

  told(text: string): void {
    const message = readMessage(text)
    if (message) this.#told(message)
  }

  #told([kind, key, createRevision]: Message): void {
    const own = this.#claims.at(key)
    if (!own?.isHeld || String(own.createRevision) !== createRevision) return
    if (kind === 'lost') return this.#lost(own)
    if (kind === 'revoked') own.state = 'revoked'
    this.#scope.wake({ kind, resource: own.claim.resource, claimId: own.claim.id })
  }

  mayHaveMissed(lease: Lease): void {
    for (const own of this.#claims.on(lease)) {
      if (own.state !== 'held') continue
      own.isToBeSeen = true
      this.#look(own).then((line) => this.#seen(own, line)).catch(() => {})
    }
  }

  #seen(own: OwnClaim, line: Line): void {
    if (!own.isHeld) return
    own.isToBeSeen = false
    const standing = line.find(own.key)
    if (!this.#isMine(own, standing)) return this.#lost(own)
    if (standing!.value?.revoked && own.state !== 'revoked') this.#told(['revoked', own.key, String(own.createRevision)])
  }

  over(lease: Lease): void {
    const { session } = lease
    if (session) this.#scope.wake({ kind: 'lost', resource: session.resource, claimId: session.id })
    for (const own of this.#claims.on(lease)) this.#lost(own)
  }

  /** Known, but not there: lost. There, but not known: a request that was carried out after all that was known to be over. */
  attached(lease: Lease, keys: ReadonlySet<string>, askedAt: number): void {
    for (const own of this.#claims.on(lease)) {
      if (own.knownSince <= askedAt && !keys.has(own.key)) this.#confirmLoss(own)
    }
    const mailbox = this.#keys.mailbox(lease.id)
    for (const key of keys) {
      if (key === mailbox || this.#claims.at(key) || (lease.isSessions && !lease.ghosts.has(key))) continue
      this.#deleteUnknown(key, lease).catch(() => {})
    }
  }

  /** It may have been let go of since, or its key have become that of another claim: so it is deleted only as it was seen. */
  async #deleteUnknown(key: string, lease: Lease): Promise<void> {
    const { responses } = await this.#txns.run({ kind: 'other', success: [{ kind: 'range', key: toBytes(key) }], isLikely: true })
    const [found] = (responses[0] as RangeResponse).kvs
    if (found?.lease === lease.id && !this.#claims.at(key)) await this.#others.delete([standingOf(found)])
  }

  /** What a lease has is told by a member that may be behind. */
  #confirmLoss(own: OwnClaim): void {
    const { lease } = own
    const judge = (line: Line) => {
      if (own.lease === lease && this.#claims.at(own.key) === own && !isLeaving(own) && !this.#isMine(own, line.find(own.key))) this.#lost(own)
    }
    // If it cannot be read now, the next beat finds it missing again.
    this.#look(own).then(judge).catch(() => {})
  }

  #lost(own: OwnClaim): void {
    const { state, claim: { resource, id: claimId } } = own
    this.#forget(own)
    if (this.#isClosed) return
    if (state === 'held' || state === 'revoked') this.#scope.wake({ kind: 'lost', resource, claimId })
    else if (state === 'waiting') this.#scope.wake({ kind: 'look', resource })
  }

  #forget(own: OwnClaim, isSpotless = false): void {
    this.#lookouts.leave(own)
    this.#gone(own, isSpotless)
  }

  /** `isSpotless`: nothing that was asked for about it can still happen. */
  #gone(own: OwnClaim, isSpotless: boolean): void {
    this.#claims.gone(own)
    if (own.claim.lease && own.isUnsure) own.lease.ghosts.add(own.key)
    if (own.keyNumber === undefined) return
    if (isSpotless) this.#claims.freeNumber(own.directory, own.keyNumber)
    else this.#claims.spendNumbers()
  }

  #isMine({ claim, lease, createRevision }: OwnClaim, standing: Standing | undefined): boolean {
    if (!claim.lease) return standing?.value?.id === claim.id
    return standing?.lease === lease.id && (createRevision === 0n || standing.createRevision === createRevision)
  }

  /** What is known of a claim of ours. */
  known(claim: Claim): OwnClaim | undefined {
    return this.#claims.named(claim)
  }

  get #now(): number {
    return this.#scope.clock.now()
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#sweeper.close()
    const waiting = [...this.#claims].filter(({ isHeld }) => !isHeld)
    this.#lookouts.close()
    await inTime(Promise.allSettled(waiting.map((own) => this.#delete(own))))
    await inTime(this.leases.close())
  }
}

/** There is no other lease that a session could have its claims on; one that has come since is of whoever has taken the session up again. */
function hasEnded({ id }: Pick<Leased, 'id'>): SessionExpiredError {
  return new SessionExpiredError(`The session ${id.toString(16)} has ended: etcd has no such lease any more.`)
}

/** It may have come to this while something was awaited. */
function isLeaving({ state }: OwnClaim): boolean {
  return state === 'leaving'
}

/** Whatever is at its key by the time that it is deleted is this claim: the key has had its one name, and nobody else can have taken it over. */
function isOnlyOurs(own: OwnClaim): boolean {
  return own.keyNumber !== undefined && isSpotless(own, 2) && !own.claim.isTold
}

/** All that was to change it was answered, and it is no more than so many requests: none of them was sent again. */
function isSpotless({ isUnsure, writes, moves }: OwnClaim, most: number): boolean {
  return !isUnsure && writes <= most && moves === 0
}

/** While its leader changes, etcd 3.4 may answer with what was true a moment ago: then what was just made is not in it. */
function checkRecent({ createRevision }: OwnClaim, { revision }: Outcome): void {
  if (revision < createRevision) throw new BackendError('etcd has answered with what was true before.', { transient: true })
}

function isGiven({ value, createRevision }: Standing, { id }: { readonly id: string }, owner: string, epoch = createRevision): boolean {
  return value?.id === id && value.owner === owner && createRevision === epoch
}

function inTime(work: Promise<unknown>): Promise<unknown> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, LEAVE_MS)))
  return Promise.race([work.catch(() => {}), timeout]).finally(() => clearTimeout(timer))
}
