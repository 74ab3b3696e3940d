/** `mysql2`: a pool, with callbacks or with promises, by what it can do. */
import { isInterrupted } from '../errors.js'
import { onlyValue, type MysqlClient } from '../client.js'

export type Mysql2Pool = PromisePool | { promise(): PromisePool }

interface PromisePool {
  getConnection(): Promise<PoolConnection>
}

interface PoolConnection {
  execute(statement: any, values?: any): Promise<[unknown, unknown]>
  query(statement: any, values?: any): Promise<[unknown, unknown]>
  release(): void
  destroy(): void
}

/** A connection that has not answered for so long is not waited for any longer, nor used again. */
const ANSWER_MS = 5_000

export function isMysql2Pool(client: unknown): client is Mysql2Pool {
  const { getConnection, execute, promise, pool } = (client ?? {}) as Record<string, unknown>
  return typeof getConnection === 'function' && typeof execute === 'function' && (typeof promise === 'function' || typeof pool === 'object')
}

export class Mysql2Client implements MysqlClient {
  readonly #pool: PromisePool
  readonly #end: () => Promise<void>

  constructor(pool: Mysql2Pool, end: () => Promise<void> = async () => {}) {
    this.#pool = 'promise' in pool ? pool.promise() : pool
    this.#end = end
  }

  query(text: string, values: readonly string[]): Promise<string> {
    // Prepared once for each connection, and then one round trip. The pool may have been told to give other rows.
    const statement = { sql: text, values: [...values], rowsAsArray: true, nestTables: false, typeCast: asItIs }
    return this.#on(async (connection) => {
      const [answer] = await inTime(connection.execute(statement))
      return onlyValue(answer)
    })
  }

  script(statements: readonly string[], after: readonly string[]): Promise<void> {
    return this.#on(async (connection) => {
      try {
        for (const statement of statements) await inTime(connection.query(statement))
      } finally {
        for (const statement of after) await inTime(connection.query(statement))
      }
    })
  }

  close(): Promise<void> {
    return this.#end()
  }

  async #on<T>(work: (connection: PoolConnection) => Promise<T>): Promise<T> {
    const connection = await this.#pool.getConnection()
    let isSound = false
    try {
      const result = await work(connection)
      isSound = true
      return result
    } catch (error) {
      // What the server refused leaves the connection as it was, unless it was cut short.
      isSound = typeof (error as { sqlState?: unknown }).sqlState === 'string' && !isInterrupted(error)
      throw error
    } finally {
      if (isSound) connection.release()
      else connection.destroy()
    }
  }
}

/** A function of ours instead of the pool's, which nothing else would overrule. */
function asItIs(_field: unknown, next: () => unknown): unknown {
  return next()
}

function inTime<T>(work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`No answer within ${ANSWER_MS} ms`)), ANSWER_MS)
    void work.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}
