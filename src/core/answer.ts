import type { Backend } from './backend.js'
import type { Clock } from './clock.js'
import { BackendError, HoldfastError } from './errors.js'

/** A store that has not answered after this long is not waited for any longer. */
export const ANSWER_MS = 5_000

type Named = Pick<Backend, 'name' | 'trouble'>

export function noAnswer({ name, trouble }: Named, withinMs = ANSWER_MS): BackendError {
  const why = trouble ? ` ${trouble.message}` : ''
  return new BackendError(`No answer from ${name} within ${withinMs} ms.${why}`, { cause: trouble, transient: true })
}

/** A hung request must block nobody: rejects when there is no answer in time. What the request does later is not awaited. */
export function answered<T>(request: Promise<T>, clock: Clock, backend: Named): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.timer(ANSWER_MS, () => reject(noAnswer(backend)), 'background')
    request.then(
      (answer) => {
        timer.cancel()
        resolve(answer)
      },
      (error: unknown) => {
        timer.cancel()
        reject(asHoldfastError(error, backend))
      },
    )
  })
}

/** Backends reject with our own errors; anything else that comes out of one is reported as what it is: unexpected. */
export function asHoldfastError(error: unknown, { name }: Named): HoldfastError {
  if (error instanceof HoldfastError) return error
  return new BackendError(`Unexpected error in the ${name} backend.`, { cause: error, transient: false })
}
