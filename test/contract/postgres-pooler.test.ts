/** The contract on PostgreSQL behind PgBouncer in transaction mode, where nothing can be heard: news are read instead. */
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { postgresBackend } from '../../src/backends/sql/postgres/index.js'
import { conformance } from '../../src/testing/index.js'
import { startPgBouncer, type PgBouncer } from '../support/pgbouncer.js'
import { startPostgres, type PostgresServer } from '../support/postgres-server.js'

const traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 500, transactions: true, ownership: true } as const

let server: PostgresServer
let pooler: PgBouncer
let pool: pg.Pool

beforeAll(async () => {
  server = await startPostgres({ durable: false })
  pooler = await startPgBouncer(server)
  pool = new pg.Pool({ connectionString: pooler.url })
})
afterAll(async () => {
  await pool.end()
  await pooler.stop()
  await server.stop()
})

describe('a pool of pg', () => {
  conformance(() => postgresBackend(pool, { tables: 'pg' }), traits, { describe, it })
})

describe('Kysely', () => {
  const db = () => new Kysely<object>({ dialect: new PostgresDialect({ pool }) })
  conformance(() => postgresBackend(db(), { tables: 'kysely' }), traits, { describe, it })
})
