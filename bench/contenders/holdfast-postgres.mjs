import { createLocks } from '../../dist/index.js'
import { postgresBackend } from '../../dist/backends/sql/postgres/index.js'
import { doing } from '../lib/doing.mjs'
import { openPool } from '../lib/pg.mjs'

const CLIENTS = {
  pg: openPool,
  // Its default, too, is 10 connections.
  'postgres.js': async (url) => (await import('postgres')).default(url, { onnotice: () => {} })
}

/** `clientName` is the library underneath, `lock` the options of each call. */
export async function open(url, options) {
  const { ttlMs, prefix, clientName = 'pg' } = options
  const locks = createLocks(postgresBackend(await CLIENTS[clientName](url)), { prefix, ttlMs })
  return doing(locks, options)
}
