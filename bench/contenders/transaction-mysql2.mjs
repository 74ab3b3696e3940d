/**
 * The lock of a design document: BEGIN, look at the row and lock it, write it, COMMIT; and a DELETE of what is ours. Five round trips,
 * and two commits. No waiting. In its favour it reads what is committed: by default, those who look at rows that are not there would
 * lock the gaps between them, and each other out.
 */
import { randomUUID } from 'node:crypto'
import { createPool } from 'mysql2/promise'

const TABLE = `
  CREATE TABLE IF NOT EXISTS bench_locks (
    \`key\` VARCHAR(255) NOT NULL PRIMARY KEY, owner VARCHAR(255) NOT NULL, expires_at DATETIME(3) NOT NULL
  )`
const LOOK = 'SELECT owner, expires_at > NOW(3) AS held FROM bench_locks WHERE `key` = ? FOR UPDATE'
const TAKE = `
  INSERT INTO bench_locks (\`key\`, owner, expires_at) VALUES (?, ?, NOW(3) + INTERVAL ? * 1000 MICROSECOND)
  ON DUPLICATE KEY UPDATE owner = VALUES(owner), expires_at = VALUES(expires_at)`
const DROP = 'DELETE FROM bench_locks WHERE `key` = ? AND owner = ?'

export async function open(url, { ttlMs, prefix }) {
  const pool = createPool(url)
  pool.pool.on('connection', (connection) => connection.query('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED'))
  await pool.query(TABLE)
  return {
    acquire: async (name) => {
      const key = `${prefix}:${name}`
      const owner = randomUUID()
      const connection = await pool.getConnection()
      try {
        await connection.query('BEGIN')
        const [rows] = await connection.execute(LOOK, [key])
        if (rows[0]?.held) throw new Error(`${key} is taken`)
        await connection.execute(TAKE, [key, owner, ttlMs])
        await connection.query('COMMIT')
      } catch (error) {
        await connection.query('ROLLBACK')
        throw error
      } finally {
        connection.release()
      }
      return { key, owner }
    },
    release: ({ key, owner }) => pool.execute(DROP, [key, owner])
  }
}
