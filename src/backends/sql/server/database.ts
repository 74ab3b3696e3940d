/** What the steps need of a database server: our functions in it, and perhaps a way for it to tell us something. */

/** A function of ours in the database, or a procedure. */
export type StepName = 'claim' | 'renew' | 'release' | 'revoke' | 'inspect' | 'readNews' | 'leave' | 'tidy' | 'tidyPage' | 'readKeys' | 'commitKeys'
/** For one by itself, where a list costs too much. */
export type ShortStepName = 'claimLock' | 'releaseLock'

export interface Listening {
  close(): Promise<void>
}

export interface Listener {
  readonly onNews: (news: string) => void
  /** Nothing is heard any more. */
  readonly onEnd: () => void
}

/** There is no way to be told anything, and there will be none. */
export class CannotListen extends Error {}

export interface Database {
  readonly name: string
  /** Makes our tables and functions, unless they are there. */
  migrate(): Promise<void>
  /** One round trip. All values are text, which every client sends as it is, and so is the answer: JSON. */
  call(step: StepName | ShortStepName, values: readonly string[]): Promise<string>
  /** Whether there are functions for one claim by itself. */
  readonly hasShortSteps: boolean
  /** Whether others can see a commit before it is sure to stay. Then whoever reads says what it knows to stay, and is told. */
  readonly showsEarly: boolean
  /** Hears what is told to an owner, on a connection of its own. */
  readonly listen?: ((owner: string, listener: Listener) => Promise<Listening>) | undefined
  /** What is known of an error that came out of a call. */
  failureOf(error: unknown): Failure
  /** Closes only what it opened itself. */
  close(): Promise<void>
}

export interface Failure {
  /**
   * - `undone`: another transaction was in the way, or the server could not be reached: nothing has happened, and the same again
   *   will do
   * - `unknown`: the answer did not come; what was asked for may have happened
   * - `final`: it will be no better next time
   */
  readonly kind: 'undone' | 'unknown' | 'final'
  /** In our words; without secrets. */
  readonly message: string
  readonly cause: Error
}
