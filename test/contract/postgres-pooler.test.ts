/** The contract on PostgreSQL behind PgBouncer in transaction mode, where nothing can be heard: news are read instead. */
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { postgresBackend } from '../../src/backends/sql/postgres/index.js'
import { conformance } from '../../src/testing/index.js'
import { startPgBouncer, type PgBouncer } from '../support/pgbouncer.js'
import { startPostgres, type PostgresServer } from '../support/postgres-server.js'

const traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, heartbeatMs: 500 } as const

let server: PostgresServer
let pooler: PgBouncer
const clients: { end(): Promise<unknown> }[] = []

beforeAll(async () => {
  server = await startPostgres({ durable: false })
  pooler = await startPgBouncer(server, { settings: { default_pool_size: 10, max_client_conn: 1_000 } })
})
afterAll(async () => {
  await Promise.all(clients.map((client) => client.end()))
  await pooler.stop()
  await server.stop()
})

function pool(): pg.Pool {
  const made = new pg.Pool({ connectionString: pooler.url, max: 2 })
  clients.push(made)
  return made
}

describe('a pool of pg', () => {
  conformance(() => postgresBackend(pool(), { tables: 'pg' }), traits, { describe, it })
})

describe('Kysely', () => {
  conformance(() => {
    const db = new Kysely<object>({ dialect: new PostgresDialect({ pool: pool() }) })
    return postgresBackend(db, { tables: 'kysely' })
  }, traits, { describe, it })
})

describe('postgres.js', () => {
  conformance(() => {
    const sql = postgres(pooler.url, { max: 2, prepare: false, onnotice: () => {} })
    clients.push(sql)
    return postgresBackend(sql, { tables: 'postgres_js' })
  }, traits, { describe, it })
})
