import { createPool } from 'mysql2/promise'
import { createLocks } from '../../dist/index.js'
import { mysqlBackend } from '../../dist/backends/sql/mysql/index.js'

export async function open(url, { ttlMs, prefix }) {
  const locks = createLocks(mysqlBackend(createPool(url)), { prefix, ttlMs })
  return {
    acquire: (key) => locks.lock(key),
    release: (held) => held.release()
  }
}
