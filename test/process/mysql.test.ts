/** What is MySQL's and MariaDB's own: what it costs, who may do what, whose connection it is, what a key is, and rows that others lock. */
import { Kysely, MysqlDialect } from 'kysely'
import { createPool } from 'mysql2'
import { createConnection, createPool as createPromisePool, type Pool, type PoolOptions } from 'mysql2/promise'
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { onlyValue } from '../../src/backends/sql/mysql/client.js'
import { mysqlBackend, mysqlGrants, mysqlMigration, type MysqlOptions } from '../../src/backends/sql/mysql/index.js'
import { connect, ConfigurationError, ConnectorError, createLocks, type LockManager } from '../../src/index.js'
import { startMariaDb, type MariaDbServer } from '../support/mariadb-server.js'
import { countRoundTrips } from '../support/round-trips.js'
import { startProxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'

let server: MariaDbServer
beforeAll(async () => {
  server = await startMariaDb({ durable: false })
})
afterAll(() => server.stop())

async function manager(url = server.url): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test' })
  onTestFinished(() => locks.close())
  return locks
}

function poolFor(options: PoolOptions = {}): Pool {
  const pool = createPromisePool({ uri: server.url, connectionLimit: 4, ...options })
  onTestFinished(() => pool.end())
  return pool
}

function on(client: Parameters<typeof mysqlBackend>[0], options?: MysqlOptions): LockManager {
  const locks = createLocks(mysqlBackend(client, options), { prefix: 'test' })
  onTestFinished(() => locks.close())
  return locks
}

async function status(name: string): Promise<number> {
  const [row] = await server.query<{ Value: string }>(`SHOW GLOBAL STATUS LIKE '${name}'`)
  return Number(row!.Value)
}

/** InnoDB gives what it gave before if it is asked again within 0.1 s. */
async function transactions(where = 'TRUE'): Promise<{ id: number }[]> {
  await sleep(150)
  return server.query(`SELECT trx_mysql_thread_id AS id FROM information_schema.innodb_trx WHERE ${where}`)
}

const failureOf = (work: Promise<unknown>) => work.catch((error: unknown) => error)

describe('what it costs', () => {
  const clients: Record<string, (uri: string) => Promise<LockManager>> = {
    'a URL': (uri) => manager(`${uri}?connectionLimit=1`),
    'a pool of mysql2': async (uri) => on(poolFor({ uri, connectionLimit: 1 })),
    Kysely: async (uri) => {
      const db = new Kysely<unknown>({ dialect: new MysqlDialect({ pool: createPool({ uri, connectionLimit: 1 }) }) })
      onTestFinished(() => db.destroy())
      return on(db)
    },
  }

  it.each(Object.keys(clients))('is one round trip to acquire, and one to release, also for many in a list, with %s', async (client) => {
    const proxy = await startProxy({ to: { port: server.port } })
    onTestFinished(() => proxy.close())
    const url = new URL(server.url)
    url.port = String(proxy.port)
    const locks = await clients[client]!(url.href)
    const keys = Array.from({ length: 50 }, (_, i) => `of many ${i}`)
    const many = async () => {
      const held = await Promise.all(keys.map((key) => locks.lock(key)))
      await Promise.all(held.map((lock) => lock.release()))
    }
    // Statements are prepared once for each connection.
    await (await locks.lock('warm')).release()
    await many()
    const monitor = await server.monitor()
    onTestFinished(() => monitor.stop())
    const trips = countRoundTrips(proxy)
    for (const key of ['k', 'k', 'another']) await (await locks.lock(key)).release()
    expect(trips.count).toBe(6)
    // So many travel in two lists.
    await many()
    expect(trips.count).toBe(10)
    // What a procedure does is logged as well.
    const asked = (await monitor.statements()).filter(({ kind, text }) => kind !== 'query' || text.startsWith('CALL')).map(({ text }) => /holdfast_3_(\w+)/.exec(text)?.[1])
    const single = ['claim_lock', 'release_lock']
    expect(asked).toEqual([...single, ...single, ...single, 'claim', 'claim', 'release', 'release'])
  })

  it('a lock that is refused writes nothing', async () => {
    const locks = await manager()
    await locks.lock('busy')
    await sleep(200)
    const before = await status('Innodb_os_log_written')
    for (let i = 0; i < 20; i++) expect(await locks.tryLock('busy')).toBeNull()
    expect((await status('Innodb_os_log_written')) - before).toBeLessThan(4_096)
  })
})

