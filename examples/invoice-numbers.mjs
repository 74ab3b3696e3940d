/**
 * Invoices whose numbers have no gap, in MariaDB or MySQL: the lock is taken before the transaction and released after its commit, and the
 * fence is checked where the data is. `DATABASE_URL=mysql://… node examples/invoice-numbers.mjs`
 */
import { createPool } from 'mysql2/promise'
import { createLocks } from 'holdfast'
import { mysqlBackend } from 'holdfast/mysql'

const pool = createPool({ uri: process.env.DATABASE_URL })
const locks = createLocks(mysqlBackend(pool))
await pool.query('CREATE TABLE IF NOT EXISTS invoices (number INT PRIMARY KEY, customer VARCHAR(100) NOT NULL, fence BIGINT NOT NULL)')
await pool.query('DELETE FROM invoices')

/** Reads, thinks, and writes: without the lock two would read the same number. */
async function invoice(customer) {
  await locks.withLock('invoices', async ({ fence }) => {
    const db = await pool.getConnection()
    try {
      await db.beginTransaction()
      const [[last]] = await db.execute('SELECT COALESCE(MAX(number), 0) AS number, COALESCE(MAX(fence), 0) > CAST(? AS SIGNED) AS isLate FROM invoices', [String(fence)])
      if (last.isLate) throw new Error('A later holder was here')
      await db.execute('INSERT INTO invoices VALUES (?, ?, CAST(? AS SIGNED))', [last.number + 1, customer, String(fence)])
      if (customer === 'Eve') throw new Error('Eve pays in cash')
      await db.commit()
    } catch (error) {
      await db.rollback()
      throw error
    } finally {
      db.release()
    }
  })
}

const made = await Promise.allSettled(['Ada', 'Ben', 'Cleo', 'Dan', 'Eve', 'Fay', 'Gus', 'Hal'].map(invoice))
console.log(`asked for: ${made.length}, made: ${made.filter(({ status }) => status === 'fulfilled').length}`)
const [invoices] = await pool.query('SELECT number FROM invoices ORDER BY number')
console.log(`numbers: ${invoices.map(({ number }) => number).join(', ')}`)

await locks.close()
await pool.end()
