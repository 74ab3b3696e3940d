/** Backends from a URL or a path, by whichever client there is. */
import type { BackendFactory } from '../../../core/backend.js'
import { ConnectorError } from '../../../core/errors.js'
import { SqliteBackend, type SqliteFile } from './backend.js'
import { opener, type OpenDatabase } from './client.js'
import { defaultFile, ensureFile } from './file.js'
import { thisMachine } from './machine.js'
import { parseSqliteUrl } from './url.js'

export function sqliteFromUrl(url: string): BackendFactory {
  return sqliteFromFile(parseSqliteUrl(url))
}

/** Without a path it is the default file. */
export function sqliteFromFile(path?: string): BackendFactory {
  const machine = thisMachine()
  const file = path ?? defaultFile()
  const find = async (): Promise<SqliteFile> => {
    const open = await loadDriver()
    ensureFile(file, { folder: path === undefined ? 'make' : 'expect' })
    return { path: file, open }
  }
  return (scope) => new SqliteBackend(find, scope, machine)
}

/** Node's own, where it has one; it is the fastest, too. Else libsql: it brings its binary with it and needs no compiler. */
async function loadDriver(): Promise<OpenDatabase> {
  const builtIn = process.getBuiltinModule?.('node:sqlite') as { DatabaseSync: unknown } | undefined
  if (builtIn) return opener(builtIn.DatabaseSync)
  try {
    return opener((await import('libsql')).default)
  } catch (error) {
    if (!isMissing(error)) throw error
    throw new ConnectorError(
      `Node ${process.versions.node} has no SQLite of its own (22.13 and later have), and no client for it is installed: npm i libsql.`,
      { cause: error },
    )
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && (error.code === 'ERR_MODULE_NOT_FOUND' || error.code === 'MODULE_NOT_FOUND')
}
