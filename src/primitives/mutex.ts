/** A mutex of a session, with the meaning of etcd's: the session holds it, not the caller. */
import { LockReleasedError } from '../core/errors.js'
import { Ownership } from '../core/ownership.js'
import { checkWaiting, type Session, type WaitOptions } from './session.js'
import { Tenure } from './tenure.js'

export class Mutex extends Tenure implements AsyncDisposable {
  constructor(session: Session, prefix: string) {
    super('Mutex', session, prefix)
  }

  /** Waits for it. If the session has it already, through whatever mutex, so has this one. */
  async lock(options?: WaitOptions): Promise<void> {
    const signal = checkWaiting(options)
    this.begins(await this.member.enter({ type: 'mutex' }, signal))
  }

  /** Rejects with `LockedError` if another session has it, or waits for it. */
  async tryLock(options?: WaitOptions): Promise<void> {
    const signal = checkWaiting(options)
    this.begins(await this.member.tryToEnter({ type: 'mutex' }, signal))
  }

  /** Releases it for the whole session. If that fails, it can be tried again. */
  async unlock(): Promise<void> {
    const hold = this.hold
    if (!hold) throw this.#released('it was never locked, or was unlocked before.')
    if (!(await this.gives(hold))) throw this.#released(hold.error ? `it was lost. ${hold.error.message}` : 'another mutex of the session has unlocked it.')
  }

  /** A condition for a transaction (`tx.requires(mutex.isOwner())`), and a question to the store: `await mutex.isOwner().check()`. */
  isOwner(): Ownership {
    if (!this.hold) throw this.#released('it was never locked, or was unlocked before.')
    return new Ownership(this.hold)
  }

  /** Unlocks it, if it is locked; never rejects. */
  async [Symbol.asyncDispose](): Promise<void> {
    const hold = this.hold
    if (!hold) return
    await this.unlock().catch(() => hold.abandon())
  }

  #released(why: string): LockReleasedError {
    return new LockReleasedError(this.prefix, `The mutex "${this.prefix}" is not locked: ${why}`)
  }
}
