/** Database servers of each kind, behind one face: what a test does to one it can do to all. */
import { Client } from 'pg'
import { mysqlBackend } from '../../src/backends/sql/mysql/index.js'
import { postgresBackend } from '../../src/backends/sql/postgres/index.js'
import type { BackendFactory } from '../../src/core/backend.js'
import { startMariaDb } from './mariadb-server.js'
import { startPgBouncer } from './pgbouncer.js'
import { startPostgres, type PostgresServer } from './postgres-server.js'
import type { ServerProcess } from './server-process.js'
import { startProxy, type Proxy } from './tcp-proxy.js'
import { until } from './until.js'
import { spawnWorker, type Worker, type WorkerOptions } from './workers.js'

export interface SqlOptions {
  readonly password?: string
  /** Of the server, not of a pooler. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

export interface SqlDeployment {
  /** Where clients go. */
  readonly url: string
  /** Where the data is. */
  readonly server: ServerProcess & { query(sql: string): Promise<unknown[]> }
  /** What is between clients and the server, if there is something. */
  readonly pooler?: ServerProcess
  spawnMany(count: number, options?: Partial<WorkerOptions>): Promise<Worker[]>
  /** The same for one that goes by a way of its own. */
  behindProxy(): Promise<{ readonly url: string; readonly proxy: Proxy }>
  /** Cuts all connections but the test's own, as an administrator does. */
  cutConnections(): Promise<void>
  /** For a test that speaks to it itself. */
  readonly backend: BackendFactory
  /** How many transactions the server has ended because they waited for each other, or made the same row. */
  conflicts(): Promise<number>
  /** Deletes the rows that nobody uses at this moment, as is done with those of the last minute else. */
  tidy(): Promise<void>
  /** Until clients are served, by the way that they go. */
  healthy(): Promise<void>
  stop(): Promise<void>
}

export interface SqlKind {
  readonly name: string
  readonly start: (options?: SqlOptions) => Promise<SqlDeployment>
}

type Shape = Pick<SqlDeployment, 'server' | 'pooler' | 'backend' | 'cutConnections' | 'conflicts' | 'tidy' | 'healthy'>

function deployment(shape: Shape): SqlDeployment {
  const { server, pooler } = shape
  const front = pooler ?? server
  const { url } = front
  return {
    ...shape,
    url,
    spawnMany: (count, options = {}) => Promise.all(Array.from({ length: count }, () => spawnWorker({ url, ...options }))),
    async behindProxy() {
      const proxy = await startProxy({ to: front })
      return { url: url.replace(`:${front.port}/`, `:${proxy.port}/`), proxy }
    },
    async stop() {
      await pooler?.stop()
      await server.stop()
    },
  }
}

const TERMINATE = `
  SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`

function onPostgres(server: PostgresServer, pooler?: ServerProcess): SqlDeployment {
  const { url } = pooler ?? server
  return deployment({
    server,
    ...(pooler && { pooler }),
    backend: postgresBackend(url),
    conflicts: async () => server.log.match(/deadlock detected|duplicate key value/g)?.length ?? 0,
    tidy: async () => void (await server.query("SELECT holdfast_2_tidy_page('tidier', 0, '', '', 200)")),
    cutConnections: async () => void (await server.query(TERMINATE)),
    healthy: () => until('PostgreSQL to serve', () => isServed(url)),
  })
}

async function isServed(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url, connectionTimeoutMillis: 2_000, query_timeout: 2_000 })
  client.on('error', () => {})
  try {
    await client.connect()
    await client.query('SELECT 1')
    return true
  } finally {
    await client.end()
  }
}

export const postgres: SqlKind = {
  name: 'PostgreSQL',
  start: async (options) => onPostgres(await startPostgres(options)),
}

export const pgBouncer: SqlKind = {
  name: 'PostgreSQL behind PgBouncer',
  async start(options) {
    const server = await startPostgres(options)
    // It would not ask a server again for 15 s that was down.
    return onPostgres(server, await startPgBouncer(server, { settings: { server_login_retry: 1 } }))
  },
}

const OTHERS = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user <> 'system user'"

export const mariaDb: SqlKind = {
  name: 'MariaDB',
  async start(options) {
    const server = await startMariaDb(options)
    return deployment({
      server,
      backend: mysqlBackend(server.url),
      // That a row is there already would be an error for whoever asked.
      conflicts: async () => Number((await server.query<{ Value: string }>("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"))[0]!.Value),
      tidy: async () => void (await server.query("CALL holdfast_3_tidy_page('tidier', 0, '', '', 200)")),
      cutConnections: async () => {
        // One that is gone by now is none.
        for (const { id } of await server.query<{ id: number }>(OTHERS)) await server.query(`KILL ${id}`).catch(() => {})
      },
      healthy: () => until('MariaDB to serve', async () => {
        if (!server.isUp) throw new Error(`it has ended: ${server.log.slice(-4000)}`)
        return (await server.query('SELECT 1')).length === 1
      }),
    })
  },
}

export const sqlKinds: readonly SqlKind[] = [postgres, pgBouncer, mariaDb]