describe('tables and procedures', () => {
  it('are made once, however many processes start at once', async () => {
    for (let round = 0; round < 10; round++) {
      const pools = Array.from({ length: 20 }, () => createPromisePool({ uri: server.url, connectionLimit: 1 }))
      const managers = pools.map((pool) => createLocks(mysqlBackend(pool, { database: `many_${round}`, tables: 'Some_Locks' }), { prefix: 'test' }))
      const held = await Promise.all(managers.map((locks) => locks.tryLock('k')))
      expect(held.filter((lock) => lock !== null)).toHaveLength(1)
      await Promise.all(managers.map((locks) => locks.close()))
      await Promise.all(pools.map((pool) => pool.end()))
    }
  })

  it('can be made by somebody else: whoever only locks needs to execute the procedures, and no more', async () => {
    await server.query('CREATE DATABASE locks_of_clerk')
    await server.query("CREATE USER 'clerk'@'127.0.0.1' IDENTIFIED BY 'not much'")
    const pool = poolFor({ uri: `mysql://clerk:not%20much@127.0.0.1:${server.port}` })
    const names = { database: 'locks_of_clerk', tables: 'l' }
    for (const options of [names, { ...names, migrate: false }]) {
      const refused = await failureOf(on(pool, options).tryLock('k'))
      expect(refused).toBeInstanceOf(ConfigurationError)
      expect((refused as Error).message).toContain('mysqlMigration()')
    }
    await runScript(mysqlMigration(names))
    await runScript(mysqlMigration(names))
    expect(await failureOf(on(pool, names).tryLock('k'))).toBeInstanceOf(ConfigurationError)

    await runScript(mysqlGrants('clerk@127.0.0.1', names))
    const [a, b] = [on(pool, names), on(pool, { ...names, migrate: false })]
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
    await expect(pool.query('SELECT * FROM locks_of_clerk.l_locks')).rejects.toThrow('denied')
    // It may be in that database, too, and then need not name it.
    const within = on(poolFor({ uri: `mysql://clerk:not%20much@127.0.0.1:${server.port}/locks_of_clerk` }), { tables: 'l' })
    expect(await within.tryLock('k')).not.toBeNull()
  })

  it('that are dropped are made again: what was held is lost, and others go on', async () => {
    const locks = on(poolFor(), { database: 'dropped' })
    const lock = await locks.lock('k', { ttlMs: 1_000 })
    await server.query('DROP DATABASE dropped')
    expect(await locks.lock('other')).toBeDefined()
    await until('the loss', async () => lock.signal.aborted)
    expect((await locks.lock('k')).fence).toBeGreaterThan(lock.fence)
  })

  it.each(['meta', 'locks', 'claims', 'clients', 'news'])('of which only %s is dropped are made again, and no fence comes twice', async (name) => {
    const [locks, other] = [on(poolFor(), { database: `half_${name}` }), on(poolFor(), { database: `half_${name}` })]
    for (let i = 0; i < 10; i++) await (await locks.lock('k')).release()
    const lock = await locks.lock('k', { ttlMs: 2_000 })
    const waiting = other.lock('k')
    await until('it to wait', async () => (await server.query(`SELECT 1 FROM half_${name}.holdfast_claims WHERE NOT held`)).length > 0)
    await server.query(`DROP TABLE half_${name}.holdfast_${name}`)
    await Promise.all([locks, other].map((one) => one.tryLock('other')))
    void lock.release()
    expect((await waiting).fence).toBeGreaterThan(lock.fence)
  })

  it('that are emptied are as new ones: no fence comes twice', async () => {
    const locks = on(poolFor(), { database: 'emptied' })
    for (let i = 0; i < 10; i++) await (await locks.lock('k')).release()
    const last = await locks.lock('k')
    for (const name of ['meta', 'locks', 'claims', 'clients', 'news']) await server.query(`TRUNCATE emptied.holdfast_${name}`)
    expect((await locks.lock('k')).fence).toBeGreaterThan(last.fence)
    const several = await Promise.all(['x', 'y', 'z'].map((key) => locks.lock(key)))
    expect(several.every(({ fence }) => fence > last.fence)).toBe(true)
    await on(poolFor(), { database: 'emptied' }).ready()
    await until('it to be tidied', async () => (await server.query('SELECT 1 FROM emptied.holdfast_meta WHERE tidied_at > 0')).length === 1)
  })

  it('idle ones are deleted, and fences go on from where they were', async () => {
    const locks = on(poolFor(), { database: 'idle' })
    const held = await locks.lock('in use', { ttlMs: 600_000 })
    const first = await locks.lock('k')
    await first.release()
    await Promise.all(Array.from({ length: 450 }, async (_, i) => (await locks.lock(`idle ${i}`)).release()))
    await server.query('UPDATE idle.holdfast_locks SET updated_at = 0')
    await server.query('UPDATE idle.holdfast_meta SET tidied_at = 0')
    await server.query("UPDATE idle.holdfast_locks SET last = last + 1000 WHERE `key` = 'k'")
    await on(poolFor(), { database: 'idle' }).ready()
    await until('it to be tidied', async () => (await server.query('SELECT 1 FROM idle.holdfast_locks')).length === 1)
    expect((await locks.lock('k')).fence).toBeGreaterThan(first.fence + 1000n * 1024n)
    expect((await locks.lock('new')).fence).toBeGreaterThan(first.fence + 1000n * 1024n)
    expect(await held.release()).toBe(true)
  })

  it('whose numbers are ahead of the clock go on from there, in a list with others as well', async () => {
    const locks = on(poolFor(), { database: 'ahead' })
    const keys = ['a', 'b', 'c']
    const round = async () => {
      const held = await Promise.all(keys.map((key) => locks.lock(key)))
      for (const { fence, key } of held) expect(fence).toBeGreaterThan(fences.get(key) ?? 0n)
      for (const { fence, key } of held) fences.set(key, fence)
      await Promise.all(held.map((lock) => lock.release()))
    }
    const fences = new Map<string, bigint>()
    await round()
    await round()
    const hour = 3_600_000_000n
    await server.query(`UPDATE ahead.holdfast_locks SET last = last + ${hour} WHERE \`key\` = 'b'`)
    const before = fences.get('b')!
    await round()
    await round()
    expect(fences.get('b')).toBeGreaterThan(before + hour * 1024n)
    expect(fences.get('a')).toBeLessThan(before + hour * 1024n)
  })

  /** By the client of MariaDB, as somebody would who has it in a file. */
  async function runScript(text: string): Promise<void> {
    const how = ['--no-defaults', '-h127.0.0.1', `-P${server.port}`, '-uroot', 'holdfast']
    const running = promisify(execFile)('mariadb', how)
    running.child.stdin?.end(text)
    await running
  }
})

