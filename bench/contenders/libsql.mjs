/**
 * What a lock costs at the least on this client: an upsert that takes what is free, and an update that frees what is ours, in a
 * table like holdfast's. No waiting for the lock; for the file as `busyTimeoutMs` says.
 */
import { randomUUID } from 'node:crypto'
import { openDatabase, untilDone } from '../lib/sqlite.mjs'

const TAKE = `
  INSERT INTO holdfast_locks AS it (
    prefix, key, slots, used, waiting, last, epoch, id, owner, granted_at, expires_at, created_at, updated_at
  ) VALUES (?, ?, 1, 1, 0, 1, 1, ?, ?, ?, ?, ?, ?)
  ON CONFLICT (prefix, key) DO UPDATE SET
    used = 1, last = it.last + 1, epoch = it.last + 1, id = excluded.id, owner = excluded.owner,
    granted_at = excluded.granted_at, expires_at = excluded.expires_at, updated_at = excluded.updated_at
  WHERE it.used = 0 OR it.expires_at <= excluded.granted_at`
const DROP = 'UPDATE holdfast_locks SET used = 0, id = NULL, owner = NULL, updated_at = ? WHERE prefix = ? AND key = ? AND id = ?'

export async function open(file, { ttlMs, prefix, busyTimeoutMs = 5_000 }) {
  const database = await openDatabase(file, busyTimeoutMs)
  const take = database.prepare(TAKE)
  const drop = database.prepare(DROP)
  const owner = `bench:${process.pid}`
  return {
    acquire: async (key) => {
      const id = randomUUID()
      const now = Date.now()
      const { changes } = await untilDone(() => take.run(prefix, key, id, owner, now, now + ttlMs, now, now))
      if (changes !== 1) throw new Error(`${key} is taken`)
      return { key, id }
    },
    release: ({ key, id }) => untilDone(() => drop.run(Date.now(), prefix, key, id))
  }
}
