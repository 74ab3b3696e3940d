/** Looks whether a stream answers what it should: HTTP/2 can be in the best of health while a server has lost its leader, or stands still. */
import { onSilence } from './silence.js'

export interface Expected {
  readonly sentAt: number
  /** So long nothing may come while it is waited for. */
  readonly silentMs: number
}

export class Watchdog {
  /** What is not answered yet, in the order in which it was sent. */
  readonly #expected: () => readonly Expected[]
  readonly #onSilent: (silentMs: number) => void
  #heardAt = 0
  #timer: NodeJS.Timeout | undefined
  #lookAt = Infinity

  constructor(expected: () => readonly Expected[], onSilent: (silentMs: number) => void) {
    this.#expected = expected
    this.#onSilent = onSilent
  }

  heard(): void {
    this.#heardAt = performance.now()
  }

  /** Something was sent that is answered if all is well. */
  expect(silentMs: number): void {
    if (performance.now() + silentMs < this.#lookAt) this.#lookIn(silentMs)
  }

  stop(): void {
    clearTimeout(this.#timer)
    this.#lookAt = Infinity
  }

  #lookIn(ms: number): void {
    this.stop()
    const at = performance.now() + ms
    this.#lookAt = at
    this.#timer = onSilence(ms, () => this.#lookAt === at && this.#look()).unref()
  }

  #look(): void {
    this.#lookAt = Infinity
    const expected = this.#expected()
    const [oldest] = expected
    if (!oldest) return
    const limitMs = Math.min(...expected.map(({ silentMs }) => silentMs))
    const silentMs = performance.now() - Math.max(this.#heardAt, oldest.sentAt)
    if (silentMs < limitMs) this.#lookIn(limitMs - silentMs + 1)
    else this.#onSilent(silentMs)
  }
}