describe('a connection', () => {
  const SETTINGS = `SELECT @@autocommit, @@tx_isolation, @@sql_mode, @@innodb_lock_wait_timeout, @@group_concat_max_len, @@time_zone, @@character_set_client,
    @@in_transaction, @@completion_type, @@foreign_key_checks, DATABASE()`

  it.each([
    ['as most are', ''],
    ['without autocommit', 'SET autocommit = 0, tx_isolation = "SERIALIZABLE"'],
    ['that begins the next transaction with each commit', 'SET completion_type = 1'],
    ['that ends with each commit', 'SET completion_type = 2'],
    ['with settings of its own', `SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,ORACLE', time_zone = '-11:30', group_concat_max_len = 1024,
      innodb_lock_wait_timeout = 33, tx_isolation = 'READ-UNCOMMITTED', character_set_client = latin1, div_precision_increment = 0`],
  ])('%s is left as it was', async (_, setup) => {
    const pool = poolFor({ connectionLimit: 1 })
    if (setup !== '') await pool.query(setup)
    const db = new Kysely<unknown>({ dialect: new MysqlDialect({ pool: pool.pool as never }) })
    const [before] = await pool.query(SETTINGS)
    // The tables are made by this very connection, too.
    const name = `left_${randomBytes(4).toString('hex')}`
    const options = { database: name }
    for (const client of [pool, db]) {
      const [a, b] = [on(client, options), on(client, options)]
      const lock = await a.lock('k', { ttlMs: 5_000, type: "it's", metadata: { a: 'b"\\' } })
      expect(await b.tryLock('k')).toBeNull()
      const waiting = b.lock('k')
      const several = await Promise.all(['x', 'y', 'z', 'x'].map((key) => a.tryLock(key)))
      expect(several.filter((one) => one !== null)).toHaveLength(3)
      for await (const { holders } of a.inspect('k')) expect(holders[0]).toMatchObject({ type: "it's", metadata: { a: 'b"\\' } })
      await lock.extend(4_000)
      await lock.release()
      // Others see it, so it is committed.
      const [row] = await server.query<{ owner: Buffer }>(`SELECT owner FROM ${name}.holdfast_locks WHERE \`key\` = 'k'`)
      expect(row!.owner.toString()).toBe(b.owner)
      await (await waiting).release()
      await Promise.all(several.map(async (one) => one?.release()))
      expect(await a.forceRelease('k')).toBe(false)
      const [after] = await pool.query(SETTINGS)
      expect(after).toEqual(before)
      await a.close()
      await b.close()
    }
    await server.query(`DROP DATABASE ${name}`)
  })

  /** In hexadecimal digits: of one who has locked it. */
  async function prefixOf(key: string): Promise<string> {
    const [row] = await server.query(`SELECT HEX(prefix) AS prefix FROM holdfast_locks WHERE \`key\` = '${key}' LIMIT 1`)
    return row!['prefix'] as string
  }

  it('in the middle of a transaction is not touched', async () => {
    const locks = await manager()
    await (await locks.lock('free')).release()
    const before = await server.query('SELECT * FROM holdfast_locks')
    const prefix = await prefixOf('free')
    const connection = await createConnection(server.url)
    onTestFinished(() => connection.end())
    await connection.query('CREATE TABLE IF NOT EXISTS theirs (id INT PRIMARY KEY)')
    await connection.query('BEGIN')
    await connection.query('INSERT INTO theirs VALUES (1)')
    const calls = ["release('p', 'me', '[]')", "release_lock('p', 'me', 'k', 'id')", `claim_lock(x'${prefix}', 'me', 'free', 'id', 1000, TRUE)`]
    for (const call of calls) {
      const error = await failureOf(connection.query(`CALL holdfast_3_${call}`))
      expect((error as Error).message).toContain('transaction')
    }
    await connection.query('COMMIT')
    expect(await server.query('SELECT * FROM theirs')).toEqual([{ id: 1 }])
    expect(await server.query('SELECT * FROM holdfast_locks')).toEqual(before)
  })

  it('that does not commit by itself is answered when it has been committed, and what it counted before does not matter', async () => {
    const locks = await manager()
    const lock = await locks.lock('held')
    const prefix = await prefixOf('held')
    const connection = await createConnection(server.url)
    onTestFinished(() => connection.end())
    await connection.query('CREATE TABLE IF NOT EXISTS numbers (id INT)')
    await connection.query('SET autocommit = 0')
    const claim = async () => {
      await connection.query('INSERT INTO numbers VALUES (1)')
      await connection.query('COMMIT')
      const [results] = await connection.query(`CALL holdfast_3_claim_lock(x'${prefix}', 'me', 'held', 'id', 60000, FALSE)`)
      const [, [[status]]] = JSON.parse(onlyValue(results)!) as [number, [[string]]]
      return status
    }
    expect(await claim()).toBe('refused')
    await lock.release()
    expect(await claim()).toBe('held')
    const [row] = await server.query('SELECT owner FROM holdfast_locks WHERE `key` = \'held\' AND used = 1')
    expect(String(row!['owner'])).toBe('me')
  })

  it('whose statement is killed leaves no transaction behind, and the claim is asked for again', async () => {
    const kysely = new Kysely<unknown>({ dialect: new MysqlDialect({ pool: createPool({ uri: server.url }) }) })
    onTestFinished(() => kysely.destroy())
    for (const client of [poolFor(), kysely]) {
      const locks = on(client)
      await (await locks.lock('killed')).release()
      const blocker = await blocked('killed')
      const asked = locks.tryLock('killed')
      await until('it to wait', async () => (await waiting()).length === 1)
      for (const { id } of await waiting()) await server.query(`KILL QUERY ${id}`)
      await blocker.rollback()
      const lock = await asked
      expect(lock).not.toBeNull()
      await lock!.release()
      await until('no transaction to be open', async () => (await transactions()).length === 0)
    }
  })

  it('waits for no row longer than 2 s, and then nothing has happened', async () => {
    const locks = on(poolFor())
    await (await locks.lock('blocked')).release()
    const [before] = await server.query("SELECT last FROM holdfast_locks WHERE `key` = 'blocked'")
    const blocker = await blocked('blocked')
    const askedAt = performance.now()
    const error = await failureOf(locks.tryLock('blocked'))
    expect(error).toMatchObject({ code: 'BACKEND', transient: true, message: expect.stringContaining('Lock wait timeout') })
    expect(performance.now() - askedAt).toBeLessThan(6_000)
    await blocker.rollback()
    await until('what was withdrawn to be over', async () => (await transactions()).length === 0)
    expect(await server.query("SELECT last FROM holdfast_locks WHERE `key` = 'blocked' AND used = 0")).toEqual([before])
  })

  it('with a password and over TLS is made from the URL', async () => {
    const secure = await startMariaDb({ password: 'it is ön/it', ssl: true, durable: false })
    onTestFinished(() => secure.stop())
    const ca = encodeURIComponent(join(secure.folder, 'server.crt'))
    for (const how of [`ssl=true&ssl-ca=${ca}`, `ssl-ca=${ca}`, 'ssl-mode=REQUIRED', `ssl=${encodeURIComponent(JSON.stringify({ ca: secure.certificate }))}`]) {
      await (await (await manager(`${secure.url}?${how}`)).lock('k')).release()
    }
    expect(await failureOf(connect(secure.url))).toBeInstanceOf(ConnectorError)
    expect(await failureOf(connect(`${secure.url}?ssl=true`))).toBeInstanceOf(ConnectorError)
    const refused = await failureOf(connect(`${secure.url.replace('it%20is', 'it%20was')}?ssl-mode=REQUIRED`))
    expect(refused).toBeInstanceOf(ConnectorError)
    expect(`${String((refused as Error).stack)}${String((refused as Error).cause)}`).not.toMatch(/it(%20| )was/)
  })

  it('to nobody, or to no database, is an error that says so', async () => {
    const error = await failureOf(connect('mysql://127.0.0.1:1/none', { connectTimeoutMs: 3_000 }))
    expect(error).toBeInstanceOf(ConnectorError)
    expect((error as Error).message).toContain('ECONNREFUSED')
    const nowhere = createPromisePool({ host: '127.0.0.1', port: server.port, user: 'root' })
    onTestFinished(() => nowhere.end())
    const lost = await failureOf(on(nowhere).tryLock('k'))
    expect(lost).toBeInstanceOf(ConfigurationError)
    expect((lost as Error).message).toContain('none was named')
    expect(() => mysqlBackend(createConnection(server.url) as never)).toThrow('A single connection will not do')
  })

  async function blocked(key: string) {
    const connection = await createConnection(server.url)
    onTestFinished(() => connection.end())
    await connection.beginTransaction()
    await connection.query('SELECT 1 FROM holdfast_locks WHERE `key` = ? FOR UPDATE', [key])
    return connection
  }

  const waiting = () => transactions("trx_state = 'LOCK WAIT'")
})

