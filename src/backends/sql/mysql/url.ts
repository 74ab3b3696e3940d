/**
 * URLs of MySQL and MariaDB.
 *
 *   mysql://user:password@host:3306/database?ssl=true      mariadb: is the same
 *
 * How TLS is used is said as MySQL's own client has it, by ssl-mode and ssl-ca. `ssl=true` is the strictest. All other parameters are
 * mysql2's options, as JSON or text: ssl={"ca":"…"}, connectionLimit=10.
 */
import { readFileSync } from 'node:fs'
import { ConfigurationError } from '../../../core/errors.js'

/** Options of a pool of mysql2. */
export interface PoolSettings {
  readonly uri: string
  readonly ssl?: object
  readonly connectTimeout?: number
  readonly connectionLimit?: number
}

const SSL_MODES: Readonly<Record<string, object | undefined>> = {
  DISABLED: undefined,
  REQUIRED: { rejectUnauthorized: false },
  VERIFY_CA: { rejectUnauthorized: true },
  VERIFY_IDENTITY: { rejectUnauthorized: true, verifyIdentity: true },
}

/** A URL may contain a password, so nothing of it is quoted. What it says itself goes before `defaults`. */
export function readMysqlUrl(url: string, needsDatabase: boolean, defaults: Omit<PoolSettings, 'uri'> = {}): PoolSettings {
  if (!/^(mysql|mariadb):\/\//i.test(url) || !URL.canParse(url)) throw refuse('This is no mysql: URL.')
  const parsed = new URL(url.replace(/^mariadb:/i, 'mysql:'))
  if (parsed.hostname === '') throw refuse('A mysql: URL names a host.')
  if (needsDatabase && parsed.pathname.length <= 1) throw refuse('A mysql: URL names a database.')
  try {
    for (const part of [parsed.username, parsed.password, parsed.pathname]) decodeURIComponent(part)
  } catch {
    throw refuse('This mysql: URL has a % that does not stand for anything.')
  }
  const ssl = takeSsl(parsed.searchParams)
  const others = Object.entries(defaults).filter(([name]) => !parsed.searchParams.has(name))
  return { ...Object.fromEntries(others), ...(ssl && { ssl }), uri: parsed.href }
}

function refuse(why: string): ConfigurationError {
  return new ConfigurationError(
    `${why} Such a URL is mysql://user:password@host:3306/database?ssl=true; special characters in a name or password are percent-encoded.`,
  )
}

/** What mysql2 would not understand is taken out. */
function takeSsl(parameters: URLSearchParams): object | undefined {
  const flag = takeFlag(parameters)
  const mode = take(parameters, 'ssl-mode')?.toUpperCase() ?? flag
  const file = take(parameters, 'ssl-ca')
  if (mode === undefined && file === undefined) return undefined
  const ssl = SSL_MODES[mode ?? 'VERIFY_CA']
  if (!ssl && mode !== 'DISABLED') throw new ConfigurationError(`ssl-mode is one of ${Object.keys(SSL_MODES).join(', ')}.`)
  if (!ssl || file === undefined) return ssl
  try {
    return { ...ssl, ca: readFileSync(file, 'utf8') }
  } catch (cause) {
    throw new ConfigurationError(`The file that ssl-ca names cannot be read (${(cause as NodeJS.ErrnoException).code}).`)
  }
}

function takeFlag(parameters: URLSearchParams): string | undefined {
  const ssl = parameters.get('ssl')
  if (ssl !== 'true' && ssl !== 'false') return undefined
  parameters.delete('ssl')
  return ssl === 'true' ? 'VERIFY_IDENTITY' : 'DISABLED'
}

function take(parameters: URLSearchParams, name: string): string | undefined {
  const value = parameters.get(name) ?? undefined
  parameters.delete(name)
  return value
}
