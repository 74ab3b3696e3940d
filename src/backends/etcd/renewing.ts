/** Renewing what is held, taking it to another lease, and taking over what another process has given away. */
import type { Claim, Renewal, RenewState } from '../../core/backend.js'
import { BackendError } from '../../core/errors.js'
import { parseToken } from '../../core/token.js'
import { writeValue, type ClaimValue } from './claim-value.js'
import { isLeaseGone, isNoSpace, mayBeDone } from './errors.js'
import { toBytes } from './keys.js'
import type { Lease } from './leases.js'
import type { Line, Standing } from './line.js'
import { TRIES } from './others.js'
import { OwnClaim } from './own-claim.js'
import type { Parts } from './parts.js'
import { lineOf, rangeOf } from './requests.js'
import type { Outcome } from './txns.js'

type Needed = Pick<Parts, 'scope' | 'txns' | 'leases' | 'directories' | 'others' | 'sweeper' | 'fates'>

export class Renewing {
  readonly #parts: Needed

  constructor(parts: Needed) {
    this.#parts = parts
  }

  async renew(renewal: Renewal): Promise<RenewState> {
    // It may say another thing by the time of the answer.
    const { claim, ttlMs, exact, from, counting } = renewal
    if (from !== undefined) return this.#takeOver(claim, ttlMs, from)
    const { directories, fates } = this.#parts
    const own = directories.named(claim)
    const sentAt = this.#now
    // It may hold without our knowing.
    if (own?.state === 'waiting') this.#settle(own, await fates.look(own))
    if (!own?.isHeld || own.until <= sentAt) return { status: 'lost' }
    if (own.state === 'revoked') {
      fates.seen(own, await fates.look(own))
      return this.#renewed(own, undefined)
    }
    const wantedMs = exact ? ttlMs : Math.max(ttlMs, own.value.ttl)
    const isThere = wantedMs === own.value.ttl && !isInDoubt(own)
    const renewed = isThere ? this.#prolong(own, ttlMs, sentAt) : this.move(own, wantedMs, sentAt)
    const [line] = await Promise.all([counting || own.isToBeSeen ? fates.look(own) : undefined, renewed])
    if (line) fates.seen(own, line)
    return this.#renewed(own, line?.waiting)
  }

