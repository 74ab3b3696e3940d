/** What is PostgreSQL's own: who may do what, what it costs, who is told, and what becomes of tables that are dropped. */
import { Kysely, PostgresDialect } from 'kysely'
import { once } from 'node:events'
import { connect as connectTo, createServer, type AddressInfo } from 'node:net'
import pg from 'pg'
import postgres from 'postgres'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { postgresBackend, postgresGrants, postgresMigration, type PostgresOptions } from '../../src/backends/sql/postgres/index.js'
import { openPostgresJs } from '../../src/backends/sql/postgres/clients/open-postgres-js.js'
import { PostgresJsClient } from '../../src/backends/sql/postgres/clients/postgres-js.js'
import { connect, ConfigurationError, ConnectorError, createLocks, type LockManager } from '../../src/index.js'
import { startPgBouncer } from '../support/pgbouncer.js'
import { startPostgres, type PostgresServer } from '../support/postgres-server.js'
import { countRoundTrips } from '../support/round-trips.js'
import { startProxy, type Proxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'
import { spawnWorker } from '../support/workers.js'

let server: PostgresServer
beforeAll(async () => {
  server = await startPostgres({ durable: false })
})
afterAll(() => server.stop())

async function manager(url = server.url): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test' })
  onTestFinished(() => locks.close())
  return locks
}

function poolFor(url: string): pg.Pool {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  pool.on('error', () => {})
  onTestFinished(() => pool.end())
  return pool
}

function on(pool: pg.Pool, options?: PostgresOptions): LockManager {
  const locks = createLocks(postgresBackend(pool, options), { prefix: 'test' })
  onTestFinished(() => locks.close())
  return locks
}

function onPostgresJs(url = server.url, options: postgres.Options<{}> = {}, owner?: string): LockManager {
  const sql = postgres(url, { onnotice: () => {}, ...options })
  onTestFinished(() => sql.end())
  const locks = createLocks(postgresBackend(sql), { prefix: 'test', ...(owner !== undefined && { owner }) })
  onTestFinished(() => locks.close())
  return locks
}

/** What the server keeps of ours on a connection, and not this. */
const KEPT = `SELECT FROM pg_prepared_statements WHERE statement LIKE 'SELECT $6::text || "public"."holdfast_2_claim"%'`

function at(port: number): string {
  const url = new URL(server.url)
  url.port = String(port)
  return url.href
}

/** A user of its own, who may do nothing that is not granted. */
async function makeUser(name: string): Promise<string> {
  await server.query(`CREATE ROLE ${name} LOGIN`)
  const url = new URL(server.url)
  url.username = name
  return url.href
}

describe('what it costs', () => {
  const clients: Record<string, (url: string) => Promise<LockManager>> = {
    'a URL': manager,
    'a pool of pg': async (url) => on(poolFor(url)),
    'postgres.js': async (url) => onPostgresJs(url),
    Kysely: async (url) => {
      const db = new Kysely<object>({ dialect: new PostgresDialect({ pool: poolFor(url) }) })
      const locks = createLocks(postgresBackend(db), { prefix: 'test' })
      onTestFinished(() => locks.close())
      return locks
    },
  }

  /** Through a proxy, with all connections made, and what is kept kept. */
  async function counted(client: string) {
    const proxy = await startProxy({ to: { port: server.port } })
    onTestFinished(() => proxy.close())
    const locks = await clients[client]!(at(proxy.port))
    const warm = async () => {
      const held = await Promise.all(KEYS.map((key) => locks.lock(key)))
      await Promise.all(held.map((lock) => lock.release()))
      await (await locks.lock('warm')).release()
    }
    await warm()
    if (client !== 'Kysely') await until('it to listen', async () => (await server.query("SELECT FROM pg_stat_activity WHERE query ILIKE 'listen%'")).length > 0)
    // So that nothing of that is on its way any more.
    await sleep(100)
    await warm()
    await warm()
    const monitor = await server.monitor()
    onTestFinished(() => monitor.stop())
    const steps = async () => (await monitor.statements()).map(({ text }) => /holdfast_2_(\w+)/.exec(text)?.[1])
    return { locks, trips: countRoundTrips(proxy), steps }
  }
  const KEYS = Array.from({ length: 50 }, (_, i) => `of many ${i}`)

  it.each(Object.keys(clients))('is one round trip to acquire, and one to release, also for many in a list, with %s', async (client) => {
    const { locks, trips, steps } = await counted(client)
    const lock = await locks.lock('k')
    expect(trips.count).toBe(1)
    await lock.release()
    expect(trips.count).toBe(2)
    // So many travel in two lists, at the same time.
    const held = await Promise.all(KEYS.map((key) => locks.lock(key)))
    expect(trips.count).toBe(4)
    await Promise.all(held.map((one) => one.release()))
    expect(trips.count).toBe(6)
    expect(await steps()).toEqual(['claim', 'release', 'claim', 'claim', 'release', 'release'])
  })

  it('what is committed is in the text of no statement, which the server logs if it fails', async () => {
    const locks = onPostgresJs(server.url)
    await locks.stm((tx) => tx.get('private'))
    const value = 'canary'
    const digits = Buffer.from(value).toString('hex')
    const monitor = await server.monitor()
    onTestFinished(() => monitor.stop())
    await locks.stm((tx) => tx.put('private', value))
    const texts = (await monitor.statements()).map(({ text }) => text)
    expect(texts.filter((text) => text.includes('commit_keys'))).toHaveLength(1)
    // Within JSON it is in digits already.
    for (const form of [value, digits, Buffer.from(digits).toString('hex')]) expect(texts.join()).not.toContain(form)
  })
})

