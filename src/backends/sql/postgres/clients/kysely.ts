/** Kysely. It has no way to listen. */
import { runOnKysely, type KyselyLike } from '../../server/kysely.js'
import type { PostgresClient } from '../client.js'

export class KyselyClient implements PostgresClient {
  readonly #db: KyselyLike

  constructor(db: KyselyLike) {
    this.#db = db
  }

  async query(text: string, values: readonly string[]): Promise<string> {
    const [row] = (await runOnKysely(this.#db, text, values)) as { result: string }[]
    return row!.result
  }

  async script(text: string): Promise<void> {
    await runOnKysely(this.#db, text)
  }

  async close(): Promise<void> {}
}
