/** The servers of the SQL backends' tests do what those rely on. */
import { existsSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Kysely, MysqlDialect, PostgresDialect, sql, type Dialect } from 'kysely'
import { createPool } from 'mysql2'
import { createConnection } from 'mysql2/promise'
import { Client, Pool } from 'pg'
import postgresJs from 'postgres'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { childrenOf } from '../../scripts/lib/children.mjs'
import { canFakeMachines, Machine } from '../fault/machine.js'
import { startMariaDb, type MariaDbOptions } from '../support/mariadb-server.js'
import { startPgBouncer } from '../support/pgbouncer.js'
import { startPostgres, type PostgresOptions, type PostgresServer } from '../support/postgres-server.js'
import { isAlive } from '../support/processes.js'
import { countRoundTrips } from '../support/round-trips.js'
import { startProxy } from '../support/tcp-proxy.js'
import { within } from '../support/within.js'

type Options = PostgresOptions & MariaDbOptions

/** A client as an application would have it. */
interface Asker {
  /** In one go, as text. */
  ask(sql: string): Promise<unknown>
  /** As a prepared statement. */
  prepared(sql: string): Promise<unknown>
  end(): Promise<void>
}

interface TlsOptions {
  readonly ca?: string | undefined
}

async function connectPg(url: string, { ca }: TlsOptions = {}): Promise<Asker> {
  const client = new Client({ connectionString: url, ssl: ca === undefined ? false : { ca } })
  // Of servers that end under it.
  client.on('error', () => {})
  await client.connect()
  return {
    ask: async (sql) => (await client.query<object>(sql)).rows,
    prepared: async (sql) => (await client.query<object>({ name: sql, text: sql })).rows,
    end: () => client.end(),
  }
}

async function connectMysql(url: string, { ca }: TlsOptions = {}): Promise<Asker> {
  const connection = await createConnection({ uri: url, ...(ca !== undefined && { ssl: { ca } }) })
  connection.on('error', () => {})
  return {
    ask: async (sql) => (await connection.query(sql))[0],
    prepared: async (sql) => (await connection.execute(sql))[0],
    end: () => connection.end(),
  }
}

const KINDS = [
  {
    name: 'PostgreSQL',
    scheme: 'postgres',
    start: (options?: Options) => startPostgres(options),
    connect: connectPg,
    askTime: 'select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
    isEncrypted: `select ssl as "encrypted" from pg_stat_ssl where pid = pg_backend_pid()`,
    encrypted: true as unknown,
    setting: { settings: { work_mem: '7MB' }, ask: `select current_setting('work_mem') as value`, value: '7MB' as unknown },
    // Named statements are parsed, bound and executed in one go.
    preparing: ['execute'],
    dialect: (url: string): Dialect => new PostgresDialect({ pool: new Pool({ connectionString: url }) }),
  },
  {
    name: 'MariaDB',
    scheme: 'mysql',
    start: (options?: Options) => startMariaDb(options),
    connect: connectMysql,
    askTime: 'select unix_timestamp(now(6)) * 1000e0 as ms',
    isEncrypted: `select variable_value <> '' as encrypted from information_schema.session_status where variable_name = 'ssl_cipher'`,
    encrypted: 1 as unknown,
    setting: { settings: { max_connections: 77 }, ask: 'select @@max_connections as value', value: 77 as unknown },
    preparing: ['prepare', 'execute'],
    dialect: (url: string): Dialect => new MysqlDialect({ pool: createPool({ uri: url }) }),
  },
]

