/** Backends with a client of their own, made from a URL. */
import type { BackendFactory } from '../../../core/backend.js'
import { ConnectorError } from '../../../core/errors.js'
import { SqlServerBackend } from '../server/backend.js'
import type { MysqlClient } from './client.js'
import { Mysql2Client } from './clients/mysql2.js'
import { MysqlDatabase } from './database.js'
import { MysqlSchema } from './schema.js'
import { readMysqlUrl, type PoolSettings } from './url.js'

/** Two lists at a time, renewals, withdrawals, and what looks around. */
const MOST_CONNECTIONS = 5

interface UrlOptions {
  readonly schema?: MysqlSchema
  readonly migrate?: boolean
  readonly connectTimeoutMs?: number
}

export function mysqlFromUrl(url: string, options: UrlOptions = {}): BackendFactory {
  const { schema = new MysqlSchema(), migrate = true, connectTimeoutMs = 5_000 } = options
  const settings = readMysqlUrl(url, schema.database === undefined, { connectTimeout: connectTimeoutMs, connectionLimit: MOST_CONNECTIONS })
  return (scope) => new SqlServerBackend(new MysqlDatabase(new LateClient(settings), schema, { migrate }), scope)
}

async function open(settings: PoolSettings): Promise<MysqlClient> {
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
  readonly #settings: PoolSettings
  #client: Promise<MysqlClient> | undefined

  constructor(settings: PoolSettings) {
    this.#settings = settings
  }

  async query(text: string, values: readonly string[]): Promise<string | undefined> {
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
