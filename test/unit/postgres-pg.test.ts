/** What `pg` does when connections end at bad moments, or say nothing any more. */
import { once } from 'node:events'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { Pool } from 'pg'
import { expect, it, onTestFinished, vi } from 'vitest'
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

/** For a server that does this with each connection. */
async function poolFor(serve: (socket: Socket) => void): Promise<Pool> {
  const server = createServer((socket) => {
    socket.on('error', () => {})
    serve(socket)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  const pool = new Pool({ host: '127.0.0.1', port: (server.address() as AddressInfo).port, user: 'a', database: 'a', ssl: false })
  pool.on('error', () => {})
  onTestFinished(() => pool.end())
  return pool
}

it('a connection that is cut in the moment that it is made fails its query, and ends no process', async () => {
  // In one go, as they come if an administrator cuts connections while they are made.
  const pool = await poolFor((socket) => socket.once('data', () => socket.end(Buffer.concat([AUTHENTICATED, READY, TERMINATED]))))
  await expect(new PgClient(pool).query('SELECT 1', [])).rejects.toThrow(/terminat|not queryable/)
})

it('a connection that does not answer for 5 s is given up, and not used again', async () => {
  let asked = () => {}
  const isAsked = new Promise<void>((resolve) => (asked = resolve))
  const pool = await poolFor((socket) => socket.once('data', () => {
    socket.write(Buffer.concat([AUTHENTICATED, READY]))
    socket.once('data', asked)
  }))
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  onTestFinished(() => void vi.useRealTimers())
  const failed = new PgClient(pool).query('SELECT 1', []).catch((error: Error) => error.message)
  await isAsked
  await vi.advanceTimersByTimeAsync(4_900)
  expect(pool.totalCount).toBe(1)
  await vi.advanceTimersByTimeAsync(200)
  expect(await failed).toBe('No answer within 5000 ms')
  expect(pool.totalCount).toBe(0)
})
