/** What a lock of holdfast's costs at the least on this client: its two statements, each in its transaction, and nothing else. Nobody can wait. */
import { randomBytes } from 'node:crypto'
import { locks } from '../../dist/backends/sql/sqlite/sql.js'
import { openDatabase, untilDone } from '../lib/sqlite.mjs'

export async function open(file, { ttlMs, prefix: prefixText }) {
  const database = await openDatabase(file, 0)
  const take = database.prepare(locks.take)
  const drop = database.prepare(locks.drop)
  const prefix = Buffer.from(prefixText)
  const owner = `bench:${process.pid}#00000000`
  /** With libsql, only `exec` may find the file busy. */
  const inside = (step) => {
    database.exec('BEGIN IMMEDIATE')
    const result = step()
    database.exec('COMMIT')
    return result
  }
  return {
    acquire: async (name) => {
      const key = Buffer.from(name)
      const id = randomBytes(16).toString('hex')
      const now = performance.now()
      const taken = await untilDone(() => inside(() => take.get(prefix, key, id, owner, null, null, now, now + ttlMs, now, now)))
      if (!taken) throw new Error(`${name} is taken`)
      return { key, id }
    },
    release: ({ key, id }) => {
      const now = performance.now()
      return untilDone(() => inside(() => drop.run(now, prefix, key, id, now)))
    }
  }
}
