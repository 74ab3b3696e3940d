import Database from 'libsql'
import { createLocks } from '../../dist/index.js'
import { sqliteBackend } from '../../dist/backends/sql/sqlite/index.js'

/** `lock` are the options of each call. */
export async function open(file, { ttlMs, prefix, lock }) {
  // Given as a database, not as a path: that would be Node's own client, where there is one.
  const locks = createLocks(sqliteBackend(new Database(file)), { prefix, ttlMs })
  return {
    acquire: (key) => locks.lock(key, lock),
    release: (held) => held.release()
  }
}