describe('keys', () => {
  const keys = ['a', 'A', 'a ', 'a\t', 'a\0', '\0', "a'", 'a"', 'a\\', 'a`', "';--", 'ä', 'a\u0308', 'ß', 'ss', '%', '_', '漢', '🔒', 'K', '\u212a', ' ', 'x'.repeat(512)]

  it.each([
    ['mysql2', (): Parameters<typeof mysqlBackend>[0] => poolFor({ charset: 'latin1_swedish_ci' })],
    ['Kysely', () => {
      const db = new Kysely<unknown>({ dialect: new MysqlDialect({ pool: createPool({ uri: server.url, connectionLimit: 1 }) }) })
      onTestFinished(() => db.destroy())
      return db
    }],
  ])('that differ at all are different, by way of %s', async (name, client) => {
    const [a, b] = [on(client(), { tables: `keys_${name}` }), on(client(), { tables: `keys_${name}` })]
    const held = await Promise.all(keys.map((key) => a.tryLock(key)))
    expect(held.every((lock) => lock !== null)).toBe(true)
    expect(await Promise.all(keys.map((key) => b.tryLock(key)))).toEqual(keys.map(() => null))
    const seen: string[] = []
    for await (const { key } of b.inspect()) seen.push(key)
    expect(seen.sort()).toEqual([...keys].sort())
    expect(await Promise.all(held.map((lock) => lock!.release()))).toEqual(keys.map(() => true))
  })

  it('belong to an owner of any name', async () => {
    const pool = poolFor({ charset: 'latin1_swedish_ci' })
    const owner = `ö'"\\ 漢🔒`
    const locks = createLocks(mysqlBackend(pool), { prefix: "pre'fix 漢", owner })
    onTestFinished(() => locks.close())
    const lock = await locks.lock('owned')
    const other = createLocks(mysqlBackend(pool), { prefix: "pre'fix 漢" })
    onTestFinished(() => other.close())
    const refused = await failureOf(other.lock('owned', { waitMs: 0 }))
    expect((refused as Error).message).toContain(owner)
    await using adopted = await other.adopt(lock.transfer())
    expect(adopted.fence).toBeGreaterThan(lock.fence)
  })
})

