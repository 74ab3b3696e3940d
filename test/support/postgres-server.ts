/** A private PostgreSQL on loopback, for one test file. */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { Client, type ClientConfig } from 'pg'
import { certificateFiles, makeCertificate } from './certificate.js'
import { KeptConnection } from './kept-connection.js'
import { ServerProcess, startServer, type ServerOptions } from './server-process.js'
import type { SqlMonitor, Statement } from './sql-monitor.js'
import { copyOf } from './template.js'
import { giveAway, runUnprivileged } from './unprivileged.js'
import { until } from './until.js'

export interface PostgresOptions extends ServerOptions {
  /** Of postgresql.conf. */
  readonly settings?: Readonly<Record<string, string | number | boolean>>
  /** Of the superuser; without one nobody is asked for any. */
  readonly password?: string
  /** Only over TLS. */
  readonly ssl?: boolean
  /** Unless false, what was committed is on disk, as it is in production. It survives a `kill` in either case. */
  readonly durable?: boolean
}

const USER = 'postgres'
const DATABASE = 'postgres'
/** By which a monitor knows what the test itself asks. */
const OWN_NAME = 'holdfast-test'
const INITDB = { name: 'initdb', debian: 'postgresql' }

export function startPostgres(options: PostgresOptions = {}): Promise<PostgresServer> {
  return startServer(
    'postgres',
    options,
    (folder) => prepare(folder, options),
    (port, folder) => new PostgresServer(port, folder, options),
  )
}

async function prepare(folder: string, { password, ssl }: PostgresOptions): Promise<void> {
  const data = join(folder, 'data')
  if (ssl) await makeCertificate(folder)
  if (password === undefined) await copyOf('postgres', data, (template) => makeData(template))
  else await makeData(data, password)
  const connection = ssl ? 'hostssl' : 'host'
  const method = password === undefined ? 'trust' : 'scram-sha-256'
  writeFileSync(join(data, 'pg_hba.conf'), `${connection} all all 127.0.0.1/32 ${method}\n`)
}

async function makeData(data: string, password?: string): Promise<void> {
  const parent = join(data, '..')
  const passwordFile = join(parent, 'password')
  const how = ['--no-sync', '--no-instructions', '--locale=C', '--encoding=UTF8', '--auth=trust']
  if (password !== undefined) {
    writeFileSync(passwordFile, password)
    giveAway(passwordFile)
    how.push(`--pwfile=${passwordFile}`)
  }
  await runUnprivileged(INITDB, [...how, '--username', USER, '--pgdata', data], parent)
  rmSync(passwordFile, { force: true })
}

export class PostgresServer extends ServerProcess {
  protected readonly program = { name: 'postgres', debian: 'postgresql' }
  protected readonly portTaken = /could not bind .*Address already in use/
  // SIGTERM would wait until all clients are gone.
  protected override readonly endSignal = 'SIGINT'
  // Unlike SIGKILL it leaves no shared memory behind.
  protected override readonly stopSignal = 'SIGQUIT'
  readonly password: string | undefined
  readonly #options: PostgresOptions
  readonly #connection = new KeptConnection((onCut) => this.#connect(onCut))
  #isMonitored = false

  constructor(port: number, folder: string, options: PostgresOptions) {
    super(port, folder, options)
    this.#options = options
    this.password = options.password
  }

  get url(): string {
    const password = this.password === undefined ? '' : `:${encodeURIComponent(this.password)}`
    return `postgres://${USER}${password}@127.0.0.1:${this.port}/${DATABASE}`
  }

  /** What to trust, in PEM; only with `ssl`. The same is in the folder, as `server.crt`. */
  get certificate(): string | undefined {
    return this.#options.ssl ? readFileSync(certificateFiles(this.folder).certificate, 'utf8') : undefined
  }

  /** The rows. As the superuser; all questions go over one connection, one after the other. */
  async query<Row = Record<string, unknown>>(sql: string, params?: readonly unknown[]): Promise<Row[]> {
    const client = await this.#connection.get()
    return (await client.query(sql, params && [...params])).rows as Row[]
  }