describe('what the disk is asked for', () => {
  const TIMES = 50
  let durable: PostgresServer
  beforeAll(async () => {
    // So that it is asked by those that we count, and hardly by anybody in the background.
    durable = await startPostgres({ settings: { wal_writer_delay: '10s', autovacuum: 'off', checkpoint_timeout: '1h' } })
    const locks = await connect(durable.url, { prefix: 'test' })
    await locks.close()
  })
  afterAll(() => durable.stop())

  it('a lock that is released waits for it once, and not for the release', async () => {
    expectAbout(TIMES, await syncs(lockAndRelease))
  })

  it('a lock that is granted waits for it also where commits do not by default', async () => {
    await durable.query("ALTER ROLE ALL SET synchronous_commit = 'off'")
    onTestFinished(async () => void (await durable.query('ALTER ROLE ALL RESET synchronous_commit')))
    expectAbout(TIMES, await syncs(lockAndRelease))
    // It is so for others.
    expectAbout(0, await syncs(async (_, pool) => {
      for (let i = 0; i < TIMES; i++) await pool.query('CREATE TEMP TABLE t (); DROP TABLE t')
    }))
  })

  it('a lock that is refused does not wait for it', async () => {
    const holder = await manager(durable.url)
    await holder.lock('busy', { ttlMs: 60_000 })
    expectAbout(0, await syncs(async (locks) => {
      for (let i = 0; i < TIMES; i++) expect(await locks.tryLock('busy')).toBeNull()
    }))
  })

  async function lockAndRelease(locks: LockManager): Promise<void> {
    for (let i = 0; i < TIMES; i++) await (await locks.lock('k')).release()
  }

  /** Some are those of processes in the background, and some of theirs are not told at once. */
  function expectAbout(wanted: number, seen: number): void {
    expect(seen).toBeGreaterThan(wanted - TIMES / 5)
    expect(seen).toBeLessThan(wanted + TIMES / 2)
  }

  /** How often the log was written to the disk. A process of the server says so at the latest when it ends. */
  async function syncs(work: (locks: LockManager, pool: pg.Pool) => Promise<void>): Promise<number> {
    const before = await count()
    const pool = new pg.Pool({ connectionString: durable.url, max: 1, application_name: 'counted' })
    const locks = createLocks(postgresBackend(pool), { prefix: 'test' })
    await work(locks, pool)
    await locks.close()
    await pool.end()
    await until('its connections to be gone', async () => (await durable.query("SELECT FROM pg_stat_activity WHERE application_name = 'counted'")).length === 0)
    return (await count()) - before
  }

  async function count(): Promise<number> {
    const [row] = await durable.query<{ n: string }>('SELECT wal_sync AS n FROM pg_stat_wal')
    return Number(row!.n)
  }
})

