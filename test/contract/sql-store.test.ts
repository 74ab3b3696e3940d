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
import type { Commit } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
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

const commitOf = (commit: Partial<Commit>): Commit => ({ comparisons: [], puts: [], deletes: [], reads: [], ...commit })
const put = (key: string, value: string) => ({ key, value: Buffer.from(value) })
const cut = () => Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })

describe.each(Object.entries(KINDS))('%s: a commit', (_, start) => {
  let database: Database
  let stop: () => Promise<unknown>
  beforeAll(async () => {
    ;({ database, stop } = await start())
    await database.migrate()
  })
  afterAll(() => stop())

  /** `first`: what becomes of the first request. `sent` carries it out. */
  function storeOn(prefix: string, first?: (sent: () => Promise<string>) => Promise<string>): SqlVersionedStore {
    let requests = 0
    const faulty: Database = {
      name: database.name,
      hasShortSteps: database.hasShortSteps,
      migrate: () => database.migrate(),
      failureOf: (error) => database.failureOf(error),
      close: () => database.close(),
      call: (step, values) => {
        const send = () => database.call(step, values)
        return ++requests === 1 && first ? first(send) : send()
      },
    }
    return new SqlVersionedStore(faulty, new Retries(faulty, systemClock(), { isOver: () => false, onFailure: () => {} }), prefix)
  }

  const see = async (prefix: string, key: string) => {
    const { revision, values: [entry] } = (await storeOn(prefix).read([key]))!
    return { revision, value: entry && Buffer.from(entry.value).toString(), wroteAt: entry?.revision }
  }

  it('counts once if its answer is lost', async () => {
    const before = await storeOn('answer').commit(commitOf({ puts: [put('k', '0')] }))
    const store = storeOn('answer', async (send) => {
      await send()
      throw cut()
    })
    const state = await store.commit(commitOf({ puts: [put('k', '1')] }))
    const { revision } = before as { revision: bigint }
    expect(state).toEqual({ status: 'committed', revision: revision + 1n })
    expect(await see('answer', 'k')).toEqual({ revision: revision + 1n, value: '1', wroteAt: revision + 1n })
  })

  it('is sent again if it was lost itself', async () => {
    const store = storeOn('request', () => Promise.reject(cut()))
    expect((await store.commit(commitOf({ puts: [put('k', '1')] }))).status).toBe('committed')
    expect((await see('request', 'k')).value).toBe('1')
  })

  it('does nothing if it comes after its own repetition', async () => {
    let late!: () => Promise<string>
    const store = storeOn('late', (send) => {
      late = send
      return Promise.reject(cut())
    })
    await store.commit(commitOf({ puts: [put('k', 'ours')] }))
    await storeOn('late').commit(commitOf({ puts: [put('k', 'theirs')] }))
    const before = await see('late', 'k')
    expect(await late()).toContain('committed')
    expect(await see('late', 'k')).toEqual(before)
  })

  it('does nothing if it comes after its repetition was refused, even if it could be carried out by then', async () => {
    let late!: () => Promise<string>
    const store = storeOn('refused', async (send) => {
      late = send
      await storeOn('refused').commit(commitOf({ puts: [put('k', 'theirs')] }))
      throw cut()
    })
    const state = await store.commit(commitOf({ comparisons: [{ key: 'k', is: 'equal', revision: 0n }], puts: [put('k', 'ours')] }))
    expect(state.status).toBe('conflict')
    await storeOn('refused').commit(commitOf({ deletes: ['k'] }))
    expect(await late()).toContain('conflict')
    expect((await see('refused', 'k')).value).toBeUndefined()
  })

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
    expect((await see('b', 'k')).value).toBeUndefined()
    expect((await see('a', 'k')).value).toBe('v')
  })

  it('is known for a while only', async () => {
    let late!: () => Promise<string>
    const store = storeOn('tidied', (send) => {
      late = send
      return send()
    })
    await store.commit(commitOf({ puts: [put('k', 'v')] }))
    const { revision } = await see('tidied', 'k')
    await late()
    expect((await see('tidied', 'k')).revision).toBe(revision)
    await database.call('tidy', ['0'])
    await late()
    expect((await see('tidied', 'k')).revision).toBe(revision + 1n)
  })
})
