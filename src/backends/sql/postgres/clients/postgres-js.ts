/** `postgres` (postgres.js), by what it can do. */
import type { Channel, PostgresClient } from '../client.js'

export interface PostgresJs {
  unsafe(text: string, values?: any[]): PromiseLike<any>
  listen(channel: string, onNews: (news: string) => void, onListen?: () => void): Promise<{ state: { pid: number }; unlisten: () => Promise<unknown> }>
}

export function isPostgresJs(client: unknown): client is PostgresJs {
  const { unsafe, listen } = (client ?? {}) as Partial<PostgresJs>
  return typeof client === 'function' && typeof unsafe === 'function' && typeof listen === 'function'
}

export class PostgresJsClient implements PostgresClient {
  readonly #sql: PostgresJs
  readonly #end: () => Promise<void>

  constructor(sql: PostgresJs, end: () => Promise<void> = async () => {}) {
    this.#sql = sql
    this.#end = end
  }

  async query(text: string, values: readonly string[]): Promise<string> {
    // Unnamed, as `unsafe` has it unless told otherwise: behind a pooler the next one may meet another server process.
    const [row] = (await this.#sql.unsafe(text, [...values])) as { result: string }[]
    return row!.result
  }

  async script(text: string): Promise<void> {
    await this.#sql.unsafe(text)
  }

  async listen(channel: string, onNews: (news: string) => void, onEnd: () => void): Promise<Channel> {
    let isOn = false
    const onListen = () => {
      // Anew, after its connection was lost: something may have been missed.
      if (isOn) onEnd()
      isOn = true
    }
    const { state, unlisten } = await this.#sql.listen(channel, onNews, onListen)
    return { pid: state.pid, close: async () => void (await unlisten()) }
  }

  close(): Promise<void> {
    return this.#end()
  }
}
