import type { BackendFactory } from '../../../core/backend.js'
import { ConnectorError } from '../../../core/errors.js'
import { SqlServerBackend } from '../server/backend.js'
import { adapterOf, isKysely, type KyselyLike } from '../server/kysely.js'
import type { MysqlClient } from './client.js'
import { KyselyClient } from './clients/kysely.js'
import { isMysql2Pool, Mysql2Client, type Mysql2Pool } from './clients/mysql2.js'
import { MysqlDatabase } from './database.js'
import { mysqlFromUrl } from './from-url.js'
import { MysqlSchema, type MysqlNames } from './schema.js'

export type { KyselyLike } from '../server/kysely.js'
export type { Mysql2Pool } from './clients/mysql2.js'
export type { MysqlNames } from './schema.js'

export interface MysqlOptions extends MysqlNames {
  /** Whether tables and procedures are made on first use, if they are not there. Default: true. */
  readonly migrate?: boolean
}

/**
 * Locks in MariaDB 10.6 and later, or MySQL 8.0.29 and later (not tested there): a pool of `mysql2`, a Kysely instance, or a URL. Your
 * client is used for single calls outside of your transactions, and never closed.
 */
export function mysqlBackend(client: Mysql2Pool | KyselyLike | string, options: MysqlOptions = {}): BackendFactory {
  const { migrate = true, ...names } = options
  const schema = new MysqlSchema(names)
  if (typeof client === 'string') return mysqlFromUrl(client, { schema, migrate })
  const known = clientOf(client)
  return (scope) => new SqlServerBackend(new MysqlDatabase(known, schema, { migrate }), scope)
}

/** What makes the tables and procedures, for those who run their own migrations with `mysql` or `mariadb`. Can be run again. */
export function mysqlMigration(names?: MysqlNames): string {
  const { before, statements, after } = new MysqlSchema(names)
  return ['DELIMITER $$', ...[...before, ...statements, ...after].map((statement) => `${statement} $$`), 'DELIMITER ;', ''].join('\n')
}

/** What a user (`name`, or `name@host`) has to be allowed who takes and releases locks, where another one has run the migration. */
export function mysqlGrants(user: string, names?: MysqlNames): string {
  return `${new MysqlSchema(names).grants(user)}\n`
}

function clientOf(client: unknown): MysqlClient {
  if (isMysql2Pool(client)) return new Mysql2Client(client)
  if (isKysely(client)) {
    const name = adapterOf(client)
    if (/postgres|sqlite|mssql/i.test(name)) throw new ConnectorError(`This Kysely instance does not speak to MySQL (it has a ${name}).`)
    if (client.isTransaction) throw new ConnectorError('This is a transaction. mysqlBackend() takes the Kysely instance itself.')
    return new KyselyClient(client)
  }
  throw new ConnectorError(
    'mysqlBackend() takes a pool of mysql2, a Kysely instance or a URL: mysqlBackend(createPool({ uri })). A single connection will not do: it '
      + 'may be in the middle of a transaction.',
  )
}
