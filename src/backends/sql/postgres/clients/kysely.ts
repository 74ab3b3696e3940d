/** Kysely. It has no way to listen. */
import { runOnKysely, type KyselyLike } from '../../server/kysely.js'
import { resultOf, type PostgresClient } from '../client.js'

export class KyselyClient implements PostgresClient {
  readonly #db: KyselyLike

  constructor(db: KyselyLike) {
    this.#db = db
  }

  async query(text: string, values: readonly string[]): Promise<string> {
    return resultOf(await runOnKysely(this.#db, text, values))
  }

  async script(text: string): Promise<void> {
    await runOnKysely(this.#db, text)
  }

  async close(): Promise<void> {}
}
