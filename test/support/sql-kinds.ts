/** Database servers of each kind, behind one face: what a test does to one it can do to all. */
import { startPgBouncer } from './pgbouncer.js'
import { startPostgres } from './postgres-server.js'
import type { ServerProcess } from './server-process.js'
import { spawnWorker, type Worker, type WorkerOptions } from './workers.js'

export interface SqlDeployment {
  /** Where clients go. */
  readonly url: string
  /** Where the data is. */
  readonly server: ServerProcess & { query(sql: string): Promise<unknown[]> }
  spawnMany(count: number, options?: Partial<WorkerOptions>): Promise<Worker[]>
  /** Cuts all connections but the test's own, as an administrator does. */
  cutConnections(): Promise<void>
  stop(): Promise<void>
}

export interface SqlKind {
  readonly name: string
  readonly start: () => Promise<SqlDeployment>
}

function spawnManyOn(url: string): SqlDeployment['spawnMany'] {
  return (count, options = {}) => Promise.all(Array.from({ length: count }, () => spawnWorker({ url, ...options })))
}

const TERMINATE = `
  SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`

const postgres: SqlKind = {
  name: 'PostgreSQL',
  async start() {
    const server = await startPostgres()
    return {
      url: server.url,
      server,
      spawnMany: spawnManyOn(server.url),
      cutConnections: async () => void (await server.query(TERMINATE)),
      stop: () => server.stop(),
    }
  },
}

const pgBouncer: SqlKind = {
  name: 'PostgreSQL behind PgBouncer',
  async start() {
    const server = await startPostgres()
    // It would not ask a server again for 15 s that was down.
    const pooler = await startPgBouncer(server, { settings: { server_login_retry: 1 } })
    return {
      url: pooler.url,
      server,
      spawnMany: spawnManyOn(pooler.url),
      cutConnections: async () => void (await server.query(TERMINATE)),
      stop: async () => {
        await pooler.stop()
        await server.stop()
      },
    }
  },
}

export const sqlKinds: readonly SqlKind[] = [postgres, pgBouncer]
