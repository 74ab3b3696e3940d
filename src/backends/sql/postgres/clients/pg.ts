/** `pg`: a pool, by what it can do. */
import { createHash } from 'node:crypto'
import { BackendError } from '../../../../core/errors.js'
import { resultOf, type About, type Channel, type PostgresClient } from '../client.js'
import { inTime } from './in-time.js'

export interface PgPool {
  connect(done: (error: Error | undefined, connection: PgPoolClient | undefined) => void): void
  readonly options: object
  /** The class of its connections; its types do not tell. */
  readonly Client?: unknown
}

interface PgQuery {
  readonly text: string
  readonly values?: readonly string[]
  /** By which the server keeps it, for as long as the connection is there. */
  readonly name?: string | undefined
}

interface PgQueries {
  query(query: PgQuery): Promise<{ rows: unknown[] } | { rows: unknown[] }[]>
  on(event: 'error', listener: (error: Error) => void): unknown
  off(event: 'error', listener: (error: Error) => void): unknown
}

interface PgPoolClient extends PgQueries {
  /** As the server told it last: I if there is none. Older versions do not have it. */
  getTransactionStatus?(): string | null
  release(destroy?: boolean): void
}

interface PgConnection extends PgQueries {
  /** Not with pg-native. */
  readonly processID: number | null | undefined
  connect(): Promise<void>
  end(): Promise<void>
  unref?(): void
  on(event: string, listener: (event: never) => void): unknown
}

export function isPgPool(client: unknown): client is PgPool {
  const { connect, options, Client } = (client ?? {}) as Partial<PgPool>
  return typeof connect === 'function' && typeof options === 'object' && typeof Client === 'function'
}

export class PgClient implements PostgresClient {
  readonly #pool: PgPool
  readonly #end: () => Promise<void>
  readonly #names = new Map<string, string>()
  #mayKeep = true

  constructor(pool: PgPool, end: () => Promise<void> = async () => {}) {
    this.#pool = pool
    this.#end = end
  }

  async query(text: string, values: readonly string[], { keep = false }: About = {}): Promise<string> {
    if (!keep || !this.#mayKeep) return this.#ask({ text, values })
    try {
      return await this.#ask({ text, values, name: this.#nameOf(text) })
    } catch (error) {
      if (!isNotKept(error)) throw error
      // Somebody discards what connections of this pool keep, which pg does not know. Nothing was done, and nothing will be kept.
      this.#mayKeep = false
      return this.#ask({ text, values })
    }
  }

  async #ask(query: PgQuery): Promise<string> {
    return resultOf(((await this.#run(query)) as { rows: unknown[] }).rows)
  }

  /** For pg a name stands for one text; and others, too, name theirs. */
  #nameOf(text: string): string {
    let name = this.#names.get(text)
    if (!name) this.#names.set(text, (name = `holdfast_${createHash('md5').update(text).digest('hex')}`))
    return name
  }

  async script(text: string): Promise<void> {
    await this.#run({ text })
  }

  async listen(channel: string, onNews: (news: string) => void, onEnd: () => void): Promise<Channel> {
    const Connection = this.#pool.Client as new (options: object) => PgConnection
    const connection = new Connection(this.#pool.options)
    connection.on('error', onEnd)
    connection.on('end', onEnd)
    connection.on('notification', ({ payload = '' }: { payload?: string }) => onNews(payload))
    try {
      await inTime(connection.connect())
      await inTime(connection.query({ text: `LISTEN "${channel}"` }))
    } catch (error) {
      void connection.end().catch(() => {})
      throw error
    }
    connection.unref?.()
    return { pid: connection.processID ?? 0, close: () => connection.end() }
  }

  close(): Promise<void> {
    return this.#end()
  }

  async #run(query: PgQuery): Promise<unknown> {
    const connection = await this.#connect()
    let isSound = false
    try {
      if (isInTransaction(connection)) {
        isSound = true
        throw new BackendError('postgres failed: a connection came out of the pool in the middle of a transaction. What is locked there is lost '
          + 'with a ROLLBACK. Whoever gave it back has to end the transaction first.', { transient: false })
      }
      const result = await inTime(connection.query(query))
      isSound = true
      return result
    } catch (error) {
      // What the server refused leaves the connection as it was.
      isSound ||= isNotKept(error) || (error as { severity?: unknown }).severity === 'ERROR'
      throw error
    } finally {
      connection.off('error', ignore)
      connection.release(!isSound)
    }
  }

  /**
   * That it was cut is told by the query, too; but without a listener it would end the process. So it has one at once, and not when a
   * promise has got round to it: what says that a connection is there and what says that it is gone can come together.
   */
  #connect(): Promise<PgPoolClient> {
    return new Promise((resolve, reject) => {
      this.#pool.connect((error, connection) => {
        if (!connection) return reject(error as Error)
        connection.on('error', ignore)
        resolve(connection)
      })
    })
  }
}

/** It is somebody else's, and left alone. */
function isInTransaction(connection: PgPoolClient): boolean {
  const status = connection.getTransactionStatus?.() ?? 'I'
  return status === 'T' || status === 'E'
}

/** There is no such prepared statement, or there is one already; or somebody changes the text of each query on its way. */
function isNotKept(error: unknown): boolean {
  const { code, message } = error as { readonly code?: string; readonly message?: string }
  return code === '26000' || code === '42P05' || message?.startsWith('Prepared statements must be unique') === true
}

function ignore(): void {}
