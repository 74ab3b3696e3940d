/**
 * From whatever the file is to a file of our layout and of this boot. Any number of processes may do that at once: it is looked at
 * first, and looked at again in the transaction that changes it.
 *
 *   no tables, or none of ours → made
 *   of another boot            → everything forgotten, and the floor raised
 *   of a newer version         → refused
 */
import { ConfigurationError } from '../../../core/errors.js'
import type { SqliteDatabase } from './client.js'
import type { Machine } from './machine.js'
import * as sql from './sql.js'

const VERSION = 1
/** More than can be drawn between two synchronisations of the file; and after as many boots as there will be, far from 2^53. */
const JUMP = 1_000_000_000

interface Meta {
  readonly version: number
  readonly boot: string
}

export class SqliteSchema {
  readonly #database: SqliteDatabase
  readonly #file: string
  readonly #machine: Machine

  constructor(database: SqliteDatabase, file: string, machine: Machine) {
    this.#database = database
    this.#file = file
    this.#machine = machine
  }

  ensure(): void {
    this.#ensureLog()
    if (!this.#isCurrent()) this.#makeCurrent()
    // Enough for the file to stay whole in a power loss; what was committed last may be gone then, but so is everybody.
    this.#database.exec('PRAGMA synchronous = NORMAL')
  }

  /** Without it a reader would be in the way of writers, and a writer of readers. */
  #ensureLog(): void {
    const mode = (statement: string) => (this.#database.prepare(statement).all()[0] as { journal_mode: string }).journal_mode
    if (mode('PRAGMA journal_mode') === 'wal') return
    // Of a new file only. Each transaction writes a page or two, and small ones are a third faster than those of 4,096 bytes.
    this.#database.exec('PRAGMA page_size = 1024')
    // By `exec`, since it may find the file busy: see client.ts.
    this.#database.exec('PRAGMA journal_mode = WAL')
    const got = mode('PRAGMA journal_mode')
    if (got !== 'wal') {
      throw new ConfigurationError(`SQLite cannot keep a write-ahead log for ${this.#file} (its journal mode is ${got}). It needs a file on a local disk.`)
    }
  }

  #isCurrent(): boolean {
    const tables = this.#database.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'holdfast_meta'").all()
    const [meta] = tables.length === 0 ? [] : (this.#database.prepare(sql.meta.find).all() as Meta[])
    if (meta && meta.version > VERSION) {
      throw new ConfigurationError(`${this.#file} has layout ${meta.version}, of a newer holdfast; this one knows ${VERSION}. Update it, or use another file.`)
    }
    return meta?.boot === this.#machine.boot
  }

  #makeCurrent(): void {
    const database = this.#database
    const run = (statement: string, ...values: (string | number)[]) => database.prepare(statement).run(...values)
    const timeOfDay = String(BigInt(Date.now()) * 1_000n)
    // This one must be on the disk before anybody draws a number: it says what was never drawn before.
    database.exec('PRAGMA synchronous = FULL')
    database.exec('BEGIN IMMEDIATE')
    try {
      database.exec(sql.schema)
      const [meta] = database.prepare(sql.meta.find).all() as Meta[]
      if (!meta) run(sql.meta.make, VERSION, timeOfDay, this.#machine.boot)
      else if (meta.boot !== this.#machine.boot) {
        run(sql.meta.boot, timeOfDay, JUMP, this.#machine.boot)
        run(sql.meta.forgetLocks)
        run(sql.meta.forgetClaims)
        run(sql.meta.forgetClients)
      }
      database.exec('COMMIT')
    } catch (error) {
      try {
        database.exec('ROLLBACK')
      } catch {
        // SQLite has done so itself.
      }
      throw error
    }
  }
}
