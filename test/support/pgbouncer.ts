/** A private PgBouncer on loopback, in front of a private PostgreSQL. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Client } from 'pg'
import { certificateFiles } from './certificate.js'
import { KeptConnection } from './kept-connection.js'
import type { PostgresServer } from './postgres-server.js'
import { ServerProcess, startServer, type ServerOptions } from './server-process.js'
import { giveAway } from './unprivileged.js'

export interface PgBouncerOptions extends ServerOptions {
  /** When a connection to the server is free for another client: after its transaction, if not given. */
  readonly poolMode?: 'session' | 'transaction' | 'statement'
  /** Of pgbouncer.ini. */
  readonly settings?: Readonly<Record<string, string | number>>
}

export function startPgBouncer(postgres: PostgresServer, options: PgBouncerOptions = {}): Promise<PgBouncer> {
  return startServer(
    'pgbouncer',
    options,
    async () => {},
    (port, folder) => new PgBouncer(port, folder, postgres, options),
  )
}

export class PgBouncer extends ServerProcess {
  protected readonly program = { name: 'pgbouncer', debian: 'pgbouncer' }
  protected readonly portTaken = /Address already in use/
  readonly postgres: PostgresServer
  readonly #options: PgBouncerOptions
  readonly #console = new KeptConnection((onCut) => this.#connect(onCut))

  constructor(port: number, folder: string, postgres: PostgresServer, options: PgBouncerOptions) {
    super(port, folder, options)
    this.postgres = postgres
    this.#options = options
  }

  get url(): string {
    const url = new URL(this.postgres.url)
    url.port = String(this.port)
    return url.href
  }

  /** The rows of what its console says, as of `show pools`. */
  async console<Row = Record<string, unknown>>(command: string): Promise<Row[]> {
    const client = await this.#console.get()
    return (await client.query(command)).rows as Row[]
  }

  protected arguments(): string[] {
    const { config, users } = this.#files
    writeFileSync(config, this.#config())
    writeFileSync(users, `"${this.#user}" "${(this.postgres.password ?? '').replaceAll('"', '""')}"\n`)
    giveAway(config, users)
    return [config]
  }

  protected isReady(_pid: number, said: string): boolean {
    return said.includes('process up')
  }

  protected override forgetConnections(): void {
    this.#console.forget()
  }

  get #files(): { config: string; users: string } {
    return { config: join(this.folder, 'pgbouncer.ini'), users: join(this.folder, 'users.txt') }
  }

  get #user(): string {
    return new URL(this.postgres.url).username
  }

  #config(): string {
    const { poolMode = 'transaction', settings } = this.#options
    const { port, password, certificate, folder } = this.postgres
    const all = {
      listen_addr: '127.0.0.1',
      listen_port: this.port,
      unix_socket_dir: '',
      pool_mode: poolMode,
      auth_type: password === undefined ? 'trust' : 'scram-sha-256',
      auth_file: this.#files.users,
      // Other users than this one are looked up in the database.
      auth_user: this.#user,
      admin_users: this.#user,
      ...(certificate !== undefined && {
        server_tls_sslmode: 'verify-full',
        server_tls_ca_file: certificateFiles(folder).certificate,
      }),
      ...settings,
    }
    const lines = Object.entries(all).map(([name, value]) => `${name} = ${value}`)
    return ['[databases]', `* = host=127.0.0.1 port=${port}`, '[pgbouncer]', ...lines, ''].join('\n')
  }

  async #connect(onCut: () => void): Promise<Client> {
    const url = new URL(this.url)
    url.pathname = '/pgbouncer'
    const client = new Client({ connectionString: url.href, ssl: false })
    client.on('error', onCut).on('end', onCut)
    await client.connect()
    return client
  }
}
