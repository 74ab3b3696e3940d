/** What a lock of holdfast's costs at the least on this client: its two statements and nothing else. Nobody can wait. */
import { randomBytes } from 'node:crypto'
import { locks } from '../../dist/backends/sql/sqlite/sql.js'
import { openDatabase, untilDone } from '../lib/sqlite.mjs'

export async function open(file, { ttlMs, prefix: prefixText }) {
  const database = await openDatabase(file, 0)
  const take = database.prepare(locks.take)
  const drop = database.prepare(locks.drop)
  const prefix = Buffer.from(prefixText)
  const owner = `bench:${process.pid}#00000000`
  return {
    acquire: async (name) => {
      const key = Buffer.from(name)
      const id = randomBytes(16).toString('hex')
      const now = performance.now()
      const rows = await untilDone(() => take.all(prefix, key, id, owner, null, null, now, now + ttlMs, now, now))
      if (rows.length !== 1) throw new Error(`${name} is taken`)
      return { key, id }
    },
    release: ({ key, id }) => {
      const now = performance.now()
      return untilDone(() => drop.run(now, prefix, key, id, now))
    }
  }
}
