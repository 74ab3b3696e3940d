/** Backends with a client of their own, made from a URL. */
import { readFileSync } from 'node:fs'
import type { BackendFactory } from '../../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../../core/errors.js'
import { SqlServerBackend } from '../server/backend.js'
import type { MysqlClient } from './client.js'
import { Mysql2Client } from './clients/mysql2.js'
import { MysqlDatabase } from './database.js'
import { MysqlSchema } from './schema.js'

/** Two lists at a time, renewals, withdrawals, and what looks around. */
const MOST_CONNECTIONS = 5

interface UrlOptions {
  readonly schema?: MysqlSchema
  readonly migrate?: boolean
  readonly connectTimeoutMs?: number
}

export function mysqlFromUrl(url: string, options: UrlOptions = {}): BackendFactory {
  const { schema = new MysqlSchema(), migrate = true, connectTimeoutMs = 5_000 } = options
  const { uri, ssl } = readUrl(url, schema)
  const settings = { uri, ...(ssl && { ssl }), connectTimeout: connectTimeoutMs, connectionLimit: MOST_CONNECTIONS }
  return (scope) => new SqlServerBackend(new MysqlDatabase(new LateClient(settings), schema, { migrate }), scope)
}

interface Settings {
  readonly uri: string
  readonly ssl?: object
  readonly connectTimeout: number
  readonly connectionLimit: number
}

/** A URL may contain a password, so nothing of it is quoted. */
function readUrl(url: string, schema: MysqlSchema): Pick<Settings, 'uri' | 'ssl'> {
  if (!/^(mysql|mariadb):\/\//i.test(url) || !URL.canParse(url)) {
    throw new ConfigurationError(
      'This is no mysql: URL. Such a URL is mysql://user:password@host:3306/database?ssl=true; special characters in a name or password have '
        + 'to be percent-encoded.',
    )
  }
  const parsed = new URL(url.replace(/^mariadb:/i, 'mysql:'))
  if (parsed.pathname.length <= 1 && schema.database === undefined) {
    throw new ConfigurationError('A mysql: URL names a database: mysql://user:password@host:3306/database.')
  }
  const ssl = readSsl(parsed.searchParams)
  return { uri: parsed.href, ...(ssl && { ssl }) }
}

/** As MySQL's own client has them, by `ssl-mode`. `ssl=true` is the strictest. */
const SSL_MODES: Readonly<Record<string, object | undefined>> = {
  DISABLED: undefined,
  REQUIRED: { rejectUnauthorized: false },
  VERIFY_CA: { rejectUnauthorized: true },
  VERIFY_IDENTITY: { rejectUnauthorized: true, verifyIdentity: true },
}

/** What mysql2 understands by itself, such as `ssl={"ca":"…"}`, stays in the URL; the rest is taken out of it. */
function readSsl(parameters: URLSearchParams): object | undefined {
  const mode = take(parameters, 'ssl-mode')?.toUpperCase() ?? modeOf(parameters)
  const file = take(parameters, 'ssl-ca')
  if (mode === undefined && file === undefined) return undefined
  const ssl = SSL_MODES[mode ?? 'VERIFY_CA']
  if (!ssl && mode !== 'DISABLED') {
    throw new ConfigurationError(`ssl-mode is one of ${Object.keys(SSL_MODES).join(', ')}.`)
  }
  if (!ssl || file === undefined) return ssl
  try {
    return { ...ssl, ca: readFileSync(file, 'utf8') }
  } catch (cause) {
    throw new ConfigurationError(`The file that ssl-ca names cannot be read (${(cause as NodeJS.ErrnoException).code}).`)
  }
}

function modeOf(parameters: URLSearchParams): string | undefined {
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

async function open(settings: Settings): Promise<MysqlClient> {
  try {
    const { createPool } = await import('mysql2/promise')
    const pool = createPool({ ...settings, trace: false })
    return new Mysql2Client(pool, () => pool.end())
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND')) throw error
    throw new ConnectorError('The client for MySQL and MariaDB is not installed: npm i mysql2.', { cause: error })
  }
}

/** The driver is loaded when it is needed first, since a backend is made at once. */
class LateClient implements MysqlClient {
  readonly #settings: Settings
  #client: Promise<MysqlClient> | undefined

  constructor(settings: Settings) {
    this.#settings = settings
  }

  async query(text: string, values: readonly string[]): Promise<string> {
    return (await this.#opened()).query(text, values)
  }

  async script(statements: readonly string[], after: readonly string[]): Promise<void> {
    return (await this.#opened()).script(statements, after)
  }

  async close(): Promise<void> {
    await (await this.#client)?.close()
  }

  #opened(): Promise<MysqlClient> {
    return (this.#client ??= open(this.#settings))
  }
}
