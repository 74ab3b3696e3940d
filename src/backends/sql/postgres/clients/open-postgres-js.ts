/** A client of our own by postgres.js. */
import type { About, Channel, PostgresClient } from '../client.js'
import { NoAnswer } from './in-time.js'
import { PostgresJsClient } from './postgres-js.js'

/**
 * In seconds. postgres.js would wait for up to 20 s until it connects again, counts the failures of all its connections for that, and
 * lets statements wait for such a connection while others are free. The steps have pauses of their own.
 */
const PAUSE_S = 0.05
/** As pg has it. Also for one that postgres.js still makes when it was told to end. */
const IDLE_S = 10

export async function openPostgresJs(url: string, connectTimeoutMs: number, most: number): Promise<PostgresClient> {
  const { default: postgres } = await import('postgres')
  const open = () => {
    const sql = postgres(url, {
      max: most,
      connect_timeout: connectTimeoutMs / 1_000,
      idle_timeout: IDLE_S,
      backoff: () => PAUSE_S,
      onnotice: () => {},
      fetch_types: false,
      connection: { application_name: 'holdfast' },
    })
    return new PostgresJsClient(sql, () => sql.end({ timeout: 1 }))
  }
  return new RenewedClient(open, connectTimeoutMs)
}

/**
 * A connection that hears nothing any more postgres.js keeps for as long as TCP does, a quarter of an hour; one that is cut between two
 * messages may send no more for many attempts (as of 3.4.9); and one that is closed while it is made is made again and again, and tells
 * nobody. None of them can be closed alone. So when an answer has not come in time, all are given up for new ones.
 */
class RenewedClient implements PostgresClient {
  readonly #open: () => PostgresJsClient
  readonly #connectTimeoutMs: number
  #client: PostgresJsClient
  #openedAt = performance.now()
  /** Of those that were given up, and of those that listened. */
  readonly #ends = new Set<Promise<void>>()
  #isClosed = false

  constructor(open: () => PostgresJsClient, connectTimeoutMs: number) {
    this.#open = open
    this.#connectTimeoutMs = connectTimeoutMs
    this.#client = open()
  }

  query(text: string, values: readonly string[], about?: About): Promise<string> {
    return this.#use((client) => client.query(text, values, about))
  }

  script(text: string): Promise<void> {
    return this.#use((client) => client.script(text))
  }

  /** Each time on a client of its own, which ends with it, but not before it is there: one that still connects would go on for ever. */
  async listen(channel: string, onNews: (news: string) => void, onEnd: () => void): Promise<Channel> {
    const client = this.#open()
    const close = () => this.#end(client)
    try {
      const { pid } = await client.listen(channel, onNews, onEnd)
      return { pid, close }
    } catch (error) {
      void close()
      throw error
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await Promise.all([this.#end(this.#client), ...this.#ends])
  }

  async #use<T>(work: (client: PostgresJsClient) => Promise<T>): Promise<T> {
    const client = this.#client
    try {
      return await work(client)
    } catch (error) {
      if (error instanceof NoAnswer && client === this.#client) this.#renew()
      throw error
    }
  }

  #renew(): void {
    // One that still connects is left to it.
    if (this.#isClosed || performance.now() - this.#openedAt < this.#connectTimeoutMs) return
    void this.#end(this.#client)
    this.#client = this.#open()
    this.#openedAt = performance.now()
  }

  #end(client: PostgresJsClient): Promise<void> {
    const end = client.close().catch(() => {}).finally(() => this.#ends.delete(end))
    this.#ends.add(end)
    return end
  }
}
