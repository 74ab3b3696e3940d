/** What fails for a moment is tried again: every step can be taken twice. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Clock } from '../../../core/clock.js'
import { BackendError, HoldfastError } from '../../../core/errors.js'
import type { Database, Failure } from './database.js'

/** Whoever waits for the answer has more patience than that, but not much more. */
const GIVE_UP_MS = 2_000
const FIRST_PAUSE_MS = 5
const LONGEST_PAUSE_MS = 500

interface RetrySurroundings {
  /** Whether nobody waits for the answer any more. */
  isOver(): boolean
  onFailure(): void
}

export class Retries {
  readonly #database: Database
  readonly #clock: Clock
  readonly #around: RetrySurroundings
  /** Of the last call, if it failed. */
  trouble: Error | undefined

  constructor(database: Database, clock: Clock, around: RetrySurroundings) {
    this.#database = database
    this.#clock = clock
    this.#around = around
  }

  /** `mayBeDone`: an earlier try has perhaps done it. */
  async run<T>(attempt: (mayBeDone: boolean) => Promise<T>): Promise<T> {
    const giveUpAt = this.#clock.now() + GIVE_UP_MS
    let mayBeDone = false
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2)) {
      try {
        const result = await attempt(mayBeDone)
        this.trouble = undefined
        return result
      } catch (error) {
        if (error instanceof HoldfastError) throw error
        const failure = this.#database.failureOf(error)
        this.trouble = failure.cause
        this.#around.onFailure()
        mayBeDone ||= failure.kind === 'unknown'
        if (failure.kind === 'final' || this.#around.isOver() || this.#clock.now() + pauseMs > giveUpAt) throw this.#error(failure)
        await sleep(pauseMs * (0.5 + Math.random() / 2))
      }
    }
  }

  #error({ kind, message, cause }: Failure): BackendError {
    return new BackendError(`${this.#database.name} failed: ${message}`, { cause, transient: kind !== 'final' })
  }
}
