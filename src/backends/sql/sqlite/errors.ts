/** What SQLite and its clients say when something is wrong, in our words. */
import { BackendError, ConnectorError, HoldfastError } from '../../../core/errors.js'

const NAMES: Readonly<Record<number, string>> = {
  5: 'SQLITE_BUSY', 6: 'SQLITE_LOCKED', 8: 'SQLITE_READONLY', 10: 'SQLITE_IOERR', 11: 'SQLITE_CORRUPT', 13: 'SQLITE_FULL',
  14: 'SQLITE_CANTOPEN', 15: 'SQLITE_PROTOCOL', 26: 'SQLITE_NOTADB',
}

/** node:sqlite gives the number, the others the name; extended codes begin with the plain one. */
function codeOf(error: unknown): string {
  const { code, errcode } = (error ?? {}) as { code?: unknown; errcode?: unknown }
  if (typeof errcode === 'number') return NAMES[errcode & 0xff] ?? 'SQLITE_ERROR'
  return typeof code === 'string' && code.startsWith('SQLITE_') ? code.split('_').slice(0, 2).join('_') : ''
}

/** Another process writes at the moment: the same again will do. */
export function isBusy(error: unknown): boolean {
  const code = codeOf(error)
  return code === 'SQLITE_BUSY' || code === 'SQLITE_LOCKED'
}

/** What may be over in a moment, or when somebody makes room. Nothing of the transaction has happened. */
const TRANSIENT = ['SQLITE_BUSY', 'SQLITE_LOCKED', 'SQLITE_FULL', 'SQLITE_IOERR', 'SQLITE_PROTOCOL']

const MEANING: Readonly<Record<string, string>> = {
  SQLITE_FULL: 'The disk is full',
  SQLITE_IOERR: 'The file could not be read or written',
  SQLITE_PROTOCOL: 'So many are at the file that none could begin to read it',
  SQLITE_READONLY: 'The file cannot be written',
  SQLITE_CORRUPT: 'The file is damaged; stop every process that uses it, and delete it',
  SQLITE_NOTADB: 'The file is no SQLite database',
  SQLITE_CANTOPEN: 'The file cannot be opened',
}

export function sqliteError(error: unknown, file: string): HoldfastError {
  if (error instanceof HoldfastError) return error
  const code = codeOf(error)
  const said = error instanceof Error ? error.message : String(error)
  const meaning = MEANING[code]
  const message = meaning === undefined ? `SQLite failed on ${file}: ${said}` : `${meaning}: ${file} (${said})`
  return new BackendError(message, { cause: error, transient: TRANSIENT.includes(code) })
}

export function busyError(file: string, ms: number): HoldfastError {
  return new BackendError(
    `Another process has been writing to ${file} for ${ms} ms. It may be stopped in the middle of a transaction.`,
    { transient: true },
  )
}

export function closedError(): HoldfastError {
  return new ConnectorError('This SQLite backend is closed.')
}
