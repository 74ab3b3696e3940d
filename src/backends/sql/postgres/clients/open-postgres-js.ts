/** A client of our own by postgres.js. */
import { PostgresJsClient } from './postgres-js.js'

/**
 * In seconds. postgres.js would wait for up to 20 s until it connects again, counts the failures of all its connections for that, and
 * lets statements wait for such a connection while others are free. The steps have pauses of their own.
 */
const PAUSE_S = 0.05

export async function openPostgresJs(url: string, connectTimeoutMs: number, most: number): Promise<PostgresJsClient> {
  const { default: postgres } = await import('postgres')
  const sql = postgres(url, {
    max: most,
    connect_timeout: connectTimeoutMs / 1_000,
    backoff: () => PAUSE_S,
    onnotice: () => {},
    fetch_types: false,
    connection: { application_name: 'holdfast' },
  })
  return new PostgresJsClient(sql, () => sql.end({ timeout: 1 }))
}
