/** What becomes of a commit in a database server that gets lost, or whose answer does, or that comes late. */
import { setTimeout as sleep } from 'node:timers/promises'
import { createPool } from 'mysql2'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Mysql2Client } from '../../src/backends/sql/mysql/clients/mysql2.js'
import { MysqlDatabase } from '../../src/backends/sql/mysql/database.js'
import { MysqlSchema } from '../../src/backends/sql/mysql/schema.js'
import { PgClient } from '../../src/backends/sql/postgres/clients/pg.js'
import { PostgresDatabase } from '../../src/backends/sql/postgres/database.js'
import { PostgresSchema } from '../../src/backends/sql/postgres/schema.js'
import { SqlServerBackend } from '../../src/backends/sql/server/backend.js'
import type { Database } from '../../src/backends/sql/server/database.js'
import { Retries } from '../../src/backends/sql/server/retries.js'
import { SqlVersionedStore } from '../../src/backends/sql/server/versioned-store.js'
import type { BackendFactory } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
import { commitOf, hold, lostCommits, open, OWNER, put, see, type Send } from '../support/lost-commits.js'
import { startMariaDb } from '../support/mariadb-server.js'
import { startPostgres } from '../support/postgres-server.js'

interface Kind {
  readonly database: Database
  /** From then on whoever commits takes half a second, after it has looked at what it rests on. */
  readonly slowDown: () => Promise<unknown>
  readonly stop: () => Promise<unknown>
}

const KINDS: Record<string, () => Promise<Kind>> = {
  PostgreSQL: async () => {
    const server = await startPostgres({ durable: false })
    const pool = new pg.Pool({ connectionString: server.url })
    const database = new PostgresDatabase(new PgClient(pool), new PostgresSchema(), { migrate: true })
    const slowDown = () => pool.query(`
      CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$;
      CREATE TRIGGER slow BEFORE INSERT ON holdfast_entries FOR EACH ROW EXECUTE FUNCTION slow()`)
    return { database, slowDown, stop: () => pool.end().then(() => server.stop()) }
  },
  MariaDB: async () => {
    const server = await startMariaDb({ durable: false })
    const pool = createPool({ uri: server.url })
    const database = new MysqlDatabase(new Mysql2Client(pool), new MysqlSchema(), { migrate: true })
    const slowDown = () => pool.promise().query('CREATE TRIGGER slow BEFORE INSERT ON holdfast_entries FOR EACH ROW DO SLEEP(0.5)')
    return { database, slowDown, stop: () => pool.promise().end().then(() => server.stop()) }
  },
}

const cut = () => Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })

describe.each(Object.entries(KINDS))('%s: a commit', (_, start) => {
  let database: Database
  let slowDown: () => Promise<unknown>
  let stop: () => Promise<unknown>
  beforeAll(async () => {
    ;({ database, slowDown, stop } = await start())
    await database.migrate()
  })
  afterAll(() => stop())

  /** Its connections are the test's, which ends them. */
  function databaseWith(call: Database['call']): Database {
    return {
      name: database.name,
      hasShortSteps: database.hasShortSteps,
      showsEarly: database.showsEarly,
      migrate: () => database.migrate(),
      failureOf: (error) => database.failureOf(error),
      close: async () => {},
      call,
    }
  }

  /** `first`: what becomes of the first request. */
  function storeOn(prefix: string, first?: (send: Send) => Promise<unknown>): SqlVersionedStore {
    let requests = 0
    const faulty = databaseWith((step, values) => {
      const send = () => database.call(step, values)
      return (++requests === 1 && first ? first(send) : send()) as Promise<string>
    })
    return new SqlVersionedStore(faulty, new Retries(faulty, systemClock(), { isOver: () => false, onFailure: () => {} }), { prefix, owner: OWNER })
  }

  const factory = (): BackendFactory => (scope) =>
    new SqlServerBackend(databaseWith((step, values) => database.call(step, values)), scope)

  lostCommits({ storeOn, factory, cut })

  it('is unknown if no answer comes at all, and fails if none was sent', async () => {
    const all = (error: () => Error) => {
      const dead = databaseWith(() => Promise.reject(error()))
      return new SqlVersionedStore(dead, new Retries(dead, systemClock(), { isOver: () => true, onFailure: () => {} }), { prefix: 'dead', owner: OWNER })
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
    expect((await see(storeOn('tidied'), 'k')).revision).toBeGreaterThan(revision)
  })

  // The last, since it is slow from then on.
  it('keeps what it rests on from being taken away until it is carried out', async () => {
    const backend = open(factory(), 'slow')
    const { held } = await hold(backend)
    await slowDown()
    const committing = storeOn('slow').commit(commitOf({ holds: [held], puts: [put('k', 'v')] }))
    await sleep(200)
    expect(await backend.revoke(held.claim.resource, 'now')).toBe('freed')
    expect((await see(storeOn('slow'), 'k')).value).toBe('v')
    expect((await committing).status).toBe('committed')
  })
})
