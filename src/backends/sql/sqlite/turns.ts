/**
 * One process writes to the file at a time. Whoever finds another at it tries again, and here is how: never by waiting inside
 * SQLite, which would stop the event loop, and one try for all that this process has to write.
 *
 * A step is tried → done    it has its answer
 *                 → busy    it stands in line with what came after it; the line is tried again in a moment
 *                 → failed  whoever asked is told, and the line goes on
 *                 → overdue the file was busy for GIVE_UP_MS: somebody is stopped in the middle of a transaction
 *
 * A busy step has not happened at all: SQLite says so before the first write.
 */
import { performance } from 'node:perf_hooks'
import { busyError, isBusy, sqliteError } from './errors.js'

/** Before the core gives up on an answer, so that it hears why there is none. */
const GIVE_UP_MS = 4_000
/** A transaction takes some 30 µs: most often the next moment will do. Then less and less often, by chance, so that all get there. */
const IMMEDIATE_TRIES = 4
const MOST_PAUSE_MS = 2
/** What stands in line is worked off for so long before the event loop has its turn. */
const WORK_MS = 5

interface Waiting {
  readonly attempt: () => void
  readonly failed: (error: Error) => void
  readonly since: number
}

export class Turns {
  readonly #file: string
  readonly #line: Waiting[] = []
  #tries = 0
  #isScheduled = false

  constructor(file: string) {
    this.#file = file
  }

  /** Runs a step that is one transaction, now if it can be; the steps of a process keep their order. */
  run<T>(step: () => T): Promise<T> {
    const since = performance.now()
    if (this.#line.length === 0) {
      try {
        const done = step()
        this.#tries = 0
        return Promise.resolve(done)
      } catch (error) {
        if (!isBusy(error)) return Promise.reject(sqliteError(error, this.#file))
      }
      this.#again()
    }
    return new Promise((resolve, reject) => void this.#line.push({ attempt: () => resolve(step()), failed: reject, since }))
  }

  /** Fails all that stands in line. */
  close(error: Error): void {
    for (const { failed } of this.#line.splice(0)) failed(error)
  }

  #isOver({ attempt, failed }: Waiting): boolean {
    try {
      attempt()
    } catch (error) {
      if (isBusy(error)) return false
      failed(sqliteError(error, this.#file))
    }
    this.#tries = 0
    return true
  }

  #again(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    const work = () => {
      this.#isScheduled = false
      this.#work()
    }
    // It is awaited by somebody, so it keeps the process alive.
    if (++this.#tries <= IMMEDIATE_TRIES) setImmediate(work)
    else setTimeout(work, Math.random() * MOST_PAUSE_MS)
  }

  #work(): void {
    const until = performance.now() + WORK_MS
    for (let first = this.#line[0]; first; first = this.#line[0]) {
      if (!this.#isOver(first)) {
        this.#giveUp()
        break
      }
      this.#line.shift()
      if (performance.now() > until) break
    }
    if (this.#line.length > 0) this.#again()
  }

  #giveUp(): void {
    const now = performance.now()
    for (let first = this.#line[0]; first && now - first.since > GIVE_UP_MS; first = this.#line[0]) {
      this.#line.shift()
      first.failed(busyError(this.#file, GIVE_UP_MS))
    }
  }
}