  /**
   * Records the statements of clients from now on, one for each message that has something executed: several in one text are
   * one, and a transaction of a client that begins and commits it by itself is three or more.
   */
  async monitor(): Promise<SqlMonitor> {
    if (this.#isMonitored) throw new Error('There is a monitor already')
    this.#isMonitored = true
    await this.#logStatements('all')
    const logLength = this.log.length
    return {
      statements: async () => statementsIn(this.log.slice(logLength)),
      stop: async () => {
        this.#isMonitored = false
        await this.#logStatements('none')
      },
    }
  }

  protected arguments(): string[] {
    const { settings = {}, ssl = false, durable = true } = this.#options
    const { certificate, key } = certificateFiles(this.folder)
    const all = {
      port: this.port,
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      // In the folder, with which it goes; in /dev/shm it would stay after a SIGKILL.
      dynamic_shared_memory_type: 'mmap',
      log_line_prefix: '%m [%p] %q%a ',
      ...(ssl && { ssl: 'on', ssl_cert_file: certificate, ssl_key_file: key }),
      ...(!durable && { fsync: 'off', full_page_writes: 'off' }),
      ...settings,
    }
    return ['-D', this.#data, ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
  }

  protected isReady(pid: number): boolean {
    const { pid: writer, status } = this.#pidFile()
    return writer === pid && status === 'ready'
  }

  protected override forgetConnections(): void {
    this.#connection.forget()
  }

  protected override async cleanUp(): Promise<void> {
    const { sharedMemory } = this.#pidFile()
    if (sharedMemory === undefined) return
    // After a SIGKILL nobody else removes it. It is not there any more if another server was started on the same data.
    await promisify(execFile)('ipcrm', ['-m', sharedMemory]).catch(() => {})
  }

  get #data(): string {
    return join(this.folder, 'data')
  }

  /** postmaster.pid, which is there from the start of a server to its orderly end. */
  #pidFile(): { pid?: number; sharedMemory?: string; status?: string } {
    const file = join(this.#data, 'postmaster.pid')
    if (!existsSync(file)) return {}
    const lines = readFileSync(file, 'utf8').split('\n').map((line) => line.trim())
    const sharedMemory = lines[6]?.split(/\s+/)[1]
    return { pid: Number(lines[0]), ...(sharedMemory && { sharedMemory }), ...(lines[7] && { status: lines[7] }) }
  }

  async #connect(onCut = () => {}): Promise<Client> {
    const { certificate } = this
    const config: ClientConfig = {
      host: '127.0.0.1',
      port: this.port,
      user: USER,
      database: DATABASE,
      application_name: OWN_NAME,
      ssl: certificate === undefined ? false : { ca: certificate },
      ...(this.password !== undefined && { password: this.password }),
    }
    const client = new Client(config)
    // Without a listener the 'error' of an idle connection would end this process.
    client.on('error', onCut).on('end', onCut)
    await client.connect()
    return client
  }

  async #logStatements(which: 'all' | 'none'): Promise<void> {
    await this.query(`alter system set log_statement = '${which}'`)
    await this.query('select pg_reload_conf()')
    // The server reads its settings and tells its processes of it before it starts another one.
    await until(`log_statement = ${which}`, async () => {
      const client = await this.#connect()
      const { rows } = await client.query<{ log_statement: string }>('show log_statement')
      await client.end()
      return rows[0]?.log_statement === which
    })
  }
}

/** `2024-05-01 12:00:00.123 UTC [4711] name-of-the-client LOG:  execute <unnamed>: select 1` */
const RECORD = /^\d{4}-\d\d-\d\d \S+ \S+ \[(\d+)\] (.*?) ?LOG: {2}(statement|execute [^:]*): (.*)$/s

function statementsIn(log: string): Statement[] {
  // All lines of a record but the first begin with a tab.
  const records = log.split(/\n(?!\t)/).map((record) => record.replaceAll('\n\t', '\n'))
  return records.flatMap((record) => {
    const [, pid, client, kind, text] = RECORD.exec(record) ?? []
    if (pid === undefined || text === undefined || client === OWN_NAME) return []
    return { connection: Number(pid), kind: kind === 'statement' ? 'query' : 'execute', text }
  })
}
