/** What becomes of a commit in a database server that gets lost, or whose answer does, or that comes late. */
import { createPool } from 'mysql2'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Mysql2Client } from '../../src/backends/sql/mysql/clients/mysql2.js'
import { MysqlDatabase } from '../../src/backends/sql/mysql/database.js'
import { MysqlSchema } from '../../src/backends/sql/mysql/schema.js'
import { PgClient } from '../../src/backends/sql/postgres/clients/pg.js'
import { PostgresDatabase } from '../../src/backends/sql/postgres/database.js'
import { PostgresSchema } from '../../src/backends/sql/postgres/schema.js'
import type { Database } from '../../src/backends/sql/server/database.js'
import { Retries } from '../../src/backends/sql/server/retries.js'
import { SqlVersionedStore } from '../../src/backends/sql/server/versioned-store.js'
import { systemClock } from '../../src/core/clock.js'
import { commitOf, lostCommits, put, see, type Send } from '../support/lost-commits.js'
import { startMariaDb } from '../support/mariadb-server.js'
import { startPostgres } from '../support/postgres-server.js'

const KINDS: Record<string, () => Promise<{ database: Database; stop: () => Promise<unknown> }>> = {
  PostgreSQL: async () => {
    const server = await startPostgres({ durable: false })
    const pool = new pg.Pool({ connectionString: server.url })
    const database = new PostgresDatabase(new PgClient(pool), new PostgresSchema(), { migrate: true })
    return { database, stop: () => pool.end().then(() => server.stop()) }
  },
  MariaDB: async () => {
    const server = await startMariaDb({ durable: false })
    const pool = createPool({ uri: server.url })
    const database = new MysqlDatabase(new Mysql2Client(pool), new MysqlSchema(), { migrate: true })
    return { database, stop: () => pool.promise().end().then(() => server.stop()) }
  },
}

const cut = () => Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })

describe.each(Object.entries(KINDS))('%s: a commit', (_, start) => {
  let database: Database
  let stop: () => Promise<unknown>
  beforeAll(async () => {
    ;({ database, stop } = await start())
    await database.migrate()
  })
  afterAll(() => stop())

  /** `first`: what becomes of the first request. */
  function storeOn(prefix: string, first?: (send: Send) => Promise<unknown>): SqlVersionedStore {
    let requests = 0
    const faulty: Database = {
      name: database.name,
      hasShortSteps: database.hasShortSteps,
      migrate: () => database.migrate(),
      failureOf: (error) => database.failureOf(error),
      close: () => database.close(),
      call: (step, values) => {
        const send = () => database.call(step, values)
        return (++requests === 1 && first ? first(send) : send()) as Promise<string>
      },
    }
    return new SqlVersionedStore(faulty, new Retries(faulty, systemClock(), { isOver: () => false, onFailure: () => {} }), prefix)
  }

  lostCommits({ storeOn, cut })

  it('is unknown if no answer comes at all, and fails if none was sent', async () => {
    const all = (error: () => Error) => {
      const dead: Database = { ...database, name: database.name, hasShortSteps: false, migrate: async () => {}, close: async () => {},
        failureOf: (thrown) => database.failureOf(thrown), call: () => Promise.reject(error()) }
      return new SqlVersionedStore(dead, new Retries(dead, systemClock(), { isOver: () => true, onFailure: () => {} }), 'dead')
    }
    expect(await all(cut).commit(commitOf({}))).toMatchObject({ status: 'unknown', error: { code: 'BACKEND' } })
    const refused = () => Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })
    await expect(all(refused).commit(commitOf({}))).rejects.toMatchObject({ code: 'BACKEND', transient: true })
  })

  it('is its prefix’s only', async () => {
    await storeOn('a').commit(commitOf({ puts: [put('k', 'v')] }))
    expect((await see(storeOn('b'), 'k')).value).toBeUndefined()
    expect((await see(storeOn('a'), 'k')).value).toBe('v')
  })

  it('is known for a while only', async () => {
    let late!: Send
    const store = storeOn('tidied', (send) => {
      late = send
      return send()
    })
    await store.commit(commitOf({ puts: [put('k', 'v')] }))
    const { revision } = await see(storeOn('tidied'), 'k')
    await late()
    expect((await see(storeOn('tidied'), 'k')).revision).toBe(revision)
    await database.call('tidy', ['0'])
    await late()
    expect((await see(storeOn('tidied'), 'k')).revision).toBe(revision + 1n)
  })
})
