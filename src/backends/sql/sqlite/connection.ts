/** A connection to the file: its settings, its statements, and transactions. */
import { SqliteSchema } from './schema.js'
import type { OpenDatabase, SqliteDatabase, SqliteStatement } from './client.js'
import type { Machine } from './machine.js'
import * as sql from './sql.js'

type Group = Readonly<Record<string, string>>
type Prepared<Statements extends Group> = Readonly<Record<keyof Statements, SqliteStatement>>

/** How large the log may stay on disk when all of it is in the database. */
const MOST_LOG_BYTES = 4 * 1024 * 1024

export class Connection {
  readonly locks: Prepared<typeof sql.locks>
  readonly claims: Prepared<typeof sql.claims>
  readonly clients: Prepared<typeof sql.clients>
  readonly meta: Prepared<typeof sql.meta>
  readonly #database: SqliteDatabase
  readonly #begin: SqliteStatement
  readonly #beginReading: SqliteStatement
  readonly #commit: SqliteStatement
  readonly #rollback: SqliteStatement
  #isOpen = true

  private constructor(database: SqliteDatabase) {
    this.#database = database
    this.#begin = database.prepare('BEGIN IMMEDIATE')
    this.#beginReading = database.prepare('BEGIN')
    this.#commit = database.prepare('COMMIT')
    this.#rollback = database.prepare('ROLLBACK')
    this.locks = prepare(database, sql.locks)
    this.claims = prepare(database, sql.claims)
    this.clients = prepare(database, sql.clients)
    this.meta = prepare(database, sql.meta)
  }

  /** One try: throws if another process is at the file, and can then be tried again. */
  static open(open: OpenDatabase, file: string, machine: Machine): Connection {
    const database = open(file)
    try {
      database.exec('PRAGMA busy_timeout = 0')
      new SqliteSchema(database, file, machine).ensure()
      database.exec(`PRAGMA journal_size_limit = ${MOST_LOG_BYTES}`)
      return new Connection(database)
    } catch (error) {
      database.close()
      throw error
    }
  }

  get isOpen(): boolean {
    return this.#isOpen
  }

  /** All or nothing, and nobody else meanwhile. Busy is said before anything is done. */
  transaction<T>(body: () => T): T {
    return this.#between(this.#begin, body)
  }

  /** One moment for all that is read. In nobody's way. */
  snapshot<T>(body: () => T): T {
    return this.#between(this.#beginReading, body)
  }

  #between<T>(begin: SqliteStatement, body: () => T): T {
    begin.run()
    try {
      const result = body()
      this.#commit.run()
      return result
    } catch (error) {
      try {
        this.#rollback.run()
      } catch {
        // SQLite has done so itself, as it does when the disk is full.
      }
      throw error
    }
  }

  close(): void {
    if (!this.#isOpen) return
    this.#isOpen = false
    this.#database.close()
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
