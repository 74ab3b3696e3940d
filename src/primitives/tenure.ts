/** What a mutex and an election have in common: a session's place in a line, and what it holds there. */
import type { Hold } from '../core/hold.js'
import type { Member } from './member.js'
import { checkPrefix, memberKey, Session } from './session.js'

export abstract class Tenure {
  readonly session: Session
  readonly prefix: string
  /** @internal */
  protected readonly resource: string
  /** @internal */
  protected hold: Hold | undefined
  #controller: AbortController | undefined

  constructor(kind: 'Mutex' | 'Election', session: Session, prefix: string) {
    this.resource = checkPrefix(kind, session, prefix)
    this.session = session
    this.prefix = prefix
  }

  /** Its place in the line on the store. */
  get key(): string {
    return memberKey(this.resource, this.session.lease)
  }

  /** When the session came to hold it, in the count of the store; 0 if it does not. It grows with every holder. */
  get rev(): bigint {
    return this.hold?.epoch ?? 0n
  }

  get header(): { readonly revision: bigint } {
    return { revision: this.rev }
  }

  /** To be sent along with what is written, and checked where the data is; 0 if it is not held. */
  get fence(): bigint {
    return this.hold?.fence ?? 0n
  }

  /** Aborts when it is lost, or the session ends; never when it is given up. Each time that it is held has another. */
  get signal(): AbortSignal {
    this.#controller ??= Session.controllerOf(this.session, this.hold)
    return this.#controller.signal
  }

  /** @internal */
  protected get member(): Member {
    return Session.member(this.session, this.resource)
  }

  /** @internal */
  protected begins(hold: Hold): void {
    if (hold === this.hold) return
    this.hold = hold
    this.#controller = undefined
  }

  /** Gives it up; if that fails, it can be tried again. → whether it was ours @internal */
  protected async gives(hold: Hold): Promise<boolean> {
    const wasOurs = await this.member.leave(hold)
    if (this.hold === hold) this.hold = undefined
    return wasOurs
  }
}