it('20 that wait in one process look for news together, and less often the longer none come', async () => {
  const [holder, locks] = [await manager(), await manager()]
  const keys = Array.from({ length: 20 }, (_, i) => `looked for ${i}`)
  const held = await Promise.all(keys.map((key) => holder.lock(key)))
  const waiting = Promise.all(keys.map((key) => locks.lock(key)))
  await until('all to wait', async () => (await server.query("SELECT 1 FROM holdfast_claims WHERE NOT held AND `key` LIKE 'looked for%'")).length === 20)
  const monitor = await server.monitor()
  onTestFinished(() => monitor.stop())
  await sleep(2_000)
  const looks = (await monitor.statements()).filter(({ kind, text }) => kind !== 'query' && text.includes('read_news'))
  // 50 ms at first, and half as much again each time, makes 7. Each for itself, or with every heartbeat anew, would be 16 and more.
  expect(looks.length).toBeGreaterThan(2)
  expect(looks.length).toBeLessThan(12)
  await Promise.all(held.map((lock) => lock.release()))
  await Promise.all((await waiting).map((lock) => lock.release()))
})

it('whoever waits behind 10,000 that are dead is not kept by them', async () => {
  const locks = await manager()
  await (await locks.lock('dead')).release()
  await server.query(`INSERT INTO holdfast_claims (prefix, \`key\`, held, number, id, owner, take, ttl_ms)
    SELECT prefix, \`key\`, FALSE, last + seq, CONCAT('id', seq), CONCAT('dead', seq), 1, 1000 FROM holdfast_locks, seq_1_to_10000 WHERE \`key\` = 'dead'`)
  await server.query("UPDATE holdfast_locks SET waiting = 10000, last = last + 10000 WHERE `key` = 'dead'")
  const askedAt = performance.now()
  await (await locks.lock('dead')).release()
  // With a time that grows by the square it was more than 5 s, after which the call fails.
  expect(performance.now() - askedAt).toBeLessThan(4_000)
})

