/**
 * A connection that listens, and makes sure that it does: whatever the client says, what counts is whether a notification comes
 * through. One that was cut off without a word would otherwise be believed in for minutes.
 */
import type { Listener, Listening } from '../server/database.js'
import type { Channel } from './client.js'

export interface EarSurroundings {
  readonly listener: Listener
  listen(onNews: (news: string) => void, onEnd: () => void): Promise<Channel>
  /** Notifies us. */
  probe(text: string): Promise<void>
}

const PROBE = 'is anybody there?'
const PROBE_EVERY_MS = 5_000
const HEARD_WITHIN_MS = 2_000

export class Ear implements Listening {
  readonly #around: EarSurroundings
  #channel: Channel | undefined
  #heard: (() => void) | undefined
  #timer: NodeJS.Timeout | undefined
  #isOver = false

  private constructor(around: EarSurroundings) {
    this.#around = around
  }

  static async open(around: EarSurroundings): Promise<Ear> {
    const ear = new Ear(around)
    ear.#channel = await around.listen((news) => ear.#hear(news), () => ear.#end())
    if (ear.#isOver) throw new Error('The connection that should listen was lost at once.')
    ear.#probeLater()
    return ear
  }

  /** Nothing will be heard any more, which was told if somebody listened by then. */
  get isOver(): boolean {
    return this.#isOver
  }

  get pid(): number {
    return this.#channel!.pid
  }

  async close(): Promise<void> {
    this.#isOver = true
    clearTimeout(this.#timer)
    await this.#channel?.close().catch(() => {})
  }

  #hear(news: string): void {
    if (news === PROBE) this.#heard?.()
    else if (!this.#isOver) this.#around.listener.onNews(news)
  }

  #end(): void {
    if (this.#isOver) return
    void this.close()
    this.#around.listener.onEnd()
  }

  #probeLater(): void {
    this.#timer = setTimeout(() => void this.#probe(), PROBE_EVERY_MS).unref()
  }

  async #probe(): Promise<void> {
    const heard = new Promise<void>((resolve) => (this.#heard = resolve))
    try {
      await this.#around.probe(PROBE)
    } catch {
      // The database cannot be asked, which says nothing about this connection.
      if (!this.#isOver) this.#probeLater()
      return
    }
    this.#timer = setTimeout(() => this.#end(), HEARD_WITHIN_MS).unref()
    await heard
    clearTimeout(this.#timer)
    if (!this.#isOver) this.#probeLater()
  }
}
