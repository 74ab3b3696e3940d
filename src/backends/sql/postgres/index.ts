import type { BackendFactory } from '../../../core/backend.js'
import { ConnectorError } from '../../../core/errors.js'
import { SqlServerBackend } from '../server/backend.js'
import { adapterOf, isKysely, type KyselyLike } from '../server/kysely.js'
import type { PostgresClient } from './client.js'
import { KyselyClient } from './clients/kysely.js'
import { isPgPool, PgClient, type PgPool } from './clients/pg.js'
import { isPostgresJs, PostgresJsClient, type PostgresJs } from './clients/postgres-js.js'
import { PostgresDatabase } from './database.js'
import { postgresFromUrl } from './from-url.js'
import { PostgresSchema, type PostgresNames } from './schema.js'

export type { KyselyLike } from '../server/kysely.js'
export type { PgPool } from './clients/pg.js'
export type { PostgresJs } from './clients/postgres-js.js'
export type { PostgresNames } from './schema.js'

export interface PostgresOptions extends PostgresNames {
  /** Whether tables and functions are made on first use, if they are not there. Default: true. */
  readonly migrate?: boolean
}

/**
 * Locks in PostgreSQL 12 and later: a pool of `pg`, a `postgres()` of postgres.js, a Kysely instance, or a URL. Your client is used
 * for single statements outside of your transactions, and never closed; to be told when its turn has come, a process opens one
 * connection more.
 */
export function postgresBackend(client: PgPool | PostgresJs | KyselyLike | string, options: PostgresOptions = {}): BackendFactory {
  const { migrate = true, ...names } = options
  const schema = new PostgresSchema(names)
  if (typeof client === 'string') return postgresFromUrl(client, { schema, migrate })
  const known = clientOf(client)
  return (scope) => new SqlServerBackend(new PostgresDatabase(known, schema, { migrate }), scope)
}

/** What makes the tables and functions, for those who run their own migrations. Can be run again. */
export function postgresMigration(names?: PostgresNames): string {
  return `${new PostgresSchema(names).statements}\n`
}

/** What a user has to be allowed that takes and releases locks, where another one has run the migration. */
export function postgresGrants(user: string, names?: PostgresNames): string {
  return `${new PostgresSchema(names).grants(user)}\n`
}

function clientOf(client: unknown): PostgresClient {
  if (isPostgresJs(client)) return new PostgresJsClient(client)
  if (isPgPool(client)) return new PgClient(client)
  if (isKysely(client)) {
    const name = adapterOf(client)
    if (/mysql|sqlite|mssql/i.test(name)) throw new ConnectorError(`This Kysely instance does not speak to PostgreSQL (it has a ${name}).`)
    if (client.isTransaction) throw new ConnectorError('This is a transaction. postgresBackend() takes the Kysely instance itself.')
    return new KyselyClient(client)
  }
  throw new ConnectorError(
    'postgresBackend() takes a pool of pg, a postgres() of postgres.js, a Kysely instance or a URL: postgresBackend(new Pool({ connectionString })). '
      + 'A single connection will not do: it may be in the middle of a transaction.',
  )
}
