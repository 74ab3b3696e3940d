/**
 * URLs of SQLite.
 *
 *   sqlite:                the default file, in the user's state folder
 *   sqlite:./locks.db      a file, relative to the working directory
 *   sqlite:/var/locks.db   a file; sqlite:///var/locks.db is the same
 */
import { resolve } from 'node:path'
import { ConfigurationError } from '../../../core/errors.js'

/** The file that a URL names; undefined for the default one. */
export function parseSqliteUrl(url: string): string | undefined {
  const refuse = (why: string) => new ConfigurationError(`${why} Such a URL is sqlite:, sqlite:./locks.db or sqlite:///path/locks.db.`)
  const rest = /^sqlite:(.*)$/is.exec(url)?.[1]
  if (rest === undefined) throw refuse('This is no sqlite: URL.')
  if (rest === '') return undefined
  if (/[?#]/.test(rest)) throw refuse('A sqlite: URL has no parameters; in the name of a file ? is %3F, and # is %23.')
  if (/^:memory:/i.test(rest)) throw refuse("SQLite's :memory: is of one connection only, so nobody could share it; connect('memory:') is for that.")
  if (/^\/\/[^/]/.test(rest)) throw refuse('A sqlite: URL has no host.')
  return resolve(decode(rest.replace(/^\/\/\//, '/'), refuse))
}

function decode(text: string, refuse: (why: string) => Error): string {
  let path: string
  try {
    path = decodeURIComponent(text)
  } catch {
    throw refuse('This sqlite: URL has a % that encodes nothing.')
  }
  if (path.includes('\0')) throw refuse('The name of a file has no NUL.')
  if (/[/\\]$/.test(path)) throw refuse('This sqlite: URL names a folder.')
  return path
}
