/** Kysely, with a MysqlDialect. */
import { runOnKysely, type KyselyLike } from '../../server/kysely.js'
import { isInterrupted } from '../errors.js'
import { onlyValue, type MysqlClient } from '../client.js'

export class KyselyClient implements MysqlClient {
  readonly #db: KyselyLike

  constructor(db: KyselyLike) {
    this.#db = db
  }

  query(text: string, values: readonly string[]): Promise<string | undefined> {
    return this.#db.connection().execute(async (connection: KyselyLike) => {
      try {
        return onlyValue(await runOnKysely(connection, text, values))
      } catch (error) {
        if (isInterrupted(error)) await tidyUp(connection)
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

/** The procedure could not undo what it had begun, nor put back what it had set, and the connection goes back to the pool. */
async function tidyUp(connection: KyselyLike): Promise<void> {
  await runOnKysely(connection, 'ROLLBACK AND NO CHAIN NO RELEASE')
  await runOnKysely(connection, 'SET innodb_lock_wait_timeout = DEFAULT, group_concat_max_len = DEFAULT')
}