  #settle(own: OwnClaim, line: Line): void {
    const standing = line.find(own.key)
    if (own.state === 'waiting' && standing && line.holds(standing)) this.#parts.fates.granted(own, line)
  }

  #renewed(own: OwnClaim, waiting: number | undefined): RenewState {
    if (this.#parts.directories.at(own.key) !== own || !own.isHeld) return { status: 'lost' }
    return own.state === 'revoked' ? { status: 'revoked' } : { status: 'held', waiting }
  }

  async #prolong(own: OwnClaim, ttlMs: number, sentAt: number): Promise<void> {
    let moves: number
    // The lease that it is on has to be renewed, and one that it is leaving does not tell whether it is there.
    do {
      await own.moving
      if (isInDoubt(own)) return this.move(own, Math.max(ttlMs, own.value.ttl), sentAt)
      moves = own.moves
      await this.#parts.leases.renew(own.lease)
    } while (own.moves !== moves)
    if (own.isHeld) own.until = Math.max(own.until, sentAt + ttlMs)
  }

  /** To a lease of another length: with the same place, since the key stays. One after the other: each is from where it is. */
  move(own: OwnClaim, ttlMs: number, sentAt: number): Promise<void> {
    const moved = (own.moving ?? Promise.resolve()).then(() => this.#moveNow(own, ttlMs, sentAt))
    const moving: Promise<void> = moved.catch(() => {}).then(() => {
      if (own.moving === moving) own.moving = undefined
    })
    own.moving = moving
    return moved
  }

  /**
   * Only as it was last written. So of all that was asked for and not answered, no more than one is carried out, and nothing any more as
   * soon as something is known to have been: what was late could take it to a lease that nobody keeps.
   */
  async #moveNow(own: OwnClaim, ttlMs: number, sentAt: number): Promise<void> {
    const { txns, leases, sweeper, fates } = this.#parts
    const lease = await leases.for(ttlMs)
    // Before it is there: on one that is about to end, and cannot be renewed, it would end before its holder thinks so.
    await leases.cover(lease, sentAt)
    if (!isKept(own)) return
    own.moves++
    own.writes++
    // Until it is answered, neither lease tells whether it is there.
    own.knownSince = Infinity
    let before: Set<Lease> | undefined
    try {
      for (let tries = 1; isKept(own) && (tries === 1 || own.lease !== lease || own.value.ttl !== ttlMs); tries++) {
        if (tries > TRIES) throw new BackendError('Others write to the claim all the time.', { transient: true })
        const value: ClaimValue = { ...own.value, ttl: ttlMs }
        before = own.maybeOn
        own.maybeOn = new Set(before).add(lease)
        const { succeeded, responses, revision } = await txns.run({
          kind: 'other', compare: [{ key: own.key, target: 'mod', value: own.modRevision }],
          success: [{ kind: 'put', key: own.key, value: writeValue(value), lease: lease.id }], failure: [rangeOf(own.directory)],
          isLikely: false, lease: lease.id,
        })
        own.maybeOn = undefined
        if (succeeded) this.#isAt(own, lease, value, revision)
        else this.#found(own, lineOf(own.directory.name, responses[0]))
      }
    } catch (error) {
      if (isLeaseGone(error)) leases.over(lease)
      if (!mayBeDone(error) || (isNoSpace(error) && (await this.#isFound(own)))) own.maybeOn = before
      throw error
    } finally {
      own.moves++
      own.knownSince = this.#now
    }
    // It was not among those of that lease when they were lost.
    if (own.lease.isOver) return fates.lost(own)
    if (!isKept(own)) return
    own.until = sentAt + ttlMs
    sweeper.lookAt(own.until)
  }

  /** What fails for want of space was done, or never will be: that can be seen. A server that refuses all transactions would else keep it in doubt. */
  async #isFound(own: OwnClaim): Promise<boolean> {
    try {
      const line = await this.#parts.others.read(own.directory.name)
      const standing = line.find(own.key)
      if (!own.isHeld || !standing || standing.modRevision < own.modRevision) return false
      this.#found(own, line)
      return true
    } catch {
      return false
    }
  }

  #isAt(own: OwnClaim, lease: Lease, value: ClaimValue, modRevision: bigint): void {
    own.lease = lease
    own.value = value
    own.modRevision = modRevision
  }

  /** It was written since: by a request of ours of which nothing was heard, by who revoked it, or by who has taken it over. */
  #found(own: OwnClaim, line: Line): void {
    const { leases, fates } = this.#parts
    fates.seen(own, line)
    if (!own.isHeld) return
    const { lease: id, value, modRevision } = line.find(own.key)!
    const lease = leases.find(id)
    if (lease) this.#isAt(own, lease, value!, modRevision)
    else fates.lost(own)
  }

  /** Another's claim becomes ours, under the same epoch. It changes its lease: so nothing that is late of its owner's touches it. */
  async #takeOver(claim: Claim, ttlMs: number, from: string): Promise<RenewState> {
    const { scope: { owner }, txns, leases, directories, others, fates } = this.#parts
    const given = parseToken(from)
    for (let tries = 1; tries <= TRIES; tries++) {
      const sentAt = this.#now
      const line = await others.read(directories.nameOf(claim))
      const standing = line.standings.find((one) => isGiven(one, claim, owner) || (given && isGiven(one, { id: given.claimId }, given.owner, given.epoch)))
      if (!standing || !line.holds(standing)) return { status: 'lost' }
      if (standing.value!.revoked) return { status: 'revoked' }
      const known = directories.named(claim)
      if (known?.isHeld && known.key === standing.key) return this.renew({ claim, ttlMs, exact: false })
      // The answer to an earlier try was lost.
      if (known?.state === 'asked' && known.lease.id === standing.lease) return await this.#tookOver(known, standing.modRevision, sentAt, line)
      const shared = await leases.for(ttlMs)
      const lease = shared.id === standing.lease ? await leases.another(ttlMs) : shared
      const value: ClaimValue = { ...standing.value!, id: claim.id, owner, ttl: ttlMs }
      const before = directories.at(standing.key)
      // What was read is of the past: its key is another's, or on its way out.
      if (before && before !== known && (before.claim.id !== standing.value!.id || before.isLeaving)) continue
      const own = new OwnClaim(claim, directories.of(claim), standing.key, lease, value)
      own.createRevision = standing.createRevision
      own.modRevision = standing.modRevision
      directories.add(own)
      const outcome = txns.run({
        kind: 'other', compare: [{ key: toBytes(own.key), target: 'mod', value: standing.modRevision }],
        success: [{ kind: 'put', key: toBytes(own.key), value: writeValue(value), lease: lease.id }], isLikely: false, lease: lease.id,
      })
      let answer: Outcome | undefined
      try {
        answer = await outcome
        const { succeeded, revision } = answer
        if (succeeded) return await this.#tookOver(own, revision, sentAt, line)
      } catch (error) {
        if (!answer) fates.unanswered(own, error)
        if (isLeaseGone(error)) leases.over(lease)
        fates.maybeThere(own, error)
        throw error
      }
      fates.gone(own, true)
    }
    return { status: 'lost' }
  }

  async #tookOver(own: OwnClaim, modRevision: bigint, sentAt: number, { waiting }: Line): Promise<RenewState> {
    const { leases, directories, fates } = this.#parts
    own.isUnsure = false
    own.modRevision = modRevision
    own.knownSince = this.#now
    // The key has its number, which is not ours to give any more.
    for (const before of directories.displacedBy(own)) fates.gone(before, false)
    await leases.cover(own.lease, sentAt)
    if (own.lease.isOver || own.isLeaving) return { status: 'lost' }
    fates.holds(own, sentAt)
    return { status: 'held', waiting }
  }

  get #now(): number {
    return this.#parts.scope.clock.now()
  }
}

function isKept({ state }: OwnClaim): boolean {
  return state === 'held'
}

/** Nothing was heard of the last request that was to take it elsewhere: until that is done once more it could end with any of these leases. */
function isInDoubt({ maybeOn, moving }: OwnClaim): boolean {
  return maybeOn !== undefined && !moving
}

function isGiven({ value, createRevision }: Standing, { id }: { readonly id: string }, owner: string, epoch = createRevision): boolean {
  return value?.id === id && value.owner === owner && createRevision === epoch
}