describe.each(KINDS)('$name', ({ start, connect, scheme, ...kind }) => {
  let server: Awaited<ReturnType<typeof start>>

  beforeAll(async () => {
    server = await start()
  })
  afterAll(async () => {
    await server.stop()
    expect(existsSync(server.folder)).toBe(false)
  })

  it('answers, and knows its url', async () => {
    expect(server.url).toMatch(new RegExp(`^${scheme}://\\w+@127\\.0\\.0\\.1:${server.port}/\\w+$`))
    const client = await connect(server.url)
    expect(await client.ask('select 1 as one')).toEqual([{ one: 1 }])
    await client.end()
    expect(await server.query<{ one: number }>('select 1 as one')).toEqual([{ one: 1 }])
    expect(server.isUp).toBe(true)
    expect(process.kill(server.pid, 0)).toBe(true)
    expect(server.log).not.toBe('')
  })

  it('keeps what was committed through kill -9 and an orderly restart', async () => {
    await server.query('create table kept (id int primary key)')
    for (const [id, how] of [[1, 'kill'], [2, 'stop'], [3, 'kill']] as const) {
      await server.query(`insert into kept values (${id})`)
      const before = server.pid
      await server.restart(how)
      expect(server.pid).not.toBe(before)
      expect(await server.query('select count(*) as n from kept')).toEqual([{ n: expect.toSatisfy((n) => Number(n) === id) }])
    }
  })

  it('is down after kill, with all its processes', async () => {
    const client = await connect(server.url)
    const family = [server.pid, ...childrenOf(server.pid)]
    if (scheme === 'postgres') expect(family.length).toBeGreaterThan(3)
    await server.kill()
    expect(server.isUp).toBe(false)
    expect(family.filter(isAlive)).toEqual([])
    await expect(client.ask('select 1')).rejects.toThrow()
    await expect(server.query('select 1')).rejects.toThrow(/ECONNREFUSED/)
    await server.start()
    expect(await server.query('select 1 as one')).toEqual([{ one: 1 }])
  })

  it('survives that its own connection is cut while it is idle', async () => {
    await server.query('select 1')
    await server.restart('stop')
    await server.query('select 1')
    // Behind the helper's back.
    const cut = scheme === 'postgres' ? 'select pg_terminate_backend(pg_backend_pid())' : 'kill connection_id()'
    await server.query(cut).catch(() => {})
    await expect.poll(() => server.query('select 1 as one')).toEqual([{ one: 1 }])
  })

  it('answers nothing while it is paused, and everything afterwards', async () => {
    const client = await connect(server.url)
    await server.pause()
    expect(server.isUp).toBe(false)
    let answered = 0
    const old = client.ask('select 1').then(() => answered++)
    const fresh = connect(server.url).then((another) => (answered++, another.end()))
    await sleep(300)
    expect(answered).toBe(0)
    await server.resume()
    await within(10_000, 'answers', Promise.all([old, fresh]))
    expect(server.isUp).toBe(true)
    await client.end()
  })

  it('can be killed, restarted and stopped while it is paused', async () => {
    await server.pause()
    await server.restart('kill')
    await server.pause()
    await server.restart('stop')
    expect(await server.query('select 1 as one')).toEqual([{ one: 1 }])
    const another = await start({ durable: false })
    await another.pause()
    await another.stop()
    expect(existsSync(another.folder)).toBe(false)
  })

  it('records statements, and which client sent them', async () => {
    const [a, b] = [await connect(server.url), await connect(server.url)]
    await a.ask(`select 'before'`)
    const monitor = await server.monitor()
    await a.ask(`select 1,\n\t'two: lines'`)
    await b.prepared('select 2')
    await server.query('select 3')
    await b.prepared('select 2')
    const seen = await monitor.statements()
    expect(seen.map(({ kind, text }) => [kind, text])).toEqual([
      ['query', `select 1,\n\t'two: lines'`],
      ...kind.preparing.map((how) => [how, 'select 2']),
      ['execute', 'select 2'],
    ])
    expect(new Set(seen.map(({ connection }) => connection)).size).toBe(2)
    await monitor.stop()
    const again = await server.monitor()
    expect(await again.statements()).toEqual([])
    for (let i = 0; i < 100; i++) await a.ask(`select ${i}`)
    expect(await again.statements()).toHaveLength(100)
    await again.stop()
    await a.ask(`select 'after'`)
    expect(await again.statements()).toHaveLength(100)
    await Promise.all([a.end(), b.end()])
  })

  it('can be reached through a proxy that counts round trips', async () => {
    await using proxy = await startProxy({ to: server })
    const url = new URL(server.url)
    url.port = String(proxy.port)
    const client = await connect(url.href)
    const roundTrips = countRoundTrips(proxy)
    await client.ask('select 1')
    expect(roundTrips.count).toBe(1)
    await client.prepared('select 2')
    expect(roundTrips.count).toBe(1 + kind.preparing.length)
    await client.prepared('select 2')
    expect(roundTrips.count).toBe(2 + kind.preparing.length)
    await client.end()
  })

  it('can be reached with Kysely', async () => {
    const db = new Kysely({ dialect: kind.dialect(server.url) })
    expect((await sql`select 1 as one`.execute(db)).rows).toEqual([{ one: 1 }])
    await db.destroy()
  })

  it('asks for a password only if it has one, and is durable only if wanted', async () => {
    await using locked = await start({ password: `p:a@ss/'"\\`, durable: false })
    const client = await connect(locked.url)
    await client.end()
    expect(await locked.query('select 1 as one')).toEqual([{ one: 1 }])
    const wrong = new URL(locked.url)
    wrong.password = 'wrong'
    await expect(connect(wrong.href)).rejects.toThrow(/password|denied/)
    const flush = scheme === 'postgres' ? `select current_setting('fsync') as v` : 'select @@innodb_flush_log_at_trx_commit as v'
    expect(await server.query(flush)).toEqual([{ v: scheme === 'postgres' ? 'on' : 1 }])
    expect(await locked.query(flush)).toEqual([{ v: scheme === 'postgres' ? 'off' : 2 }])
    await locked.query('create table kept (id int primary key)')
    await locked.restart('kill')
    expect(await locked.query('select * from kept')).toEqual([])
  })

  it('takes settings, and nothing but TLS if told so', async () => {
    const { setting, isEncrypted, encrypted } = kind
    await using safe = await start({ ssl: true, settings: setting.settings, durable: false })
    expect(await safe.query(setting.ask)).toEqual([{ value: setting.value }])
    expect(await safe.query(isEncrypted)).toEqual([{ encrypted }])
    const client = await connect(safe.url, { ca: safe.certificate })
    expect(await client.ask(isEncrypted)).toEqual([{ encrypted }])
    await client.end()
    await expect(connect(safe.url)).rejects.toThrow(/no encryption|denied/)
  })

  it.runIf(canFakeMachines)('can be on a machine whose clock is wrong', async () => {
    const machine = new Machine()
    await using deceived = await start({ env: machine.env, durable: false })
    const aheadMs = async () => Number((await deceived.query<{ ms: number }>(kind.askTime))[0]?.ms) - Date.now()
    expect(Math.abs(await aheadMs())).toBeLessThan(5_000)
    machine.stepClock(3_600_000)
    expect(await aheadMs()).toBeGreaterThan(3_500_000)
  })

  it('says what is wrong if it does not start', async () => {
    await expect(start({ settings: { 'no-such-setting': 1 } })).rejects.toThrow(/did not start[^]*no.such.setting/)
    await expect(start({ port: server.port })).rejects.toThrow(`Port ${server.port} is taken`)
  })
})

