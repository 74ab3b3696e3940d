import { BackendError, HoldfastError } from './errors.js'
import type { Clock } from './clock.js'

/** A store that has not answered after this long is not waited for any longer. */
export const ANSWER_MS = 5_000

export function noAnswer(backend: string, withinMs = ANSWER_MS): BackendError {
  return new BackendError(`No answer from ${backend} within ${withinMs} ms.`, { transient: true })
}

/** A hung request must block nobody: rejects when there is no answer in time. What the request does later is not awaited. */
export function answered<T>(request: Promise<T>, clock: Clock, backend: string): Promise<T> {
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

/** The same for a request about one claim. */
export async function answeredOne<T>(request: Promise<readonly T[]>, clock: Clock, backend: string): Promise<T> {
  const [answer] = await answered(request, clock, backend)
  return answer!
}

/** Backends reject with our own errors; anything else that comes out of one is reported as what it is: unexpected. */
export function asHoldfastError(error: unknown, backend: string): HoldfastError {
  if (error instanceof HoldfastError) return error
  return new BackendError(`Unexpected error in the ${backend} backend.`, { cause: error, transient: false })
}
