/**
 * The lock of a design document: BEGIN, look at the row and lock it, write it, COMMIT; and a DELETE of what is ours. Five round trips,
 * and two commits. No waiting.
 */
import { randomUUID } from 'node:crypto'
import { makeTables, openPool } from '../lib/pg.mjs'

const TABLE = `
  CREATE TABLE IF NOT EXISTS bench_locks (key text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL)`
const LOOK = 'SELECT owner, expires_at > now() AS held FROM bench_locks WHERE key = $1 FOR UPDATE'
const TAKE = `
  INSERT INTO bench_locks (key, owner, expires_at) VALUES ($1, $2, now() + $3 * interval '1 millisecond')
  ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at`
const DROP = 'DELETE FROM bench_locks WHERE key = $1 AND owner = $2'

export async function open(url, { ttlMs, prefix }) {
  const pool = openPool(url)
  await makeTables(pool, TABLE)
  return {
    acquire: async (name) => {
      const key = `${prefix}:${name}`
      const owner = randomUUID()
      const connection = await pool.connect()
      try {
        await connection.query('BEGIN')
        const { rows } = await connection.query(LOOK, [key])
        if (rows[0]?.held) throw new Error(`${key} is taken`)
        await connection.query(TAKE, [key, owner, ttlMs])
        await connection.query('COMMIT')
      } catch (error) {
        await connection.query('ROLLBACK')
        throw error
      } finally {
        connection.release()
      }
      return { key, owner }
    },
    release: ({ key, owner }) => pool.query(DROP, [key, owner])
  }
}
