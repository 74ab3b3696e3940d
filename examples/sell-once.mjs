/**
 * Stock that is not sold twice, in PostgreSQL: the lock is taken before the transaction and released after its commit, and the fence is
 * checked where the data is. `DATABASE_URL=postgres://… node examples/sell-once.mjs`
 */
import pg from 'pg'
import { createLocks } from 'holdfast'
import { postgresBackend } from 'holdfast/postgres'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const locks = createLocks(postgresBackend(pool))
await pool.query('CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, amount integer NOT NULL, fence bigint NOT NULL DEFAULT 0)')
await pool.query("INSERT INTO stock VALUES ('lamp', 3) ON CONFLICT (item) DO UPDATE SET amount = 3")

/** Reads, thinks, and writes: without the lock two would read the same amount. */
async function sell(item) {
  return locks.withLock(`stock:${item}`, async ({ fence }) => {
    const db = await pool.connect()
    try {
      await db.query('BEGIN')
      const { rows } = await db.query('UPDATE stock SET fence = $2 WHERE item = $1 AND fence <= $2 RETURNING amount', [item, String(fence)])
      if (rows.length === 0) throw new Error('A later holder was here')
      const sold = rows[0].amount > 0
      if (sold) await db.query('UPDATE stock SET amount = $2 WHERE item = $1 AND fence = $3', [item, rows[0].amount - 1, String(fence)])
      await db.query('COMMIT')
      return sold
    } catch (error) {
      await db.query('ROLLBACK')
      throw error
    } finally {
      db.release()
    }
  })
}

const sales = await Promise.all(Array.from({ length: 8 }, () => sell('lamp')))
console.log(`asked for: ${sales.length}, sold: ${sales.filter(Boolean).length}`)
console.log(`left: ${(await pool.query("SELECT amount FROM stock WHERE item = 'lamp'")).rows[0].amount}`)

await locks.close()
await pool.end()
