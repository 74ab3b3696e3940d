/** A transfer as one writes it by hand: BEGIN, both rows FOR UPDATE in the order of their keys, two UPDATEs, COMMIT. */
import { accountsOf } from '../lib/doing.mjs'
import { makeTables, openPool } from '../lib/pg.mjs'

const TABLE = 'CREATE TABLE IF NOT EXISTS bench_accounts (key text PRIMARY KEY, balance bigint NOT NULL)'
const MAKE = 'INSERT INTO bench_accounts VALUES ($1, 0), ($2, 0) ON CONFLICT DO NOTHING'
const LOOK = 'SELECT key, balance FROM bench_accounts WHERE key IN ($1, $2) ORDER BY key FOR UPDATE'
const ADD = 'UPDATE bench_accounts SET balance = $2 WHERE key = $1'

export async function open(url, { prefix }) {
  const pool = openPool(url)
  await makeTables(pool, TABLE)
  const made = new Set()
  let committed = 0
  return {
    async acquire(key) {
      const [from, to] = accountsOf(prefix, key)
      const connection = await pool.connect()
      try {
        if (!made.has(key)) await connection.query(MAKE, [from, to])
        made.add(key)
        await connection.query('BEGIN')
        const { rows } = await connection.query(LOOK, [from, to])
        for (const { key: account, balance } of rows) await connection.query(ADD, [account, Number(balance) + (account === to ? 1 : -1)])
        await connection.query('COMMIT')
        committed++
      } finally {
        connection.release()
      }
      return key
    },
    release: () => undefined,
    tries: () => ({ applied: committed, committed })
  }
}
