/** What other processes tell this one: its own bell, and the way from their news to the core's wake-ups. */
import type { Scope } from '../../../core/backend.js'
import { Bell, Bells } from './bell.js'
import type { Machine } from './machine.js'
import { readNews, writeNews, type News } from './news.js'
import type { Teller } from './steps.js'

export class WakeUps implements Teller {
  readonly #scope: Scope
  readonly #machine: Machine
  readonly #bells: Bells
  #bell: Bell | undefined
  #isClosed = false

  constructor(file: string, scope: Scope, machine: Machine) {
    this.#scope = scope
    this.#machine = machine
    this.#bells = new Bells(file)
  }

  /** Before anything is claimed: one who cannot be told finds out at its heartbeat only. */
  open(): void {
    if (this.#isClosed) return
    try {
      this.#bell = new Bell(this.#bells.make(this.#scope.owner), {
        onLine: (line) => this.#receive(line),
        onMissed: () => this.#scope.wake({ kind: 'look' }),
        onTrouble: (error) => this.#scope.warn(`${this.#bells.folder} cannot be watched, so it is polled: ${error.message}`),
      })
    } catch (error) {
      this.#scope.warn(
        `No bell can be put into ${this.#bells.folder}, so this process hears late of its turn: ${(error as Error).message}`,
      )
    }
  }

  get folder(): string {
    return this.#bells.folder
  }

  /** Shows that it is used. Somebody may have tidied it up while we were stopped: then it is made anew. */
  check(): void {
    if (!this.#bell || this.#bell.touch()) return
    this.#bell.close({ remove: false })
    this.#bell = undefined
    this.open()
    this.#scope.wake({ kind: 'look' })
  }

  tell(owner: string, news: readonly News[]): void {
    if (owner !== this.#scope.owner) return this.#bells.ring(owner, news.map(writeNews).join(''))
    // Later, as from anybody else: nobody is called back in the middle of a step.
    queueMicrotask(() => {
      for (const each of news) this.#deliver(each)
    })
  }

  /** Whoever was passed over was so with all that its process had waiting there: they have to come back, too. */
  passedOver(resource: string): void {
    queueMicrotask(() => {
      if (!this.#isClosed) this.#scope.wake({ kind: 'look', resource })
    })
  }

  close(): void {
    this.#isClosed = true
    this.#bell?.close({ remove: true })
  }

  #receive(line: string): void {
    const news = readNews(line)
    if (news) this.#deliver(news)
  }

  #deliver(news: News): void {
    if (this.#isClosed) return
    if (news.kind !== 'granted') return this.#scope.wake(news)
    const { resource, claimId, epoch, at, waiting } = news
    this.#scope.wake({ kind: 'granted', resource, claimId, epoch: BigInt(epoch), since: this.#toLocal(at), waiting })
  }

  /** One clock for the machine, so the moment is known exactly; what seems still to come is from another clock, and not believed. */
  #toLocal(at: number | null): number | undefined {
    if (at === null) return undefined
    const ago = this.#machine.now() - at
    return ago < 0 ? undefined : this.#scope.clock.now() - ago
  }
}