it('a server that only reads, as a replica, gives no lock and no values, also by procedures of somebody who may write there', async () => {
  await server.query("CREATE USER 'reader'@'127.0.0.1'")
  await (await manager()).ready()
  for (const grant of mysqlGrants('reader@127.0.0.1').trim().split('\n')) await server.query(grant)
  const locks = on(poolFor({ uri: `mysql://reader@127.0.0.1:${server.port}/holdfast` }), { migrate: false })
  await (await locks.lock('read')).release()
  await server.query('SET GLOBAL read_only = ON')
  onTestFinished(async () => void (await server.query('SET GLOBAL read_only = OFF')))
  const failures = await Promise.all([locks.tryLock('read'), locks.stm((tx) => tx.get('k'))].map(failureOf))
  for (const failure of failures) expect(failure).toMatchObject({ code: 'BACKEND', transient: true, message: expect.stringContaining('read-only') })
  await server.query('SET GLOBAL read_only = OFF')
  expect(await locks.tryLock('read')).not.toBeNull()
})

it('sessions in other time zones agree about the time', async () => {
  const zoned = async (zone: string) => {
    const pool = poolFor({ connectionLimit: 1 })
    await pool.query('SET time_zone = ?', [zone])
    return on(pool)
  }
  const [east, west] = [await zoned('+13:00'), await zoned('-11:00')]
  for (const [holder, other] of [[east, west], [west, east]] as const) {
    const lock = await holder.lock('zone', { ttlMs: 500, autoRenew: false })
    expect(await other.tryLock('zone')).toBeNull()
    const askedAt = performance.now()
    const next = await other.lock('zone', { ttlMs: 30_000 })
    expect(performance.now() - askedAt).toBeLessThan(2_500)
    expect(next.fence).toBeGreaterThan(lock.fence)
    await next.release()
  }
})
