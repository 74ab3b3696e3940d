/** The contract on PostgreSQL, through each client. */
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { postgresBackend } from '../../src/backends/sql/postgres/index.js'
import { conformance } from '../../src/testing/index.js'
import { startPostgres, type PostgresServer } from '../support/postgres-server.js'

const traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 500, transactions: true, ownership: true } as const

let server: PostgresServer
let pool: pg.Pool
let sql: postgres.Sql

beforeAll(async () => {
  server = await startPostgres({ durable: false })
  pool = new pg.Pool({ connectionString: server.url })
  sql = postgres(server.url, { onnotice: () => {} })
})
afterAll(async () => {
  await Promise.all([pool.end(), sql.end()])
  await server.stop()
})

describe('a pool of pg', () => {
  conformance(() => postgresBackend(pool, { schema: 'through_pg' }), traits, { describe, it })
})

describe('postgres.js', () => {
  conformance(() => postgresBackend(sql, { tables: 'postgres_js' }), traits, { describe, it })
})
