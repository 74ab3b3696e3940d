/** URLs, names and errors of MySQL and MariaDB, without a server. */
import { inspect } from 'node:util'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { onlyValue } from '../../src/backends/sql/mysql/client.js'
import { Mysql2Client } from '../../src/backends/sql/mysql/clients/mysql2.js'
import { isForbidden, isInterrupted, isMissing, mysqlFailure } from '../../src/backends/sql/mysql/errors.js'
import { mysqlBackend, mysqlGrants, mysqlMigration } from '../../src/backends/sql/mysql/index.js'
import { MysqlSchema } from '../../src/backends/sql/mysql/schema.js'
import { readMysqlUrl } from '../../src/backends/sql/mysql/url.js'
import { ConfigurationError, ConnectorError } from '../../src/index.js'

describe('a URL', () => {
  it.each([
    ['mysql://localhost/shop', { uri: 'mysql://localhost/shop' }],
    ['MariaDB://app:p%40ss@db:3307/shop', { uri: 'mysql://app:p%40ss@db:3307/shop' }],
    ['mysql://db/shop?ssl=true', { uri: 'mysql://db/shop', ssl: { rejectUnauthorized: true, verifyIdentity: true } }],
    ['mysql://db/shop?ssl=false', { uri: 'mysql://db/shop' }],
    ['mysql://db/shop?ssl-mode=required', { uri: 'mysql://db/shop', ssl: { rejectUnauthorized: false } }],
    ['mysql://db/shop?ssl-mode=VERIFY_CA', { uri: 'mysql://db/shop', ssl: { rejectUnauthorized: true } }],
    ['mysql://db/shop?ssl-mode=DISABLED&ssl=true', { uri: 'mysql://db/shop' }],
  ])('%s', (url, settings) => {
    expect(readMysqlUrl(url, true)).toEqual(settings)
  })

  it("keeps what is mysql2's, which goes before what we would take", () => {
    const { uri, ...rest } = readMysqlUrl('mysql://db/shop?connectionLimit=3&ssl={"ca":"x"}', true, { connectionLimit: 5, connectTimeout: 9 })
    expect([...new URL(uri).searchParams]).toEqual([['connectionLimit', '3'], ['ssl', '{"ca":"x"}']])
    expect(rest).toEqual({ connectTimeout: 9 })
  })

  it.each([
    'mysql:secret', 'mysql://', 'mysql:///shop', 'mysql://user:secret@/shop', 'mysql://user:secret@host', 'mysql://user:secret@host/',
    'mysql://user:sec%ret@host/shop', 'mysql://secret@host/shop?ssl-mode=secret', 'mysql://secret@host/shop?ssl-ca=/no/such/secret', 'redis://secret/0',
  ])('%s is refused, and not quoted', (url) => {
    const error = failure(() => readMysqlUrl(url, true))
    expect(error).toBeInstanceOf(ConfigurationError)
    expect(inspect(error).replaceAll(/at .*/g, '')).not.toContain('secret')
  })

  it('needs no database if one is named otherwise', () => {
    expect(readMysqlUrl('mysql://host', false)).toEqual({ uri: 'mysql://host' })
    expect(() => mysqlBackend('mysql://host', { database: 'shop' })).not.toThrow()
  })
})

describe('names', () => {
  it.each([{ database: 'a`b' }, { database: '' }, { tables: '' }, { tables: 'x'.repeat(41) }, { tables: 'a-b' }, { database: 1 as never }])('%o are refused', (names) => {
    expect(() => new MysqlSchema(names)).toThrow(ConfigurationError)
  })

  it('are in every statement, and nothing is left to be filled in', () => {
    const schema = new MysqlSchema({ database: 'my-app', tables: 'my' })
    for (const text of [...schema.statements, ...Object.values(schema.calls)]) {
      expect(text).not.toMatch(/\{\w+\}/)
      expect(text).toMatch(/`my-app`|'my-app'/)
    }
    expect(new MysqlSchema().statements.join()).not.toContain('`.`')
  })

  it('are part of what a migration prints, which has only the ASCII characters', () => {
    const text = mysqlMigration({ tables: 'my' })
    expect(text).toContain('CREATE TABLE IF NOT EXISTS `my_locks`')
    expect(text).toContain('CREATE PROCEDURE IF NOT EXISTS `my_3_claim`')
    expect(text).toMatch(/^[\x20-\x7e\n]*$/)
  })

  it('of users are quoted', () => {
    expect(mysqlGrants("o'hara").split('\n')[0]).toBe("GRANT EXECUTE ON PROCEDURE `holdfast_3_claim` TO 'o''hara'@'%';")
    expect(mysqlGrants('app@10.0.%', { database: 'shop' })).toContain("ON PROCEDURE `shop`.`holdfast_3_tidy_page` TO 'app'@'10.0.%';")
  })
})