describe('tables and functions', () => {
  it('are made once, however many processes start at once', async () => {
    for (let round = 0; round < 5; round++) {
      const options = { schema: `many_${round}`, tables: 'Some_Locks' }
      const pools = Array.from({ length: 10 }, () => poolFor(server.url))
      const managers = pools.map((pool) => on(pool, options))
      const held = await Promise.all(managers.map((locks) => locks.tryLock('k')))
      expect(held.filter((lock) => lock !== null)).toHaveLength(1)
    }
  })

  it('can be made by somebody else: whoever only locks needs few rights, and no more', async () => {
    const url = await makeUser('clerk')
    const pool = poolFor(url)
    const names = { schema: 'locks_of_clerk', tables: 'l' }
    const refused = await on(pool, names).tryLock('k').catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(ConfigurationError)
    expect((refused as Error).message).toContain('postgresMigration()')

    const missing = await on(pool, { ...names, migrate: false }).tryLock('k').catch((error: unknown) => error)
    expect((missing as Error).message).toContain('postgresMigration()')

    // As where nobody may do anything that was not granted.
    await server.query('ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC')
    onTestFinished(async () => void (await server.query('ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC')))
    await server.query(postgresMigration(names))
    await server.query(postgresMigration(names))
    const forbidden = await on(pool, names).tryLock('k').catch((error: unknown) => error)
    expect((forbidden as Error).message).toContain('permission denied')

    await server.query(postgresGrants('clerk', names))
    const [a, b] = [on(pool, names), on(pool, names)]
    const lock = await a.lock('k')
    const waiting = b.lock('k')
    await lock.extend(5_000)
    await sleep(100)
    await lock.release()
    expect((await waiting).fence).toBeGreaterThan(lock.fence)
    expect(await a.forceRelease('k', { now: true })).toBe(true)
    await a.stm((tx) => tx.put('k', 'v'))
    expect(await b.stm((tx) => tx.get('k'))).toBe('v')
    for await (const _ of a.inspect()) void _
    for (const step of ["tidy(0)", "tidy_page('clerk', 0, '', '', 200)", "leave('nobody')"]) await pool.query(`SELECT locks_of_clerk.l_2_${step}`)
    for (const more of ['CREATE TABLE locks_of_clerk.mine ()', 'TRUNCATE locks_of_clerk.l_news', 'DROP TABLE locks_of_clerk.l_news', 'ALTER TABLE locks_of_clerk.l_news ADD mine int']) {
      await expect(pool.query(more), more).rejects.toThrow(/permission denied|must be owner/)
    }
  })

  it('that are dropped are made again: what was held is lost, and others go on', async () => {
    const pool = poolFor(server.url)
    const locks = on(pool, { schema: 'dropped' })
    const lock = await locks.lock('k', { ttlMs: 1_000 })
    await server.query('DROP SCHEMA dropped CASCADE')
    expect(await locks.lock('other')).toBeDefined()
    await until('the loss', async () => lock.signal.aborted)
    expect((await locks.lock('k')).fence).toBeGreaterThan(lock.fence)
  })

  it.each(['meta', 'locks', 'claims', 'clients', 'news'])('of which only %s is dropped are made again, and no fence comes twice', async (name) => {
    const [locks, other] = [on(poolFor(server.url), { schema: `half_${name}` }), on(poolFor(server.url), { schema: `half_${name}` })]
    for (let i = 0; i < 10; i++) await (await locks.lock('k')).release()
    const lock = await locks.lock('k', { ttlMs: 2_000 })
    const waiting = other.lock('k')
    await until('it to wait', async () => (await server.query(`SELECT 1 FROM half_${name}.holdfast_claims WHERE NOT held`)).length > 0)
    await server.query(`DROP TABLE half_${name}.holdfast_${name} CASCADE`)
    await Promise.all([locks, other].map((one) => one.tryLock('other')))
    void lock.release()
    expect((await waiting).fence).toBeGreaterThan(lock.fence)
  })

  it('that are emptied are as new ones: no fence comes twice', async () => {
    const locks = on(poolFor(server.url), { schema: 'emptied' })
    for (let i = 0; i < 10; i++) await (await locks.lock('k')).release()
    const last = await locks.lock('k')
    await server.query(`TRUNCATE ${['meta', 'locks', 'claims', 'clients', 'news'].map((name) => `emptied.holdfast_${name}`).join(', ')}`)
    expect((await locks.lock('k')).fence).toBeGreaterThan(last.fence)
    await on(poolFor(server.url), { schema: 'emptied' }).ready()
    await until('it to be tidied', async () => (await server.query('SELECT FROM emptied.holdfast_meta WHERE tidied_at > 0')).length === 1)
  })

  it('with a name that is none are refused', () => {
    for (const names of [{ schema: 'a"b' }, { tables: '' }, { tables: 'x'.repeat(41) }, { schema: 1 as never }]) {
      expect(() => postgresBackend(new pg.Pool(), names)).toThrow(ConfigurationError)
    }
  })

  it('idle ones are deleted, and fences go on from where they were', async () => {
    const pool = poolFor(server.url)
    const locks = on(pool, { schema: 'idle' })
    const first = await locks.lock('k')
    await first.release()
    await server.query('UPDATE idle.holdfast_locks SET updated_at = 0; UPDATE idle.holdfast_meta SET tidied_at = 0')
    await server.query("UPDATE idle.holdfast_locks SET last = last + 1000 WHERE convert_from(key, 'UTF8') = 'k'")
    const other = on(poolFor(server.url), { schema: 'idle' })
    await other.ready()
    await until('it to be tidied', async () => (await server.query('SELECT FROM idle.holdfast_locks')).length === 0)
    expect((await locks.lock('k')).fence).toBeGreaterThan(first.fence + 1000n * 1024n)
  })
})

