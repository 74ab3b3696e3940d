/** A private MariaDB on loopback, for one test file. */
import { readFileSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { createConnection, type Connection } from 'mysql2/promise'
import { certificateFiles, makeCertificate } from './certificate.js'
import { KeptConnection } from './kept-connection.js'
import { ServerProcess, startServer, type ServerOptions } from './server-process.js'
import type { SqlMonitor, Statement } from './sql-monitor.js'
import { copyOf } from './template.js'
import { giveAway, runUnprivileged } from './unprivileged.js'

export interface MariaDbOptions extends ServerOptions {
  /** Of my.cnf, with its hyphens or underscores. */
  readonly settings?: Readonly<Record<string, string | number>>
  /** Of root; without one nobody is asked for any. */
  readonly password?: string
  /** Only over TLS. */
  readonly ssl?: boolean
  /** Unless false, what was committed is on disk, as it is in production. It survives a `kill` in either case. */
  readonly durable?: boolean
}

const USER = 'root'
const DATABASE = 'holdfast'
const INSTALL = { name: 'mariadb-install-db', debian: 'mariadb-server' }
/** Less to write, and to copy: 8 MiB instead of 96. */
const SMALL_LOG = '--innodb-log-file-size=8M'

export function startMariaDb(options: MariaDbOptions = {}): Promise<MariaDbServer> {
  return startServer(
    'mariadb',
    options,
    (folder) => prepare(folder, options),
    (port, folder) => new MariaDbServer(port, folder, options),
  )
}

async function prepare(folder: string, { password = '', ssl }: MariaDbOptions): Promise<void> {
  if (ssl) await makeCertificate(folder)
  await copyOf('mariadb', join(folder, 'data'), makeData)
  // Run at each start, with each statement on a line of its own.
  const quoted = `'${password.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
  const statements = [
    `CREATE DATABASE IF NOT EXISTS ${DATABASE};`,
    `ALTER USER ${USER}@'127.0.0.1' IDENTIFIED BY ${quoted};`,
  ]
  const file = initFile(folder)
  writeFileSync(file, statements.join('\n'))
  giveAway(file)
}

function initFile(folder: string): string {
  return join(folder, 'init.sql')
}

async function makeData(data: string): Promise<void> {
  const how = ['--no-defaults', '--skip-test-db', '--auth-root-authentication-method=normal', '--skip-name-resolve']
  await runUnprivileged(INSTALL, [...how, SMALL_LOG, '--innodb-undo-tablespaces=0', `--datadir=${data}`], join(data, '..'))
}

export class MariaDbServer extends ServerProcess {
  protected readonly program = { name: 'mariadbd', debian: 'mariadb-server' }
  protected readonly portTaken = /Bind on TCP\/IP port.*Address already in use/
  readonly password: string | undefined
  readonly #options: MariaDbOptions
  readonly #connection = new KeptConnection((onCut) => this.#connect(onCut))

  constructor(port: number, folder: string, options: MariaDbOptions) {
    super(port, folder, options)
    this.#options = options
    this.password = options.password
  }

  get url(): string {
    const password = this.password === undefined ? '' : `:${encodeURIComponent(this.password)}`
    return `mysql://${USER}${password}@127.0.0.1:${this.port}/${DATABASE}`
  }

  /** What to trust, in PEM; only with `ssl`. The same is in the folder, as `server.crt`. */
  get certificate(): string | undefined {
    return this.#options.ssl ? readFileSync(certificateFiles(this.folder).certificate, 'utf8') : undefined
  }

  /** The rows, if it has any. As root; all questions go over one connection, one after the other. */
  async query<Row = Record<string, unknown>>(sql: string, params?: readonly unknown[]): Promise<Row[]> {
    const connection = await this.#connection.get()
    const [rows] = await connection.query(sql, params && [...params])
    return Array.isArray(rows) ? (rows as Row[]) : []
  }

  /** Records the statements of clients from now on, until the server ends: it has to be asked for again after a restart. */
  async monitor(): Promise<SqlMonitor> {
    await this.query('truncate mysql.general_log')
    await this.query('set global general_log = on')
    return {
      statements: () => this.#statements(),
      stop: async () => void (await this.query('set global general_log = off')),
    }
  }

  protected arguments(): string[] {
    const { settings = {}, ssl = false, durable = true } = this.#options
    const { certificate, key } = certificateFiles(this.folder)
    const all = {
      datadir: join(this.folder, 'data'),
      port: this.port,
      'bind-address': '127.0.0.1',
      // Relative to the data, since a path could be too long for a socket.
      socket: 'mariadb.sock',
      'pid-file': 'mariadb.pid',
      'init-file': initFile(this.folder),
      'log-output': 'TABLE',
      'innodb-buffer-pool-size': '64M',
      'innodb-flush-log-at-trx-commit': durable ? 1 : 2,
      // What is written goes through the C library, where the faults of a machine are.
      'innodb-use-native-aio': 'OFF',
      ...(ssl && { 'ssl-cert': certificate, 'ssl-key': key, 'require-secure-transport': 'ON' }),
      ...settings,
    }
    const plain = ['--no-defaults', '--skip-log-bin', '--skip-name-resolve', SMALL_LOG]
    return [...plain, ...Object.entries(all).map(([name, value]) => `--${name}=${value}`)]
  }

  protected isReady(_pid: number, said: string): boolean {
    return said.includes('ready for connections')
  }

  protected override forgetConnections(): void {
    this.#connection.forget()
  }

  async #statements(): Promise<Statement[]> {
    const rows = await this.query<{ connection: number; kind: string; text: string }>(
      `select thread_id as connection, lower(command_type) as kind, convert(argument using utf8mb4) as text
       from mysql.general_log where thread_id <> connection_id()`,
    )
    return rows.flatMap(({ kind, ...rest }) => (isKind(kind) ? { ...rest, kind } : []))
  }

  async #connect(onCut: () => void): Promise<Connection> {
    const { certificate, password } = this
    // mysql2 tells of no end if it comes by a RST while a statement is under way: only the socket does.
    const socket = connect(this.port, '127.0.0.1').setNoDelay().once('close', onCut)
    const connection = await createConnection({
      stream: socket,
      user: USER,
      database: DATABASE,
      ...(password !== undefined && { password }),
      ...(certificate !== undefined && { ssl: { ca: certificate } }),
    })
    // Without a listener the 'error' of an idle connection would end this process.
    connection.on('error', onCut)
    return connection
  }
}

/** Of the other commands none has something executed: connect, quit, close a prepared statement. */
function isKind(command: string): command is Statement['kind'] {
  return command === 'query' || command === 'prepare' || command === 'execute'
}
