/** Kysely, by what it can do: queries by whichever driver it has. It has no way to listen. */
import type { PostgresClient } from '../client.js'

export interface KyselyLike {
  executeQuery(query: any): Promise<{ rows: unknown[] }>
  getExecutor(): { readonly adapter: object }
}

export function isKysely(client: unknown): client is KyselyLike {
  const { executeQuery, getExecutor } = (client ?? {}) as Partial<KyselyLike>
  return typeof executeQuery === 'function' && typeof getExecutor === 'function'
}

export class KyselyClient implements PostgresClient {
  readonly #db: KyselyLike

  constructor(db: KyselyLike) {
    this.#db = db
  }

  async query(text: string, values: readonly string[]): Promise<string> {
    const [row] = (await this.#run(text, values)) as { result: string }[]
    return row!.result
  }

  async script(text: string): Promise<void> {
    await this.#run(text, [])
  }

  async close(): Promise<void> {}

  async #run(text: string, values: readonly string[]): Promise<unknown[]> {
    // What `sql.raw()` compiles to.
    const query = { kind: 'RawNode', sqlFragments: [text], parameters: [] }
    const { rows } = await this.#db.executeQuery({ query, sql: text, parameters: values, queryId: { queryId: 'holdfast' } })
    return rows
  }
}