it('whoever tidies and whoever makes a row do not wait for each other, where transactions keep their snapshot', async () => {
  const locks = on(poolFor(server.url), { schema: 'circle' })
  await (await locks.lock('b')).release()
  const [maker, tidier] = [new pg.Client(server.url), new pg.Client(server.url)]
  for (const client of [maker, tidier]) {
    await client.connect()
    onTestFinished(() => client.end())
  }
  const claim = (key: string) => maker.query("SELECT circle.holdfast_2_claim(convert_to('test', 'UTF8'), 'me', $1::json, false, false)",
    [JSON.stringify([{ key: Buffer.from(key).toString('hex'), id: key, take: 1, slots: 1, ttl: 1_000 }])])
  await maker.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
  await claim('a')
  const tidied = tidier.query("SELECT circle.holdfast_2_tidy_page('tidier', 0, '', '', 200)")
  await until('it to wait', async () => (await server.query("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%tidy_page%'")).length > 0)
  await claim('b')
  await maker.query('COMMIT')
  await tidied
})

describe('whoever waits', () => {
  it('behind 10,000 that are dead is not kept by them', async () => {
    const locks = await manager()
    await (await locks.lock('dead')).release()
    const row = "FROM holdfast_locks WHERE convert_from(key, 'UTF8') = 'dead'"
    await server.query(`INSERT INTO holdfast_claims (prefix, key, held, number, id, owner, take, ttl_ms)
      SELECT prefix, key, false, last + i, 'id' || i, 'dead' || i, 1, 1000 FROM generate_series(1, 10000) i, (SELECT * ${row}) l`)
    await server.query("UPDATE holdfast_locks SET waiting = 10000, last = last + 10000 WHERE convert_from(key, 'UTF8') = 'dead'")
    const askedAt = performance.now()
    await (await locks.lock('dead')).release()
    // With a time that grows by the square it was more than 5 s, after which the call fails.
    expect(performance.now() - askedAt).toBeLessThan(3_000)
  })

  it('is told over a connection of its own, and again after that was cut', async () => {
    const [a, b] = [await manager(), await manager()]
    const listeners = () => server.query("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    for (let round = 0; round < 3; round++) {
      const lock = await a.lock('told')
      const waiting = b.lock('told')
      await until('it to listen', async () => (await listeners()).length > 0)
      await sleep(50)
      await server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
      await lock.release()
      await (await waiting).release()
    }
  })

  describe.each(['transaction', 'session'] as const)('behind a pooler in %s mode', (poolMode) => {
    async function two(): Promise<[LockManager, LockManager]> {
      const pooler = await startPgBouncer(server, { poolMode })
      onTestFinished(() => pooler.stop())
      return [await manager(pooler.url), await manager(pooler.url)]
    }

    it('listens to nobody', async () => {
      const [a, b] = await two()
      await a.lock('pooled')
      const waiting = b.lock('pooled').catch(() => {})
      const says = (owner: string) => server.query('SELECT listens FROM holdfast_clients WHERE owner = $1', [owner])
      await until('it to wait', async () => (await says(b.owner)).length > 0)
      // Longer than it takes to find out, and two heartbeats, each of which says it.
      for (const end = performance.now() + 2_000; performance.now() < end; await sleep(50)) expect(await says(b.owner)).toEqual([{ listens: false }])
      await a.close()
      await b.close()
      await waiting
    })

    it('reads what was left for it, and does not find out by asking', async () => {
      const [a, b] = await two()
      const tookMs: number[] = []
      for (let round = 0; round < 8; round++) {
        const lock = await a.lock('pooled')
        const waiting = b.lock('pooled')
        await until('it to wait', async () => (await server.query('SELECT FROM holdfast_claims WHERE owner = $1 AND NOT held', [b.owner])).length > 0)
        const releasedAt = performance.now()
        await lock.release()
        const next = await waiting
        tookMs.push(performance.now() - releasedAt)
        await next.release()
      }
      // It asks after 500 ms. Its machine may be busy now and then.
      expect(Math.min(...tookMs)).toBeLessThan(250)
      await until('all to be read', async () => (await server.query('SELECT FROM holdfast_news WHERE owner = $1', [b.owner])).length === 0)
    })
  })

  it('is served where statements are soon cancelled, also if a row is locked for longer', async () => {
    const pool = new pg.Pool({ connectionString: server.url, max: 4, options: '-c statement_timeout=200' })
    onTestFinished(() => pool.end())
    const locks = on(pool)
    await (await locks.lock('cancelled')).release()
    const blocker = await blocked('cancelled')
    const waiting = locks.lock('cancelled')
    await sleep(600)
    await blocker.query('ROLLBACK')
    expect(await waiting).toBeDefined()
  })

  it('for a row that somebody else has locked does so for 2 s, and then nothing has happened', async () => {
    const locks = on(poolFor(server.url))
    await (await locks.lock('blocked')).release()
    const row = () => server.query("SELECT last, used FROM holdfast_locks WHERE convert_from(key, 'UTF8') = 'blocked'")
    const before = await row()
    const blocker = await blocked('blocked')
    const askedAt = performance.now()
    const error = await locks.tryLock('blocked').catch((reason: unknown) => reason)
    expect(error).toMatchObject({ code: 'BACKEND', transient: true, message: expect.stringContaining('lock timeout') })
    // It may have tried once more.
    expect(performance.now() - askedAt).toBeGreaterThan(1_900)
    expect(performance.now() - askedAt).toBeLessThan(6_000)
    await blocker.query('ROLLBACK')
    await until('what was withdrawn to be over', async () => (await server.query("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'")).length === 0)
    expect(await row()).toEqual(before)
    expect(await locks.tryLock('blocked')).not.toBeNull()
  })

  /** Whoever has the row of a key. */
  async function blocked(key: string): Promise<pg.Client> {
    const blocker = new pg.Client(server.url)
    await blocker.connect()
    onTestFinished(() => blocker.end())
    await blocker.query('BEGIN')
    await blocker.query("SELECT FROM holdfast_locks WHERE convert_from(key, 'UTF8') = $1 FOR UPDATE", [key])
    return blocker
  }

  it.each(['repeatable read', 'serializable'])('is served where transactions are %s', async (isolation) => {
    const name = isolation.replace(' ', '_')
    await server.query(`CREATE DATABASE ${name}`)
    await server.query(`ALTER DATABASE ${name} SET default_transaction_isolation = '${isolation}'`)
    const url = new URL(server.url)
    url.pathname = `/${name}`
    const workers = await Promise.all([1, 2, 3].map(() => spawnWorker({ url: url.href })))
    const convoys = workers.flatMap((worker) => ['a', 'b', 'c'].map((key) => worker.call('convoy', key, 2, 5, 0, { fairness: 'strict' })))
    await Promise.all(convoys)
    expect(workers.flatMap((worker) => worker.holds())).toHaveLength(3 * 3 * 2 * 5)
  })
})

