/** The contract on PostgreSQL, through each client. */
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { postgresBackend } from '../../src/backends/sql/postgres/index.js'
import { conformance } from '../../src/testing/index.js'
import { startPostgres, type PostgresServer } from '../support/postgres-server.js'

const traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, heartbeatMs: 500 } as const

let server: PostgresServer
const clients: { end(): Promise<unknown> }[] = []

beforeAll(async () => {
  server = await startPostgres({ durable: false, settings: { max_connections: 200 } })
})
afterAll(async () => {
  await Promise.all(clients.map((client) => client.end()))
  await server.stop()
})

describe('a pool of pg', () => {
  conformance(() => {
    const pool = new pg.Pool({ connectionString: server.url, max: 2 })
    clients.push(pool)
    return postgresBackend(pool, { schema: 'through_pg' })
  }, traits, { describe, it })
})

describe('postgres.js', () => {
  conformance(() => {
    const sql = postgres(server.url, { max: 2, onnotice: () => {} })
    clients.push(sql)
    return postgresBackend(sql, { tables: 'postgres_js' })
  }, traits, { describe, it })
})
