/** What `pg` does when connections end at bad moments. */
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { Pool } from 'pg'
import { expect, it, onTestFinished } from 'vitest'
import { PgClient } from '../../src/backends/sql/postgres/clients/pg.js'

/** A message of PostgreSQL's protocol. */
function message(type: string, body: string): Buffer {
  const bytes = Buffer.from(body, 'latin1')
  const length = Buffer.alloc(4)
  length.writeInt32BE(4 + bytes.length)
  return Buffer.concat([Buffer.from(type), length, bytes])
}

const AUTHENTICATED = message('R', '\0\0\0\0')
const READY = message('Z', 'I')
const TERMINATED = message('E', 'SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0')

it('a connection that is cut in the moment that it is made fails its query, and ends no process', async () => {
  const server = createServer((socket) => {
    socket.on('error', () => {})
    // In one go, as they come if an administrator cuts connections while they are made.
    socket.once('data', () => socket.end(Buffer.concat([AUTHENTICATED, READY, TERMINATED])))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  const pool = new Pool({ host: '127.0.0.1', port: (server.address() as AddressInfo).port, user: 'a', database: 'a', ssl: false })
  pool.on('error', () => {})
  onTestFinished(() => pool.end())
  await expect(new PgClient(pool).query('SELECT 1', [])).rejects.toThrow(/terminat|not queryable/)
})
