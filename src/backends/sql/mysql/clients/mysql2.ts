/** `mysql2`: a pool, with callbacks or with promises, by what it can do. */
import { isInterrupted } from '../errors.js'
import { onlyValue, type MysqlClient } from '../client.js'

/** One with callbacks has a `promise()`; one with promises has it in a `pool`. */
export type Mysql2Pool = { promise(): PromisePool } | PromisePool

interface PromisePool {
  getConnection(): Promise<{ execute(statement: any, values?: any): Promise<unknown>; release(): void; destroy(): void }>
  execute(statement: any, values?: any): Promise<unknown>
}

/** What is below both, used directly: a promise for each step on the way would cost a tenth of a call. */
interface CallbackPool {
  getConnection(callback: (error: Error | null, connection: Connection) => void): void
}

interface Connection {
  execute(statement: object, callback: Callback): unknown
  query(statement: string, callback: Callback): unknown
  release(): void
  destroy(): void
  readonly config?: { readonly typeCast?: unknown }
}

type Callback = (error: Error | null, answer?: unknown) => void

/** A connection that has not answered for so long is not waited for any longer, nor used again. */
const ANSWER_MS = 5_000

export function isMysql2Pool(client: unknown): client is Mysql2Pool {
  const pool = callbackPoolOf(client)
  return typeof pool?.getConnection === 'function' && typeof (client as { execute?: unknown }).execute === 'function'
}

function callbackPoolOf(client: unknown): CallbackPool | undefined {
  const { promise, pool } = (client ?? {}) as { promise?: unknown; pool?: CallbackPool }
  return typeof promise === 'function' ? (client as CallbackPool) : pool
}

export class Mysql2Client implements MysqlClient {
  readonly #pool: CallbackPool
  readonly #end: () => Promise<void>

  constructor(pool: Mysql2Pool, end: () => Promise<void> = async () => {}) {
    this.#pool = callbackPoolOf(pool)!
    this.#end = end
  }

  async query(text: string, values: readonly string[]): Promise<string | undefined> {
    return onlyValue(await new Promise<unknown>((resolve, reject) => {
      this.#pool.getConnection((failure, connection) => {
        if (failure) return reject(failure)
        // The pool may have been told to give other rows.
        const statement: Record<string, unknown> = { sql: text, values, rowsAsArray: true, nestTables: false }
        if (typeof connection.config?.typeCast === 'function') statement['typeCast'] = asItIs
        // Prepared once for each connection, and then one round trip.
        ask((done) => connection.execute(statement, done), (error, answer) => {
          leave(connection, error)
          if (error) reject(error)
          else resolve(answer)
        })
      })
    }))
  }

  async script(statements: readonly string[], after: readonly string[]): Promise<void> {
    const connection = await new Promise<Connection>((resolve, reject) => {
      this.#pool.getConnection((error, one) => (error ? reject(error) : resolve(one)))
    })
    const run = (statement: string) => new Promise<void>((resolve, reject) => {
      ask((done) => connection.query(statement, done), (error) => (error ? reject(error) : resolve()))
    })
    let failure: Error | null = null
    try {
      for (const statement of statements) await run(statement)
    } catch (error) {
      failure = error as Error
    }
    try {
      if (!failure || isSound(failure)) for (const statement of after) await run(statement)
    } catch (error) {
      failure = error as Error
    }
    leave(connection, failure)
    if (failure) throw failure
  }

  close(): Promise<void> {
    return this.#end()
  }
}

/** Answers once, in time. */
function ask(send: (done: Callback) => void, done: Callback): void {
  let isOver = false
  const answer: Callback = (error, rows) => {
    if (isOver) return
    isOver = true
    clearTimeout(timer)
    done(error, rows)
  }
  const timer = setTimeout(() => answer(new Error(`No answer within ${ANSWER_MS} ms`)), ANSWER_MS)
  try {
    send(answer)
  } catch (error) {
    answer(error as Error)
  }
}

function leave(connection: Connection, error: Error | null): void {
  if (!error || isSound(error)) connection.release()
  else connection.destroy()
}

/** What the server refused leaves the connection as it was, unless it was cut short. */
function isSound(error: Error): boolean {
  return typeof (error as { sqlState?: unknown }).sqlState === 'string' && !isInterrupted(error)
}

/** A function of ours instead of the pool's, which nothing else would overrule. */
function asItIs(_field: unknown, next: () => unknown): unknown {
  return next()
}
