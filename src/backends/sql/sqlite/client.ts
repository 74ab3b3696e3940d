/**
 * What is used of an SQLite client: the part that `node:sqlite`, `better-sqlite3` and `libsql` have in common. All are synchronous.
 *
 * - A statement that writes and returns a row is run by `get` inside a transaction only: `get` leaves after the first row, and
 *   without one it is committed when the statement is reset. If that fails, all three clients say nothing, and give the row [tried,
 *   with a deferred constraint]: a claim would believe that it holds. Where there is a COMMIT, that says so.
 * - What may find the file busy is run by `exec`: BEGIN IMMEDIATE before whatever writes, a first read before whatever reads. libsql
 *   leaves a prepared statement that was told SQLITE_BUSY in the middle; while it is there nothing that the connection writes is
 *   committed, and all of it is undone when the statement is run again [tried]: grants that were believed would be gone. `exec`
 *   leaves nothing behind.
 * - There are always two parameters or none, or one that is no blob: libsql takes a single object for named parameters, and a
 *   Buffer makes it panic.
 */
export interface SqliteDatabase {
  prepare(sql: string): SqliteStatement
  exec(sql: string): unknown
  close(): unknown
}

export interface SqliteStatement {
  all(...parameters: SqlValue[]): unknown[]
  /** The first row; with libsql it costs a third of `all`. */
  get(...parameters: SqlValue[]): unknown
  run(...parameters: SqlValue[]): { readonly changes: number | bigint }
}

export type SqlValue = string | number | null | Uint8Array

/** Opens a file by whichever client it is. */
export type OpenDatabase = (file: string) => SqliteDatabase

interface SqliteClass {
  new (file: string, options?: object): SqliteDatabase
}

export function isSqlite(client: unknown): client is SqliteDatabase {
  const has = (method: string) => typeof (client as Record<string, unknown>)[method] === 'function'
  return typeof client === 'object' && client !== null && has('prepare') && has('exec') && has('close')
}

/** Waiting is ours to do: theirs would stop the event loop (1,000 ms of it have stopped one for 2.8 s). */
export function opener(constructor: unknown): OpenDatabase {
  return (file) => new (constructor as SqliteClass)(file, { timeout: 0 })
}

/** Which file a client has open; undefined if it has none. */
export function fileOf(client: SqliteDatabase): string | undefined {
  const databases = client.prepare('PRAGMA database_list').all() as { name: string; file: string | null }[]
  return databases.find(({ name }) => name === 'main')?.file || undefined
}