describe('a client', () => {
  it('that is no pool is refused', () => {
    for (const client of [undefined, null, {}, { execute() {}, query() {} }, { getConnection() {} }]) {
      expect(() => mysqlBackend(client as never)).toThrow(ConnectorError)
    }
  })

  it('of Kysely is refused if it speaks to another database, or is a transaction', () => {
    class PostgresAdapter {}
    class MysqlAdapter {}
    const db = (adapter: object, isTransaction: boolean) =>
      ({ executeQuery() {}, getExecutor: () => ({ adapter }), connection() {}, isTransaction }) as never
    expect(() => mysqlBackend(db(new PostgresAdapter(), false))).toThrow('does not speak to MySQL')
    expect(() => mysqlBackend(db(new MysqlAdapter(), true))).toThrow('This is a transaction')
    expect(() => mysqlBackend(db(new MysqlAdapter(), false))).not.toThrow()
  })

  it('whose connection does not answer for 5 s gives it up, and does not use it again', async () => {
    vi.useFakeTimers()
    onTestFinished(() => void vi.useRealTimers())
    const connection = { execute: vi.fn(), query: vi.fn(), release: vi.fn(), destroy: vi.fn() }
    const pool = { promise() {}, execute() {}, getConnection: (done: (error: null, one: typeof connection) => void) => done(null, connection) }
    const client = new Mysql2Client(pool as never)
    for (const ask of [() => client.query('CALL x', []), () => client.script(['CREATE x'], ['SET x'])]) {
      const failed = ask().catch((error: Error) => error.message)
      await vi.advanceTimersByTimeAsync(4_900)
      expect(connection.destroy).not.toHaveBeenCalled()
      await vi.advanceTimersByTimeAsync(200)
      expect(await failed).toBe('No answer within 5000 ms')
      expect(connection.destroy).toHaveBeenCalledOnce()
      connection.destroy.mockClear()
    }
    expect(connection.release).not.toHaveBeenCalled()
  })

  it('gives its answer as rows, rows of a result, arrays or objects, text or bytes', () => {
    const bytes = Buffer.from('[1,"ä"]')
    for (const answer of [[['[1,"ä"]']], [[[bytes]], {}], [{ result: bytes }], [[{ result: '[1,"ä"]' }], {}], [{ 0: { result: bytes } }]]) {
      expect(onlyValue(answer)).toBe('[1,"ä"]')
    }
    // Of a procedure without rows, by `mysql2` and by Kysely.
    for (const none of [{ affectedRows: 1, insertId: 0 }, [{ affectedRows: 1 }, undefined], []]) expect(onlyValue(none)).toBeUndefined()
  })
})

describe('an error', () => {
  const error = (message: string, fields: object = {}) => Object.assign(new Error(message), fields)

  it.each([
    ['a deadlock', error('', { errno: 1213, sqlState: '40001' }), 'undone'],
    ['a lock wait timeout', error('', { errno: 1205 }), 'undone'],
    ['a server that only reads', error('', { errno: 1290 }), 'undone'],
    ['a transaction that only reads', error('', { errno: 1792, sqlState: '25006' }), 'undone'],
    ['a server that is told to read only', error('', { errno: 1836 }), 'undone'],
    ['too many connections', error('', { errno: 1040 }), 'undone'],
    ['nobody there', error('', { errno: -111, code: 'ECONNREFUSED' }), 'undone'],
    ['a pool that is busy', error('Queue limit reached.'), 'undone'],
    ['a lost connection', error('', { code: 'PROTOCOL_CONNECTION_LOST', fatal: true }), 'unknown'],
    ['a reset', error('', { errno: -104, code: 'ECONNRESET' }), 'unknown'],
    ['a killed connection', error('', { errno: 1927 }), 'unknown'],
    ['a killed statement', error('', { errno: 1317 }), 'unknown'],
    ['no answer', error('No answer within 5000 ms'), 'unknown'],
    ['a wrong password', error('', { errno: 1045, sqlState: '28000' }), 'final'],
    ['a syntax error', error('', { errno: 1064 }), 'final'],
    ['a closed pool', error('Pool is closed.'), 'final'],
  ] as const)('%s: %o is %s', (_, cause, kind) => {
    expect(mysqlFailure(cause).kind).toBe(kind)
  })

  it('has the statement and its values no more', () => {
    const cause = error('Deadlock found', { errno: 1213, code: 'ER_LOCK_DEADLOCK', sql: "CALL x('secret')", sqlMessage: 'secret' })
    const failed = mysqlFailure(cause)
    expect(inspect(failed)).not.toContain('secret')
    expect(failed).toMatchObject({ message: 'Deadlock found', cause: { code: 'ER_LOCK_DEADLOCK' } })
    expect(mysqlFailure(Object.assign(new AggregateError([]), { code: 'ECONNREFUSED' })).message).toBe('ECONNREFUSED')
    expect(mysqlFailure('no error')).toMatchObject({ kind: 'unknown', message: 'no error' })
  })

  it('says whether something is missing, forbidden, or was cut short', () => {
    expect([1146, 1305, 1049, 1064].map((errno) => isMissing({ errno }))).toEqual([true, true, true, false])
    expect([1044, 1142, 1370, 1045].map((errno) => isForbidden({ errno }))).toEqual([true, true, true, false])
    expect([1317, 1969, 1213].map((errno) => isInterrupted({ errno }))).toEqual([true, true, false])
  })
})

function failure(work: () => unknown): unknown {
  try {
    return work()
  } catch (error) {
    return error
  }
}
