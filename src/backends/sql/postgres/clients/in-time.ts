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
    let isOver = false
    const late = () => {
      if (isOver) return
      reject(new NoAnswer())
      onLate()
    }
    // In a process that has slept, the answer may be there and was not read yet.
    const timer = setTimeout(() => setImmediate(late), ANSWER_MS)
    void Promise.resolve(work).then(resolve, reject).finally(() => {
      isOver = true
      clearTimeout(timer)
    })
  })
}
