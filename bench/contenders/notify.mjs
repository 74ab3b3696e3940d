/**
 * What a hand-over costs at the least on PostgreSQL: an update and a NOTIFY in one transaction, sent as one text and committed to the
 * disk, and another process that hears it. Two processes take turns; there is no lock, no queue, and nobody can die.
 */
import pg from 'pg'
import { makeTables, openPool } from '../lib/pg.mjs'

const TABLE = `
  CREATE TABLE IF NOT EXISTS bench_turns (key text PRIMARY KEY, turns bigint NOT NULL);
  INSERT INTO bench_turns VALUES ('hot', 0) ON CONFLICT DO NOTHING`
const handOverTo = (other) => `UPDATE bench_turns SET turns = turns + 1 WHERE key = 'hot'; SELECT pg_notify('bench_${other}', '')`

export async function open(url, { processIndex }) {
  const pool = openPool(url)
  await makeTables(pool, TABLE)
  const handOver = handOverTo(1 - processIndex)
  let isOurs = processIndex === 0
  let onTurn = () => {}
  const ear = new pg.Client({ connectionString: url })
  ear.on('notification', () => {
    isOurs = true
    onTurn()
  })
  await ear.connect()
  await ear.query(`LISTEN bench_${processIndex}`)
  return {
    acquire: async (key) => {
      // Others are for warming up, and wanted by one only.
      if (key === 'hot' && !isOurs) await new Promise((resolve) => (onTurn = resolve))
      return key
    },
    release: async (key) => {
      if (key !== 'hot') return
      isOurs = false
      await pool.query(handOver)
    }
  }
}
