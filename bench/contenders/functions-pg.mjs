/** What a lock of holdfast's costs at the least on this client: its two functions, each called by hand, and nothing else. Nobody can wait. */
import { randomBytes } from 'node:crypto'
import { postgresMigration } from '../../dist/backends/sql/postgres/index.js'
import { PostgresSchema } from '../../dist/backends/sql/postgres/schema.js'
import { makeTables, openPool } from '../lib/pg.mjs'

const hex = (text) => Buffer.from(text).toString('hex')

export async function open(url, { ttlMs, prefix: prefixText }) {
  const pool = openPool(url)
  await makeTables(pool, postgresMigration())
  // The last value of each is a mark with which the answer begins.
  const { calls } = new PostgresSchema()
  const prefix = hex(prefixText)
  const owner = `bench:${process.pid}#00000000`
  return {
    acquire: async (name) => {
      const key = hex(name)
      const id = randomBytes(16).toString('hex')
      const list = JSON.stringify([{ key, id, take: 1, slots: 1, ttl: ttlMs }])
      const { rows } = await pool.query(calls.claim, [prefix, owner, list, 'false', 'false', ''])
      const [, [[status]]] = JSON.parse(rows[0].result)
      if (status !== 'held') throw new Error(`${name} is taken`)
      return { key, id }
    },
    release: ({ key, id }) => pool.query(calls.release, [prefix, owner, JSON.stringify([{ key, id }]), ''])
  }
}
