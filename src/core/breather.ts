/**
 * Those who are served in memory follow each other in microtasks, and as long as that goes on, no timer and no message has its
 * turn: renewals, deadlines and the store's wake-ups would wait for a whole TTL. So after a while they pause for breath.
 */
const MOST_AT_A_STRETCH = 64
const LONGEST_STRETCH_MS = 1

export class Breather {
  #count = 0
  #since = 0
  #waiting: (() => void)[] = []

  /** Runs the task at once, or after the event loop has had a turn. */
  run(now: number, task: () => void): void {
    if (this.#count === 0) {
      this.#since = now
      setImmediate(() => this.#breathe())
    }
    if (++this.#count <= MOST_AT_A_STRETCH && now - this.#since < LONGEST_STRETCH_MS) task()
    else this.#waiting.push(task)
  }

  #breathe(): void {
    this.#count = 0
    const waiting = this.#waiting
    this.#waiting = []
    for (const task of waiting) task()
  }
}
