/**
 * A channel that postgres.js listens to. When its connection is lost it makes another and listens again by itself, which it tells; and
 * from then on it forgets a listener no more, whatever it is told. So there is one, and whoever listens anew takes it over.
 */
import type { Channel } from '../client.js'
import { inTime } from './in-time.js'
import type { PostgresJs } from './postgres-js.js'

interface Hearer {
  onNews(news: string): void
  onEnd(): void
}

type Listening = Awaited<ReturnType<PostgresJs['listen']>>

export class PostgresJsLine {
  readonly #sql: PostgresJs
  readonly #channel: string
  readonly #forget: () => void
  #hearer: Hearer | undefined
  #isOn = false
  #wasOn = false
  #onceOn: (() => void)[] = []
  readonly #first: Promise<Listening | undefined>
  #listening: Listening | undefined
  #again: Promise<Listening> | undefined
  /** Whether it can be told to listen no more. */
  #canLeave = true

  /** `forget`: it can be made anew. */
  constructor(sql: PostgresJs, channel: string, forget: () => void) {
    this.#sql = sql
    this.#channel = channel
    this.#forget = forget
    // If that fails, it goes on trying.
    this.#first = sql.listen(channel, (news) => this.#hear(news), () => this.#cameOn()).catch(() => undefined)
  }

  async listen(onNews: (news: string) => void, onEnd: () => void): Promise<Channel> {
    await inTime(this.#on())
    const hearer = { onNews, onEnd }
    this.#hearer = hearer
    // What tells its number is the same for all its connections, and has that of the latest.
    const { pid } = this.#listening!.state
    return { pid, close: () => this.#close(hearer) }
  }

  async #on(): Promise<void> {
    if (!this.#isOn) {
      const on = new Promise<void>((resolve) => this.#onceOn.push(resolve))
      // It may be given up though it is sound: then it hears this.
      if (this.#wasOn) this.#sql.unsafe(`NOTIFY "${this.#channel}"`).then(ignore, ignore)
      await on
    }
    this.#listening ??= (await this.#first) ?? (await this.#listenAgain())
  }

  /** Only to be told the number. */
  #listenAgain(): Promise<Listening> {
    this.#canLeave = false
    this.#again ??= this.#sql.listen(this.#channel, ignore).catch((error: unknown) => {
      this.#again = undefined
      throw error
    })
    return this.#again
  }

  #hear(news: string): void {
    if (this.#hearer) this.#hearer.onNews(news)
    // It was given up too soon.
    else this.#cameOn()
  }

  #cameOn(): void {
    // Something may have been missed.
    const before = this.#hearer
    this.#hearer = undefined
    before?.onEnd()
    if (this.#wasOn) this.#canLeave = false
    this.#isOn = this.#wasOn = true
    for (const goOn of this.#onceOn.splice(0)) goOn()
  }

  async #close(hearer: Hearer): Promise<void> {
    if (this.#hearer !== hearer) return
    this.#hearer = undefined
    this.#isOn = false
    if (!this.#canLeave) return
    this.#forget()
    await inTime(Promise.resolve(this.#listening!.unlisten()))
  }
}

function ignore(): void {}
