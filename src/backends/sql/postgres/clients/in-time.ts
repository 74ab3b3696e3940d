/** A connection that has not answered for so long is not waited for any longer. */
const ANSWER_MS = 5_000

export class NoAnswer extends Error {
  override readonly name = 'NoAnswer'

  constructor() {
    super(`No answer within ${ANSWER_MS} ms`)
  }
}

export function inTime<T>(work: PromiseLike<T>, onLate = () => {}): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => {
      reject(new NoAnswer())
      onLate()
    }
    const timer = setTimeout(late, ANSWER_MS)
    void Promise.resolve(work).then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