describe('PgBouncer', () => {
  let postgres: PostgresServer

  beforeAll(async () => {
    postgres = await startPostgres({ durable: false })
  })
  afterAll(() => postgres.stop())

  it('lends a connection for one transaction', async () => {
    await using bouncer = await startPgBouncer(postgres, { settings: { default_pool_size: 1 } })
    const [a, b] = [await connectPg(bouncer.url), await connectPg(bouncer.url)]
    const pid = 'select pg_backend_pid() as pid'
    expect(await a.ask(pid)).toEqual(await b.ask(pid))
    const pools = await bouncer.console<{ database: string; pool_mode: string }>('show pools')
    expect(pools).toContainEqual(expect.objectContaining({ database: 'postgres', pool_mode: 'transaction' }))
    // It has only one to lend.
    await a.ask('begin')
    let answered = false
    const waiting = b.ask('select 1').then(() => (answered = true))
    await sleep(200)
    expect(answered).toBe(false)
    await a.ask('commit')
    await waiting
    await Promise.all([a.end(), b.end()])
  })

  it('can be reached with Postgres.js, which must not prepare statements behind it', async () => {
    await using bouncer = await startPgBouncer(postgres)
    for (const [url, prepare] of [[postgres.url, true], [bouncer.url, false]] as const) {
      const client = postgresJs(url, { prepare, max: 1 })
      expect([...(await client`select ${1}::int as one`)]).toEqual([{ one: 1 }])
      await client.end()
    }
  })

  it('can be killed, restarted and paused', async () => {
    await using bouncer = await startPgBouncer(postgres)
    await bouncer.kill()
    expect(bouncer.isUp).toBe(false)
    await expect(connectPg(bouncer.url)).rejects.toThrow(/ECONNREFUSED/)
    await bouncer.start()
    await bouncer.restart('stop')
    const client = await connectPg(bouncer.url)
    await bouncer.pause()
    let answered = false
    const asked = client.ask('select 1').then(() => (answered = true))
    await sleep(200)
    expect(answered).toBe(false)
    await bouncer.resume()
    await asked
    await client.end()
    await expect(startPgBouncer(postgres, { port: bouncer.port })).rejects.toThrow('is taken')
  })

  it('lets users in that the database knows, with their passwords, and speaks TLS with the server', async () => {
    await using locked = await startPostgres({ password: `s3"cret'`, ssl: true, durable: false })
    await using bouncer = await startPgBouncer(locked)
    await locked.query(`create role guest login password 'welcome'`)
    const url = new URL(bouncer.url)
    url.username = 'guest'
    url.password = 'welcome'
    for (const one of [bouncer.url, url.href]) {
      const client = await connectPg(one)
      expect(await client.ask('select ssl from pg_stat_ssl where pid = pg_backend_pid()')).toEqual([{ ssl: true }])
      await client.end()
    }
    url.password = 'wrong'
    await expect(connectPg(url.href)).rejects.toThrow()
    expect(await bouncer.console('show version')).toHaveLength(1)
  })
})
