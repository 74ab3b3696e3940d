/** Kysely, with a MysqlDialect. */
import { runOnKysely, type KyselyLike } from '../../server/kysely.js'
import { isInterrupted } from '../errors.js'
import { onlyValue, type MysqlClient } from '../client.js'

export class KyselyClient implements MysqlClient {
  readonly #db: KyselyLike

  constructor(db: KyselyLike) {
    this.#db = db
  }

  query(text: string, values: readonly string[]): Promise<string> {
    return this.#db.connection().execute(async (connection: KyselyLike) => {
      try {
        return onlyValue(await runOnKysely(connection, text, values))
      } catch (error) {
        // Then the procedure could not undo what it had begun, and the connection goes back to the pool with it.
        if (isInterrupted(error)) await runOnKysely(connection, 'ROLLBACK')
        throw error
      }
    })
  }

  script(statements: readonly string[], after: readonly string[]): Promise<void> {
    return this.#db.connection().execute(async (connection: KyselyLike) => {
      try {
        for (const statement of statements) await runOnKysely(connection, statement)
      } finally {
        for (const statement of after) await runOnKysely(connection, statement)
      }
    })
  }

  async close(): Promise<void> {}
}
