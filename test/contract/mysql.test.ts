/** The contract on a private MariaDB, through mysql2 and Kysely, both set as oddly as a caller may have them. */
import { CamelCasePlugin, Kysely, MysqlDialect } from 'kysely'
import { createPool } from 'mysql2'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { mysqlBackend } from '../../src/backends/sql/mysql/index.js'
import { conformance } from '../../src/testing/index.js'
import { startMariaDb, type MariaDbServer } from '../support/mariadb-server.js'

const traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 500, transactions: true, ownership: true } as const

let server: MariaDbServer
beforeAll(async () => {
  server = await startMariaDb({ durable: false })
})
afterAll(() => server.stop())

describe('a pool of mysql2 with callbacks, whose rows are others', () => {
  let pool: ReturnType<typeof createPool>
  beforeAll(() => void (pool = createPool({ uri: server.url, nestTables: true, typeCast: () => 'nothing', charset: 'latin1_swedish_ci' })))
  afterAll(() => void pool.end())
  conformance(() => mysqlBackend(pool, { database: 'holdfast-2', tables: 'app' }), traits, { describe, it })
})

describe('Kysely', () => {
  let db: Kysely<unknown>
  beforeAll(() => void (db = new Kysely({ dialect: new MysqlDialect({ pool: createPool({ uri: server.url }) }), plugins: [new CamelCasePlugin()] })))
  afterAll(() => db.destroy())
  conformance(() => mysqlBackend(db, { tables: 'kysely' }), traits, { describe, it })
})
