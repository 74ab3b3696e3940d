/** Backends with a client of their own, made from a URL by whichever driver is installed. */
import type { BackendFactory } from '../../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../../core/errors.js'
import { SqlServerBackend } from '../server/backend.js'
import type { About, PostgresClient } from './client.js'
import { PgClient } from './clients/pg.js'
import { openPostgresJs } from './clients/open-postgres-js.js'
import { PostgresDatabase } from './database.js'
import { PostgresSchema } from './schema.js'

/** Two lists at a time, renewals, withdrawals, and what looks around. */
const MOST_CONNECTIONS = 5

interface UrlOptions {
  readonly schema?: PostgresSchema
  readonly migrate?: boolean
  readonly connectTimeoutMs?: number
}

export function postgresFromUrl(url: string, options: UrlOptions = {}): BackendFactory {
  checkUrl(url)
  const { schema = new PostgresSchema(), migrate = true, connectTimeoutMs = 5_000 } = options
  return (scope) => new SqlServerBackend(new PostgresDatabase(new LateClient(() => open(url, connectTimeoutMs)), schema, { migrate }), scope)
}

/** A URL may contain a password, so nothing of it is quoted. */
function checkUrl(url: string): void {
  if (/^postgres(ql)?:\/\//i.test(url) && URL.canParse(url)) return
  throw new ConfigurationError(
    'This is no postgres: URL. Such a URL is postgres://user:password@host:5432/database?sslmode=require; special characters in a name or '
      + 'password have to be percent-encoded.',
  )
}

async function open(url: string, connectTimeoutMs: number): Promise<PostgresClient> {
  try {
    const { default: pg } = await import('pg')
    const pool = new pg.Pool({
      connectionString: url,
      max: MOST_CONNECTIONS,
      connectionTimeoutMillis: connectTimeoutMs,
      keepAlive: true,
      allowExitOnIdle: true,
      application_name: 'holdfast',
    })
    // Of a connection that is idle. The next statement gets another.
    pool.on('error', () => {})
    return new PgClient(pool, () => pool.end())
  } catch (error) {
    if (!isMissing(error)) throw error
  }
  try {
    return await openPostgresJs(url, connectTimeoutMs, MOST_CONNECTIONS)
  } catch (error) {
    if (!isMissing(error)) throw error
    throw new ConnectorError('No client for PostgreSQL is installed: npm i pg, or npm i postgres.', { cause: error })
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND'
}

/** The driver is loaded when it is needed first, since a backend is made at once. */
class LateClient implements PostgresClient {
  readonly #open: () => Promise<PostgresClient>
  #client: Promise<PostgresClient> | undefined

  constructor(open: () => Promise<PostgresClient>) {
    this.#open = open
  }

  async query(text: string, values: readonly string[], about?: About): Promise<string> {
    return (await this.#opened()).query(text, values, about)
  }

  async script(text: string): Promise<void> {
    return (await this.#opened()).script(text)
  }

  async listen(...listener: Parameters<NonNullable<PostgresClient['listen']>>): ReturnType<NonNullable<PostgresClient['listen']>> {
    return (await this.#opened()).listen!(...listener)
  }

  async close(): Promise<void> {
    await (await this.#client)?.close()
  }

  #opened(): Promise<PostgresClient> {
    return (this.#client ??= this.#open())
  }
}
