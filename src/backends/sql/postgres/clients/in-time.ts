/** A connection that has not answered for so long is not waited for any longer. */
export const ANSWER_MS = 5_000

export function inTime<T>(work: PromiseLike<T>, onLate = () => {}): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => {
      reject(new Error(`No answer within ${ANSWER_MS} ms`))
      onLate()
    }
    const timer = setTimeout(late, ANSWER_MS)
    void Promise.resolve(work).then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
