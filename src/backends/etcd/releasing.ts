/** Letting go: of what is held, of what waits, and of what nobody knows whether it is there. */
import type { Claim, ReleaseState } from '../../core/backend.js'
import type { Clock } from '../../core/clock.js'
import { answerTo, type Answer } from './answers.js'
import type { DeleteResponse, RequestOp } from './client/messages.js'
import type { Directories } from './directories.js'
import { mayBeDone } from './errors.js'
import type { Fates } from './fates.js'
import type { Lookouts } from './lookouts.js'
import type { Others } from './others.js'
import type { OwnClaim } from './own-claim.js'
import { isOn, lineOf, rangeOf } from './requests.js'
import type { Sweeper } from './sweeper.js'
import type { Asker, Outcome, Txns } from './txns.js'

/** A claim whose key could not be deleted is tried again. */
const SWEEP_AGAIN_MS = 500

const RELEASED: ReleaseState = { status: 'released' }
const NOT_HELD: ReleaseState = { status: 'not-held' }
const UNKNOWN: ReleaseState = { status: 'unknown' }

export interface ReleasingParts {
  readonly clock: Clock
  readonly txns: Txns
  readonly directories: Directories
  readonly lookouts: Lookouts
  readonly others: Others
  readonly sweeper: Sweeper
  readonly fates: Fates
}

export class Releasing {
  readonly #parts: ReleasingParts

  constructor(parts: ReleasingParts) {
    this.#parts = parts
  }

  release(claim: Claim, answer: Answer<ReleaseState>): void {
    const { directories, others } = this.#parts
    const own = directories.named(claim)
    if (own && !claim.lease) this.#delete(own, answer)
    else if (own) answer.follows(this.delete(own))
    // What is not known here is not the session's any more.
    else if (claim.lease) answer.is(NOT_HELD)
    else answer.follows(others.release(claim))
  }

  delete(own: OwnClaim): Promise<ReleaseState> {
    const deleted = own.claim.lease ? this.#deleteMember(own) : answerTo<ReleaseState>((answer) => this.#delete(own, answer))
    own.leaving = deleted
    return deleted
  }

  /**
   * The next that the session has there has the same key on the same lease: so it is deleted only as it was created, or what is late of
   * this would delete that one.
   */
  async #deleteMember(own: OwnClaim): Promise<ReleaseState> {
    if (this.#parts.directories.at(own.key) !== own) return NOT_HELD
    const wasHeld = own.isHeld
    this.#leaves(own)
    if (own.createRevision === 0n && !(await this.#isFound(own))) return UNKNOWN
    return answerTo((answer) => this.#send(own, wasHeld, answer))
  }

  async #isFound(own: OwnClaim): Promise<boolean> {
    const { fates } = this.#parts
    try {
      const standing = (await fates.look(own)).find(own.key)
      if (fates.isMine(own, standing)) own.createRevision = standing!.createRevision
      else fates.gone(own, false)
    } catch (error) {
      this.#sweepAgain(own)
      throw error
    }
    return own.createRevision > 0n
  }

  #delete(own: OwnClaim, answer: Answer<ReleaseState>): void {
    const wasHeld = own.isHeld
    this.#leaves(own)
    this.#send(own, wasHeld, answer)
  }

  #leaves(own: OwnClaim): void {
    this.#parts.lookouts.leave(own)
    own.state = 'leaving'
    own.writes++
  }

  #send(own: OwnClaim, wasHeld: boolean, answer: Answer<ReleaseState>): void {
    const remove: RequestOp = { kind: 'delete', key: own.key }
    // One that waits may have come to hold it without our knowing.
    const success = wasHeld ? [remove] : [rangeOf(own.directory), remove]
    const compare = own.isOnlyOurs ? undefined : [isOn(own)]
    this.#parts.txns.ask({ kind: 'release', compare, success, isLikely: !own.isUnsure }, new Deletion(this, own, wasHeld, answer))
  }

  /** For `Deletion`, as is the next. */
  deleted({ own, wasHeld, wasUnsure, answer }: Deletion, { succeeded, responses }: Outcome): void {
    const { fates, others } = this.#parts
    const deleted = succeeded ? (responses.at(-1) as DeleteResponse).deleted : 0
    fates.gone(own, deleted === 1 && own.isSpotless(2))
    // It may have gone to another lease without our knowing.
    if (!succeeded && own.moves > 0) return answer.follows(others.release(own.claim))
    if (deleted === 0) return answer.is(wasUnsure ? UNKNOWN : NOT_HELD)
    if (wasHeld) return answer.is(RELEASED)
    const line = lineOf(own.directory.name, responses[0])
    const standing = line.find(own.key)
    answer.is(standing && line.holds(standing) ? RELEASED : NOT_HELD)
  }

  notDeleted({ own, answer }: Deletion, error: unknown): void {
    own.isUnsure ||= mayBeDone(error)
    this.#sweepAgain(own)
    answer.failed(error)
  }

  #sweepAgain(own: OwnClaim): void {
    const now = this.#parts.clock.now()
    own.until = now
    this.#parts.sweeper.lookAt(now + SWEEP_AGAIN_MS)
  }
}

class Deletion implements Asker {
  readonly own: OwnClaim
  readonly wasHeld: boolean
  readonly wasUnsure: boolean
  readonly answer: Answer<ReleaseState>
  readonly #releasing: Releasing

  constructor(releasing: Releasing, own: OwnClaim, wasHeld: boolean, answer: Answer<ReleaseState>) {
    this.#releasing = releasing
    this.own = own
    this.wasHeld = wasHeld
    this.wasUnsure = own.isUnsure
    this.answer = answer
  }

  answered(outcome: Outcome): void {
    this.#releasing.deleted(this, outcome)
  }

  failed(error: unknown): void {
    this.#releasing.notDeleted(this, error)
  }
}