describe('a connection', () => {
  it('with a password and over TLS is made from the URL', async () => {
    const secure = await startPostgres({ password: 'it is ön/it', ssl: true, durable: false })
    onTestFinished(() => secure.stop())
    const url = `${secure.url}?sslmode=verify-full&sslrootcert=${encodeURIComponent(`${secure.folder}/server.crt`)}`
    const locks = await manager(url)
    await (await locks.lock('k')).release()
    const plain = await connect(`${secure.url}?sslmode=disable`).catch((error: unknown) => error)
    expect(plain).toBeInstanceOf(ConnectorError)
    const wrong = secure.url.replace('it%20is', 'it%20was')
    const refused = await connect(`${wrong}?sslmode=require&sslrootcert=${encodeURIComponent(`${secure.folder}/server.crt`)}`)
      .catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(ConnectorError)
    expect(String((refused as Error).stack) + String((refused as Error).cause)).not.toContain('it%20was')
  })

  it('to nobody is an error that says so', async () => {
    const error = await connect('postgres://127.0.0.1:1/none', { connectTimeoutMs: 3_000 }).catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(ConnectorError)
    expect((error as Error).message).toContain('ECONNREFUSED')
  })

  it('in the middle of a transaction is not touched', async () => {
    const pool = new pg.Pool({ connectionString: server.url, max: 1 })
    onTestFinished(() => pool.end())
    const locks = on(pool)
    await locks.ready()
    const theirs = await pool.connect()
    await theirs.query('BEGIN')
    theirs.release()
    await expect(locks.lock('left open')).rejects.toMatchObject({ code: 'BACKEND', transient: false, message: expect.stringContaining('transaction') })
    await pool.query('ROLLBACK')
    const lock = await locks.lock('left open')
    expect(await (await manager()).tryLock('left open')).toBeNull()
    expect(await lock.release()).toBe(true)
  })

  it('to a server that only reads, as a standby, gives no lock; what is read there may be old', async () => {
    await (await manager()).stm((tx) => tx.put('there', 'v'))
    const pool = new pg.Pool({ connectionString: server.url, max: 2, options: '-c default_transaction_read_only=on' })
    onTestFinished(() => pool.end())
    const locks = on(pool)
    await expect(locks.tryLock('standby')).rejects.toMatchObject({ code: 'BACKEND', transient: true, message: expect.stringContaining('read-only') })
    expect(await locks.stm((tx) => tx.get('there'))).toBe('v')
  })

  it('keeps what it is asked again and again, until somebody discards it', async () => {
    const pool = new pg.Pool({ connectionString: server.url, max: 1 })
    onTestFinished(() => pool.end())
    const locks = on(pool)
    const kept = async () => (await pool.query(KEPT)).rowCount
    await until('nothing to be between', async () => {
      await (await locks.lock('kept')).release()
      return (await kept()) === 1
    })
    await pool.query('DISCARD ALL')
    for (let i = 0; i < 3; i++) expect(await (await locks.lock('kept')).release()).toBe(true)
    expect(await kept()).toBe(0)
  })

  it('whose statements somebody changes on their way goes on, and is not given up', async () => {
    const pool = new pg.Pool({ connectionString: server.url, max: 1 })
    onTestFinished(() => pool.end())
    let requests = 0
    pool.on('connect', (connection: pg.PoolClient) => {
      const query = connection.query.bind(connection) as (query: pg.QueryConfig, ...rest: unknown[]) => unknown
      const change = (one: pg.QueryConfig) => ({ ...one, text: `${one.text} /* request ${requests++} */` })
      connection.query = ((one: pg.QueryConfig, ...rest: unknown[]) => query(change(one), ...rest)) as never
    })
    const locks = on(pool)
    const listens = () => server.query('SELECT FROM pg_stat_activity WHERE query LIKE \'LISTEN%\'')
    const pid = async () => ((await pool.query({ text: 'SELECT pg_backend_pid() AS pid' })).rows as { pid: number }[])[0]!.pid
    const before = await pid()
    await (await locks.lock('changed')).release()
    await until('it to listen', async () => (await listens()).length > 0)
    await sleep(100)
    for (let i = 0; i < 5; i++) expect(await (await locks.lock('changed')).release()).toBe(true)
    expect(await pid()).toBe(before)
  })

  it('that listens is closed if nobody can say whether it is the server\'s', async () => {
    const pool = new pg.Pool({ connectionString: server.url, max: 1, connectionTimeoutMillis: 20, application_name: 'busy' })
    pool.on('error', () => {})
    onTestFinished(() => pool.end())
    const locks = on(pool)
    await (await locks.lock('busy')).release()
    const theirs = await pool.connect()
    const listening = () => server.query("SELECT FROM pg_stat_activity WHERE application_name = 'busy' AND query LIKE 'LISTEN%'")
    await until('it to try', async () => (await listening()).length > 0)
    await sleep(1_500)
    theirs.release()
    await sleep(2_500)
    await until('one to be left', async () => (await listening()).length === 1)
  })

  it('to a pooler is asked nothing that would have to be kept', async () => {
    const pooler = await startPgBouncer(server)
    onTestFinished(() => pooler.stop())
    const locks = on(poolFor(pooler.url))
    const other = poolFor(pooler.url)
    for (let i = 0; i < 30; i++) {
      await (await locks.lock('pooled')).release()
      await sleep(100)
      expect((await other.query("SELECT name FROM pg_prepared_statements WHERE name LIKE 'holdfast%'")).rows).toEqual([])
    }
  })

  describe('to a pooler that has one to the server', () => {
    /** It could be the answer to any claim. */
    const SLOWLY = `SELECT pg_sleep(0.3)::text || '[null,[["held","7",0,false]]]' AS result`

    async function pooled() {
      const pooler = await startPgBouncer(server, { settings: { default_pool_size: 1 } })
      const proxy = await startProxy({ to: pooler })
      onTestFinished(() => proxy.close().then(() => pooler.stop()))
      const sql = postgres(at(proxy.port), { max: 1, fetch_types: false, onnotice: () => {} })
      onTestFinished(() => sql.end({ timeout: 0 }))
      await sql.unsafe('SELECT')
      return { proxy, sql, url: pooler.url }
    }

    /** Two statements, of which the connection is lost after the first. */
    async function goAway(proxy: Proxy, first: PromiseLike<unknown>, second: PromiseLike<unknown>) {
      // They are sent when somebody waits for them, and not before.
      const [answered, lost] = [Promise.resolve(first), Promise.resolve(second).catch(() => {})]
      await answered
      proxy.reset()
      await lost
    }

    it('leaves nobody an answer that is not its own', async () => {
      const { proxy, sql, url } = await pooled()
      const client = new PostgresJsClient(sql)
      await goAway(proxy, client.query("SELECT 'a' AS result", []), client.query(SLOWLY, []))
      expect((await poolFor(url).query("SELECT 'mine' AS result")).rows).toEqual([{ result: 'mine' }])
    })

    it('of which somebody else was left an answer is believed in nothing, and ended', async () => {
      const { proxy, sql, url } = await pooled()
      const locks = on(poolFor(url))
      await (await locks.lock('stranger')).release()
      const pids = () => server.query("SELECT pid FROM pg_stat_activity WHERE query LIKE '%holdfast_2_%' AND pid <> pg_backend_pid()")
      const before = await pids()
      expect(before).toHaveLength(1)
      await goAway(proxy, sql.unsafe("SELECT 'a' AS result"), sql.unsafe(SLOWLY))
      for (let i = 0; i < 5; i++) {
        const lock = await locks.lock('stranger')
        const holders = await server.query("SELECT owner, epoch::text FROM holdfast_locks WHERE key = 'stranger' AND used > 0")
        expect(holders).toEqual([{ owner: locks.owner, epoch: String(lock.fence >> 10n) }])
        expect(await lock.release()).toBe(true)
      }
      expect(await pids()).not.toEqual(before)
    })
  })

  it('of postgres.js can have other names for columns', async () => {
    const locks = onPostgresJs(server.url, { transform: postgres.pascal })
    expect(await (await locks.lock('named')).release()).toBe(true)
  })

  it('of postgres.js that is made too late for its statement serves others', async () => {
    await using proxy = await startProxy({ to: server })
    const sql = postgres(at(proxy.port), { max: 1 })
    onTestFinished(() => sql.end())
    const client = new PostgresJsClient(sql)
    const fault = proxy.hold()
    await expect(client.query('SELECT 1::text AS result', [])).rejects.toThrow('No answer within')
    fault.heal()
    await expect(client.query('SELECT 2::text AS result', [])).resolves.toBe('2')
    expect(proxy.connections).toHaveLength(1)
  })

  describe('of a postgres.js of our own', () => {
    async function open(connectTimeoutMs = 1_000) {
      const proxy = await startProxy({ to: server })
      const client = await openPostgresJs(at(proxy.port), connectTimeoutMs, 1)
      onTestFinished(() => client.close().then(() => proxy.close()))
      return { proxy, client, ask: () => client.query('SELECT 1::text AS result', []) }
    }

    it('that is silent for ever is given up, and not the one that listens', async () => {
      const { proxy, client, ask } = await open()
      let ends = 0
      await client.listen!('news', () => {}, () => ends++)
      await ask()
      proxy.blackHole({ only: proxy.connections.at(-1)!.id })
      await expect(ask()).rejects.toThrow('No answer within')
      await expect(ask()).resolves.toBe('1')
      expect(ends).toBe(0)
    })

    it('that listens and is silent for ever is given up, and not the others', async () => {
      const { proxy, client, ask } = await open()
      await ask()
      const listen = () => client.listen!('news', () => {}, () => {})
      const first = await listen()
      const silence = proxy.blackHole({ only: ({ id }) => id > 0 })
      await first.close()
      await expect(listen()).rejects.toThrow('No answer within')
      silence.heal()
      expect((await listen()).pid).not.toBe(first.pid)
      await ask()
      // All others were to listen.
      expect(proxy.connections.filter(({ sent }) => sent.includes('SELECT'))).toHaveLength(1)
    })

    it('that takes longer than an answer, as it may, is not given up', async () => {
      const { proxy, ask } = await open(30_000)
      const silence = proxy.hold()
      await expect(ask()).rejects.toThrow('No answer within')
      silence.heal()
      await expect(ask()).resolves.toBe('1')
      expect(proxy.connections).toHaveLength(1)
    })

    it('that is silent when it is closed is not made anew', async () => {
      const { proxy, client, ask } = await open()
      await ask()
      proxy.blackHole()
      const late = expect(ask()).rejects.toThrow('No answer within')
      await sleep(4_500)
      await Promise.all([client.close(), late])
      await expect(ask()).rejects.toThrow('CONNECTION_ENDED')
      expect(proxy.connections).toHaveLength(1)
    })

    it('that is closed again and again while it is made is made when it can be', async () => {
      let isOpen = false
      const door = createServer((socket) => {
        socket.on('error', () => {})
        if (isOpen) socket.pipe(connectTo(server.port)).pipe(socket)
        else socket.once('data', () => socket.end())
      }).listen(0)
      onTestFinished(() => void door.close())
      await once(door, 'listening')
      const client = await openPostgresJs(at((door.address() as AddressInfo).port), 1_000, 1)
      onTestFinished(() => client.close())
      const ask = () => client.query('SELECT 1::text AS result', [])
      await expect(ask()).rejects.toThrow('No answer within')
      isOpen = true
      await expect(ask()).resolves.toBe('1')
    })
  })

  it.each([
    ['standard_conforming_strings', 'off'],
    ['client_encoding', 'SJIS'],
  ])('of postgres.js writes values into its statements that nothing takes for anything else, with %s %s', async (name, value) => {
    const others = await manager()
    for (const owner of [`it's`, `\\'`, `\\`, `$1 $2`, `$$`, `表'`, `ｿ\\'||'`, `é`, `'; DROP TABLE "public"."holdfast_locks"; --`]) {
      const lock = await onPostgresJs(server.url, { connection: { [name]: value } }, owner).lock('k')
      for await (const { holders } of others.inspect('k')) expect(holders.map((holder) => holder.owner?.startsWith(`${owner}#`))).toEqual([true])
      expect(await others.tryLock('k'), owner).toBeNull()
      expect(await lock.release()).toBe(true)
    }
  })

  it('that is no pool is refused, and a URL that is none', () => {
    expect(() => postgresBackend(new pg.Client() as never)).toThrow('A single connection will not do')
    expect(() => postgresBackend('postgres//secret')).toThrow(ConfigurationError)
    class PostgresAdapter {}
    const transaction = { executeQuery() {}, getExecutor: () => ({ adapter: new PostgresAdapter() }), connection() {}, isTransaction: true }
    expect(() => postgresBackend(transaction as never)).toThrow('This is a transaction')
    expect(() => postgresBackend('postgres//secret')).not.toThrow('secret')
  })
})
