/** `postgres` (postgres.js), by what it can do. */
import { resultOf, type About, type Channel, type PostgresClient } from '../client.js'
import { inTime } from './in-time.js'
import { PostgresJsLine } from './postgres-js-line.js'

export interface PostgresJs {
  unsafe(text: string, values?: any[], options?: object): PromiseLike<any>
  listen(channel: string, onNews: (news: string) => void, onListen?: () => void): Promise<{ state: { pid: number }; unlisten: () => Promise<unknown> }>
}

export function isPostgresJs(client: unknown): client is PostgresJs {
  const { unsafe, listen } = (client ?? {}) as Partial<PostgresJs>
  return typeof client === 'function' && typeof unsafe === 'function' && typeof listen === 'function'
}

/**
 * No other statement is sent on the connection before this one is answered, as postgres.js would do. If such a connection is lost after
 * the first answer, PgBouncer (1.18) gives the second to whoever comes next.
 */
const ALONE = { onexecute: () => false }

export class PostgresJsClient implements PostgresClient {
  readonly #sql: PostgresJs
  readonly #end: () => Promise<void>
  readonly #lines = new Map<string, PostgresJsLine>()

  constructor(sql: PostgresJs, end: () => Promise<void> = async () => {}) {
    this.#sql = sql
    this.#end = end
  }

  /**
   * The values are written into the text: of those beside it postgres.js asks for the types first, which is a round trip more. It would
   * not if the statement were kept; but one that the server does not know any more it sends again on a connection on which others may
   * be on their way: their answers can then be swapped. What is private is worth that round trip: the server logs the text of what fails.
   */
  async query(text: string, values: readonly string[], { isPrivate = false }: About = {}): Promise<string> {
    const answer = isPrivate
      ? this.#run(text, [...values])
      : this.#run(text.replace(/\$(\d+)/g, (_, n: string) => literal(values[Number(n) - 1]!)))
    return resultOf(await answer)
  }

  async script(text: string): Promise<void> {
    await this.#run(text)
  }

  listen(channel: string, onNews: (news: string) => void, onEnd: () => void): Promise<Channel> {
    let line = this.#lines.get(channel)
    if (!line) this.#lines.set(channel, (line = new PostgresJsLine(this.#sql, channel, () => this.#lines.delete(channel))))
    return line.listen(onNews, onEnd)
  }

  close(): Promise<void> {
    return this.#end()
  }

  /** It knows no limit itself, and may leave a statement to a connection that it makes in 20 s only. */
  #run(text: string, values: string[] = []): Promise<unknown> {
    const statement = this.#sql.unsafe(text, values, ALONE)
    return inTime(statement, () => disarm(statement))
  }
}

/**
 * One that was not sent yet would be carried out some time. It has a method to cancel it; but of a connection that is just being made
 * for a statement that was cancelled postgres.js makes no use any more, ever. So nothing is left of it but an empty one. Once it was
 * sent, to cancel it could hit another one on its connection, also somebody else's.
 */
function disarm(statement: PromiseLike<unknown> & { state?: unknown }): void {
  if (!statement.state) Object.assign(statement, { strings: [''], args: [] })
}

/** In digits: whatever the value is, and whatever the server makes of quotes, backslashes and encodings, it ends where it should. */
function literal(value: string): string {
  return `pg_catalog.convert_from(pg_catalog.decode('${Buffer.from(value).toString('hex')}', 'hex'), 'UTF8')`
}
