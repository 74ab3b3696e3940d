import type { Backend } from './backend.js'
import type { Clock, Timer } from './clock.js'
import { BackendError, HoldfastError } from './errors.js'
import { Line, type Linked } from './line.js'

/** A store that has not answered after this long is not waited for any longer. */
export const ANSWER_MS = 5_000

type Named = Pick<Backend, 'name' | 'trouble'>

export function noAnswer({ name, trouble }: Named, withinMs = ANSWER_MS): BackendError {
  const why = trouble ? ` ${trouble.message}` : ''
  return new BackendError(`No answer from ${name} within ${withinMs} ms.${why}`, { cause: trouble, transient: true })
}

/** Throws if not each item has its state: what was left out may have been carried out, and is asked for again. */
export function complete<State>(states: readonly State[], count: number, { name }: Named): readonly State[] {
  if (Array.isArray(states) && states.length === count) return states
  const what = Array.isArray(states) ? `${states.length} states for ${count} items` : 'no states'
  throw new BackendError(`The ${name} backend has answered with ${what}.`, { transient: true })
}

/** A request that is not answered yet. */
export class Unanswered implements Linked<Unanswered> {
  ahead: Unanswered | undefined
  behind: Unanswered | undefined
  readonly overdueAt: number
  readonly overdue: () => void

  constructor(overdueAt: number, overdue: () => void) {
    this.overdueAt = overdueAt
    this.overdue = overdue
  }
}

/**
 * A hung request must block nobody: tells of those that are not answered in time. All have the same time, so they come due in the
 * order in which they came, and one timer serves all; it is left alone when an answer comes, which is almost always.
 */
export class Answers {
  readonly #clock: Clock
  readonly #backend: Named
  readonly #line = new Line<Unanswered>()
  #timer: Timer | undefined

  constructor(clock: Clock, backend: Named) {
    this.#clock = clock
    this.#backend = backend
  }

  expect(overdue: () => void, now = this.#clock.now()): Unanswered {
    const request = new Unanswered(now + ANSWER_MS, overdue)
    this.#line.join(request)
    if (!this.#timer) this.#watch(ANSWER_MS)
    return request
  }

  /** It is answered, or nobody waits for it any more. */
  forget(request: Unanswered): void {
    this.#line.leave(request)
  }

  /** Rejects when there is no answer in time. What the request does later is not awaited. */
  inTime<T>(request: Promise<T>): Promise<T> {
    return this.of((answered, failed) => void request.then(answered, failed))
  }

  /** The same, for a request that is made here. */
  of<T>(request: (answered: (answer: T) => void, failed: (error: unknown) => void) => void): Promise<T> {
    return new Promise((resolve, reject) => {
      const unanswered = this.expect(() => reject(noAnswer(this.#backend)))
      request(
        (answer) => {
          this.forget(unanswered)
          resolve(answer)
        },
        (error) => {
          this.forget(unanswered)
          reject(asHoldfastError(error, this.#backend))
        },
      )
    })
  }

  /** Leaves no timer behind, unless somebody still waits for an answer. */
  stop(): void {
    if (this.#line.first) return
    this.#timer?.cancel()
    this.#timer = undefined
  }

  #watch(ms: number): void {
    this.#timer = this.#clock.timer(ms, () => this.#look(), 'background')
  }

  /** The timer counts as set meanwhile: whoever hears of one may ask for more, which are due after all that are here. */
  #look(): void {
    const now = this.#clock.now()
    for (let first = this.#line.first; first && first.overdueAt <= now; first = this.#line.first) {
      this.#line.leave(first)
      first.overdue()
    }
    this.#timer = undefined
    const { first } = this.#line
    if (first) this.#watch(first.overdueAt - now)
  }
}

/** Backends reject with our own errors; anything else that comes out of one is reported as what it is: unexpected. */
export function asHoldfastError(error: unknown, { name }: Named): HoldfastError {
  if (error instanceof HoldfastError) return error
  return new BackendError(`Unexpected error in the ${name} backend.`, { cause: error, transient: false })
}
