import { resolve } from 'node:path'
import type { BackendFactory } from '../../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../../core/errors.js'
import { SqliteBackend } from './backend.js'
import { fileOf, isSqlite, opener, type SqliteDatabase } from './client.js'
import { sqliteFromFile, sqliteFromUrl } from './from-url.js'
import { thisMachine } from './machine.js'

export type { SqliteDatabase, SqliteStatement, SqlValue } from './client.js'

/**
 * Locks in an SQLite file: a path, a `sqlite:` URL, or a database of `node:sqlite`, `better-sqlite3` or `libsql`. Of such a
 * database the file and the library are taken, and a connection of our own is opened: one connection is one transaction, and
 * yours may be in the middle of one. Yours is never used for locks, nor closed.
 */
export function sqliteBackend(database?: string | SqliteDatabase): BackendFactory {
  if (database === undefined) return sqliteFromFile()
  if (typeof database === 'string') return fromText(database)
  if (!isSqlite(database)) {
    throw new ConnectorError('sqliteBackend() takes a path, or a database of node:sqlite, better-sqlite3 or libsql: sqliteBackend(new DatabaseSync(file)).')
  }
  const path = fileOf(database)
  if (path === undefined) throw new ConfigurationError('This database is in memory, so no other process can share it; memoryBackend() is for that.')
  const machine = thisMachine()
  const open = opener(database.constructor)
  return (scope) => new SqliteBackend(() => Promise.resolve({ path, open }), scope, machine)
}

function fromText(text: string): BackendFactory {
  if (/^sqlite:/i.test(text)) return sqliteFromUrl(text)
  if (text === '' || text.includes('\0')) throw new ConfigurationError('sqliteBackend() takes the path of a file.')
  if (text === ':memory:') return sqliteFromUrl(`sqlite:${text}`)
  return sqliteFromFile(resolve(text))
}
