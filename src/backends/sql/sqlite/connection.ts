/** A connection to the file: its settings, its statements, and transactions. */
import { realpathSync, statSync } from 'node:fs'
import { SqliteSchema } from './schema.js'
import type { OpenDatabase, SqliteDatabase, SqliteStatement } from './client.js'
import type { Machine } from './machine.js'
import * as sql from './sql.js'

type Group = Readonly<Record<string, string>>
type Prepared<Statements extends Group> = Readonly<Record<keyof Statements, SqliteStatement>>

/** How long the log gets before it is brought into the database: less often costs less, and this is still a matter of milliseconds. */
const LOG_PAGES = 4_000
/**
 * How large it may get, and stay on disk. SQLite brings it in beside whoever writes; if many do, they are always a little ahead, and
 * it would never begin anew. Then nobody may write for the moment that it takes.
 */
const MOST_LOG_BYTES = 16 * 1024 * 1024
/** Looked at once in so many transactions, and tried again after so many. */
const LOOK_EVERY = 500
const TRY_AGAIN_AFTER = 10

export class Connection {
  readonly locks: Prepared<typeof sql.locks>
  readonly claims: Prepared<typeof sql.claims>
  readonly clients: Prepared<typeof sql.clients>
  readonly meta: Prepared<typeof sql.meta>
  readonly entries: Prepared<typeof sql.entries>
  readonly #database: SqliteDatabase
  readonly #log: string
  #transactions = 0

  private constructor(database: SqliteDatabase, file: string) {
    this.#database = database
    this.#log = `${file}-wal`
    this.locks = prepare(database, sql.locks)
    this.claims = prepare(database, sql.claims)
    this.clients = prepare(database, sql.clients)
    this.meta = prepare(database, sql.meta)
    this.entries = prepare(database, sql.entries)
  }

  /** One try: throws if another process is at the file, and can then be tried again. */
  static open(open: OpenDatabase, file: string, machine: Machine): Connection {
    const database = open(file)
    try {
      database.exec('PRAGMA busy_timeout = 0')
      new SqliteSchema(database, file, machine).ensure()
      database.exec(`PRAGMA wal_autocheckpoint = ${LOG_PAGES}; PRAGMA journal_size_limit = ${MOST_LOG_BYTES}`)
      // The log is beside the file itself, not beside a link to it.
      return new Connection(database, realpathSync(file))
    } catch (error) {
      database.close()
      throw error
    }
  }

  /** All or nothing, and nobody else meanwhile. Busy is said before anything is done. */
  transaction<T>(body: () => T): T {
    withoutTrace(() => this.#database.exec('BEGIN IMMEDIATE'))
    return this.#inside(body)
  }

  /** One moment for all that is read. In nobody's way. */
  snapshot<T>(body: () => T): T {
    this.#database.exec('BEGIN')
    return this.#inside(() => {
      // The moment is that of the first read, which may find the file busy: somebody brings it in order after a crash.
      this.#database.exec('SELECT one FROM holdfast_meta')
      return body()
    })
  }

  #inside<T>(body: () => T): T {
    try {
      const result = body()
      this.#database.exec('COMMIT')
      return result
    } catch (error) {
      try {
        this.#database.exec('ROLLBACK')
      } catch {
        // SQLite has done so itself, as it does when the disk is full.
      }
      throw error
    }
  }

  /** Called after each step that has written. */
  keepLogShort(): void {
    if (++this.#transactions < LOOK_EVERY) return
    this.#transactions = 0
    try {
      if (statSync(this.#log).size <= MOST_LOG_BYTES) return
      // Until it has worked: then the next transaction cuts it short.
      this.#transactions = LOOK_EVERY - TRY_AGAIN_AFTER
      this.#database.exec('PRAGMA wal_checkpoint(RESTART)')
    } catch {
      // The disk is full, perhaps: whoever writes hears of it.
    }
  }

  close(): void {
    this.#database.close()
  }
}

/** Under contention most tries end in an error that nobody looks at, and where it comes from costs more to find out than the try itself. */
function withoutTrace(attempt: () => void): void {
  const { stackTraceLimit } = Error
  Error.stackTraceLimit = 0
  try {
    attempt()
  } finally {
    Error.stackTraceLimit = stackTraceLimit
  }
}

/** Each when it is first used: most processes need few of them. */
function prepare<Statements extends Group>(database: SqliteDatabase, statements: Statements): Prepared<Statements> {
  const prepared = {}
  for (const [name, text] of Object.entries(statements)) {
    const get = () => {
      const value = database.prepare(text)
      Object.defineProperty(prepared, name, { value })
      return value
    }
    Object.defineProperty(prepared, name, { get, configurable: true })
  }
  return prepared as Prepared<Statements>
}
