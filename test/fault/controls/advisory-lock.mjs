/**
 * PostgreSQL's advisory locks. They belong to a session, and a pooler in transaction mode lets clients take turns on one: whoever
 * comes to a session that has the lock is given it once more.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const WAIT_MS = 2_000

export function connect(url, { prefix }) {
  const pool = new pg.Pool({ connectionString: url, max: 5 })
  pool.on('error', () => {})

  async function ask(what, key) {
    const { rows } = await pool.query(`SELECT ${what}(hashtext($1)) AS result`, [`${prefix}:${key}`])
    return rows[0].result
  }

  async function lock(key) {
    const giveUpAt = performance.now() + WAIT_MS
    while (!(await ask('pg_try_advisory_lock', key))) {
      if (performance.now() > giveUpAt) throw new Error('It was not had in time')
      await sleep(5)
    }
    return {
      key,
      // The best that there could be: it has none.
      fence: process.hrtime.bigint(),
      remainingMs: 1,
      signal: new AbortController().signal,
      assertHeld() {},
      release: () => ask('pg_advisory_unlock', key),
    }
  }

  return { lock, close: () => pool.end() }
}
