/** Letting go: of what is held, of what waits, and of what nobody knows whether it is there. */
import type { Claim, ReleaseState } from '../../core/backend.js'
import { follow, promised, type Asker } from './askers.js'
import type { DeleteResponse, RequestOp } from './client/messages.js'
import { isLeaseGone, isNoSpace, mayBeDone } from './errors.js'
import type { Line } from './line.js'
import type { OwnClaim } from './own-claim.js'
import type { Parts } from './parts.js'
import { isOn, lineOf, rangeOf, voiding } from './requests.js'
import type { Outcome } from './txns.js'

/** A claim whose key could not be deleted is tried again. */
const SWEEP_AGAIN_MS = 500

const RELEASED: ReleaseState = { status: 'released' }
const NOT_HELD: ReleaseState = { status: 'not-held' }
const UNKNOWN: ReleaseState = { status: 'unknown' }

type Needed = Pick<Parts, 'scope' | 'txns' | 'directories' | 'lookouts' | 'others' | 'sweeper' | 'fates'>

export class Releasing {
  readonly #parts: Needed

  constructor(parts: Needed) {
    this.#parts = parts
  }

  release(claim: Claim, asker: Asker<ReleaseState>): void {
    const { directories, others } = this.#parts
    const own = directories.named(claim)
    if (own && !claim.lease) this.#letGoOf(own, asker)
    else if (own) follow(this.letGoOf(own), asker)
    // What is not known here is not the session's any more.
    else if (claim.lease) asker.answered(NOT_HELD)
    else follow(others.release(claim), asker)
  }

  letGoOf(own: OwnClaim): Promise<ReleaseState> {
    if (!own.claim.lease) return promised((asker) => this.#letGoOf(own, asker))
    own.leaving ??= this.#letGoOfMember(own).finally(() => (own.leaving = undefined))
    return own.leaving
  }

  /**
   * The next that the session has there has the same key on the same lease: so it is deleted only as it was created, or what is late of
   * this would delete that one.
   */
  async #letGoOfMember(own: OwnClaim): Promise<ReleaseState> {
    if (this.#parts.directories.at(own.key) !== own) return NOT_HELD
    const { isHeld: wasHeld, isUnsure: wasUnsure } = own
    this.#leaves(own)
    if (own.isInDoubt && !(await this.#isFound(own))) return wasHeld && !wasUnsure ? NOT_HELD : UNKNOWN
    return promised((asker) => this.#delete(own, wasHeld, asker))
  }

  /** What was asked for it is void from now on. → what has come of it */
  async askNoMore(own: OwnClaim): Promise<Line> {
    const { responses } = await this.#parts.txns.run(voiding(own))
    return lineOf(own.directory.name, responses[1])
  }

  async #cleared(own: OwnClaim): Promise<Line> {
    try {
      const line = await this.askNoMore(own)
      own.settled()
      return line
    } catch (error) {
      // For want of space nothing else comes there, either.
      if (isNoSpace(error)) return this.#parts.fates.look(own)
      throw error
    }
  }

  /** What may yet come of it is made void: so what is there now is all that there will be. */
  async #isFound(own: OwnClaim): Promise<boolean> {
    const { fates, directories } = this.#parts
    try {
      const standing = (await this.#cleared(own)).find(own.key)
      // By now it may be another process's session, and its key.
      if (directories.at(own.key) !== own) return false
      if (fates.isMine(own, standing)) {
        own.createRevision = standing!.createRevision
        own.modRevision = standing!.modRevision
        return true
      }
    } catch (error) {
      // With it went all that was there, and nothing comes there any more.
      if (!isLeaseGone(error)) {
        this.#sweepAgain(own)
        throw error
      }
    }
    fates.gone(own, false)
    return false
  }

  #letGoOf(own: OwnClaim, asker: Asker<ReleaseState>): void {
    const wasHeld = own.isHeld
    this.#leaves(own)
    this.#delete(own, wasHeld, asker)
  }

  #leaves(own: OwnClaim): void {
    this.#parts.lookouts.leave(own)
    own.state = 'leaving'
    own.until = Infinity
    own.writes++
  }

  #delete(own: OwnClaim, wasHeld: boolean, asker: Asker<ReleaseState>): void {
    const remove: RequestOp = { kind: 'delete', key: own.key }
    // One that waits may have come to hold it without our knowing.
    const success = wasHeld ? [remove] : [rangeOf(own.directory), remove]
    const compare = own.isOnlyOurs ? undefined : [isOn(own)]
    this.#parts.txns.ask({ kind: 'release', compare, success, isLikely: !own.isUnsure }, new Deletion(this, own, wasHeld, asker))
  }

  /** For `Deletion`, as is the next. */
  deleted({ own, wasHeld, wasUnsure, asker }: Deletion, { succeeded, responses, isRepeated }: Outcome): void {
    const { fates, others } = this.#parts
    const deleted = succeeded ? (responses.at(-1) as DeleteResponse).deleted : 0
    fates.gone(own, deleted === 1 && own.isSpotless(2))
    // It may have gone to another lease without our knowing.
    if (!succeeded && own.moves > 0) return follow(others.release(own.claim), asker)
    if (deleted === 0) return asker.answered(wasUnsure || isRepeated ? UNKNOWN : NOT_HELD)
    if (wasHeld) return asker.answered(RELEASED)
    const line = lineOf(own.directory.name, responses[0])
    const standing = line.find(own.key)
    asker.answered(standing && line.holds(standing) ? RELEASED : NOT_HELD)
  }

  notDeleted({ own, asker }: Deletion, error: unknown): void {
    own.isUnsure ||= mayBeDone(error)
    this.#sweepAgain(own)
    asker.failed(error)
  }

  #sweepAgain(own: OwnClaim): void {
    const now = this.#parts.scope.clock.now()
    own.until = now
    this.#parts.sweeper.lookAt(now + SWEEP_AGAIN_MS)
  }
}

class Deletion implements Asker<Outcome> {
  readonly own: OwnClaim
  readonly wasHeld: boolean
  readonly wasUnsure: boolean
  readonly asker: Asker<ReleaseState>
  readonly #releasing: Releasing

  constructor(releasing: Releasing, own: OwnClaim, wasHeld: boolean, asker: Asker<ReleaseState>) {
    this.#releasing = releasing
    this.own = own
    this.wasHeld = wasHeld
    this.wasUnsure = own.isUnsure
    this.asker = asker
  }

  answered(outcome: Outcome): void {
    this.#releasing.deleted(this, outcome)
  }

  failed(error: unknown): void {
    this.#releasing.notDeleted(this, error)
  }
}
