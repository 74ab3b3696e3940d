/** What those who use pg share. They end with their process. */
import pg from 'pg'

/** For everybody the same: the pool's default of 10 connections. */
export function openPool(url) {
  const pool = new pg.Pool({ connectionString: url })
  pool.on('error', () => {})
  return pool
}

/** Several processes may come at the same moment, for which PostgreSQL's IF NOT EXISTS is not enough. As one text it is one transaction. */
export async function makeTables(pool, statements) {
  await pool.query(`SELECT pg_advisory_xact_lock(1); ${statements}`)
}
