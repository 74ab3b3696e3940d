/** What a lock of holdfast's costs at the least on this client: its two procedures, called by hand, and nothing else. Nobody can wait. */
import { randomBytes } from 'node:crypto'
import { createPool } from 'mysql2/promise'
import { MysqlSchema } from '../../dist/backends/sql/mysql/schema.js'

const hex = (text) => Buffer.from(text).toString('hex')

export async function open(url, { ttlMs, prefix: prefixText }) {
  const pool = createPool(url)
  const { calls, before, statements, after } = new MysqlSchema()
  const connection = await pool.getConnection()
  for (const statement of [...before, ...statements, ...after]) await connection.query(statement)
  connection.release()
  const prefix = hex(hex(prefixText))
  const owner = hex(`bench:${process.pid}#00000000`)
  const leave = hex('false')
  return {
    acquire: async (name) => {
      const key = hex(hex(name))
      const id = hex(randomBytes(16).toString('hex'))
      const [[[row]]] = await pool.execute(calls.claimLock, [prefix, owner, key, id, hex(String(ttlMs)), leave])
      const [, [[status]]] = JSON.parse(row.result)
      if (status !== 'held') throw new Error(`${name} is taken`)
      return { key, id }
    },
    release: ({ key, id }) => pool.execute(calls.releaseLock, [prefix, owner, key, id])
  }
}
