/** A client of our own by postgres.js. */
import type { About, Channel, PostgresClient } from '../client.js'
import { NoAnswer } from './in-time.js'
import { PostgresJsClient } from './postgres-js.js'

/**
 * In seconds. postgres.js would wait for up to 20 s until it connects again, counts the failures of all its connections for that, and
 * lets statements wait for such a connection while others are free. The steps have pauses of their own.
 */
const PAUSE_S = 0.05

export async function openPostgresJs(url: string, connectTimeoutMs: number, most: number): Promise<PostgresClient> {
  const { default: postgres } = await import('postgres')
  return new RenewedClient(() => {
    const sql = postgres(url, {
      max: most,
      connect_timeout: connectTimeoutMs / 1_000,
      backoff: () => PAUSE_S,
      onnotice: () => {},
      fetch_types: false,
      connection: { application_name: 'holdfast' },
    })
    return new PostgresJsClient(sql, () => sql.end({ timeout: 1 }))
  })
}

/**
 * A connection that hears nothing any more postgres.js keeps for as long as TCP does, a quarter of an hour; one that is cut between two
 * messages may send no more for many attempts (as of 3.4.9); and one that is closed while it is made is made again and again, and tells
 * nobody. None of them can be closed alone. So all are given up for new ones when an answer has not come in time; those that listen
 * apart from the others, which may well be sound.
 */
class RenewedClient implements PostgresClient {
  readonly #statements: Renewed
  readonly #listeners: Renewed

  constructor(open: () => PostgresJsClient) {
    this.#statements = new Renewed(open)
    this.#listeners = new Renewed(open)
  }

  query(text: string, values: readonly string[], about?: About): Promise<string> {
    return this.#statements.use((client) => client.query(text, values, about))
  }

  script(text: string): Promise<void> {
    return this.#statements.use((client) => client.script(text))
  }

  listen(channel: string, onNews: (news: string) => void, onEnd: () => void): Promise<Channel> {
    return this.#listeners.use((client) => client.listen(channel, onNews, onEnd))
  }

  async close(): Promise<void> {
    await Promise.all([this.#statements.close(), this.#listeners.close()])
  }
}

class Renewed {
  readonly #open: () => PostgresJsClient
  #client: PostgresJsClient
  /** Of those given up, until they are closed. */
  readonly #ends = new Set<Promise<void>>()

  constructor(open: () => PostgresJsClient) {
    this.#open = open
    this.#client = open()
  }

  async use<T>(work: (client: PostgresJsClient) => Promise<T>): Promise<T> {
    const client = this.#client
    try {
      return await work(client)
    } catch (error) {
      if (error instanceof NoAnswer && client === this.#client) this.#renew()
      throw error
    }
  }

  async close(): Promise<void> {
    await Promise.all([...this.#ends, this.#client.close()])
  }

  #renew(): void {
    const before = this.#client
    // First: whoever is told that it ends may listen again at once.
    this.#client = this.#open()
    const end = before.close().finally(() => this.#ends.delete(end))
    this.#ends.add(end)
  }
}
