import { ServerClock } from '../../core/clock.js'

/** What is known of the servers' clocks: one per node, since no two show the same. */
export class ServerClocks {
  readonly #clocks = new Map<string, ServerClock>()

  at(node: string): ServerClock {
    let clock = this.#clocks.get(node)
    if (!clock) this.#clocks.set(node, (clock = new ServerClock()))
    return clock
  }

  /** After a reconnect it may be another server, or the same with another clock. */
  forget(): void {
    for (const clock of this.#clocks.values()) clock.forget()
  }
}
