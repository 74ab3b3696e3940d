/** A private etcd on loopback, for one test file. */
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { certificateFiles, makeCertificate } from './certificate.js'
import { freePort } from './ports.js'
import { ServerProcess, startServer, type ServerOptions } from './server-process.js'
import { giveAway, pathOf, runUnprivileged } from './unprivileged.js'
import { until } from './until.js'

export interface EtcdServerOptions extends ServerOptions {
  /** `server.crt` in its folder is what to trust. */
  readonly tls?: boolean
  /** Clients need a certificate that is signed by the server's: `server.crt` itself is one. Only with `tls`. */
  readonly clientCerts?: boolean
  /** Its user is root, and has this password. */
  readonly password?: string
  /** The server makes tokens up and remembers them ('simple'), or signs them ('jwt'). */
  readonly tokens?: 'simple' | 'jwt'
  /** 300 s if not given. Simple ones are good for that long after their last use. */
  readonly tokenTtlS?: number
  /** Above this it refuses to write. */
  readonly quotaBytes?: number
  /** How many revisions it keeps. */
  readonly autoCompaction?: number
  /** Further arguments. */
  readonly args?: readonly string[]
  /** How other members are told to find it, and all that there are. Alone if not given. */
  readonly member?: EtcdMember
}

export interface EtcdMember {
  readonly name: string
  readonly peerPort: number
  /** name=url, with commas between them. */
  readonly initialCluster: string
  readonly advertise: string
}

/** Of a cluster's members. */
export const ELECTION_TIMEOUT_MS = 500

const USER = 'root'
export const CTL = { name: 'etcdctl', debian: 'etcd-client' }
export const CTL_ENV = { ...process.env, ETCDCTL_API: '3' }
const CTL_MS = 20_000

export async function startEtcd(options: EtcdServerOptions = {}): Promise<EtcdServer> {
  const server = await startServer(
    'etcd',
    options,
    async (folder) => {
      if (options.tls) await makeCertificate(folder)
      writeFileSync(jwtKeyFile(folder), randomBytes(32).toString('hex'))
      giveAway(jwtKeyFile(folder))
    },
    (port, folder) => new EtcdServer(port, folder, options),
  )
  if (options.password !== undefined) await server.enableAuth(options.password)
  return server
}

function jwtKeyFile(folder: string): string {
  return join(folder, 'jwt.key')
}

export class EtcdServer extends ServerProcess {
  protected readonly program = { name: 'etcd', debian: 'etcd-server' }
  protected readonly portTaken = /address already in use/
  readonly #options: EtcdServerOptions
  #peerPort: number | undefined
  #password: string | undefined

  constructor(port: number, folder: string, options: EtcdServerOptions) {
    super(port, folder, options)
    this.#options = options
    this.#peerPort = options.member?.peerPort
  }

  /** http://… or https://… */
  get endpoint(): string {
    return `${this.#options.tls ? 'https' : 'http'}://127.0.0.1:${this.port}`
  }

  get url(): string {
    const { tls, password } = this.#options
    const user = password === undefined ? '' : `${USER}:${encodeURIComponent(password)}@`
    const address = `${user}127.0.0.1:${this.port}`
    return tls ? `etcds://${address}?ca=${encodeURIComponent(this.certificateFile)}` : `etcd://${address}`
  }

  get certificateFile(): string {
    return certificateFiles(this.folder).certificate
  }

  get keyFile(): string {
    return certificateFiles(this.folder).key
  }

  override async start(): Promise<void> {
    // Two ports are needed: if another one got this, it is tried again with both new.
    if (!this.#options.member) this.#peerPort = await freePort()
    if (!existsSync(this.#wal)) rmSync(this.#data, { recursive: true, force: true })
    await super.start()
  }

  /** What the real etcdctl says, as root if there are users. */
  async ctl(...args: readonly string[]): Promise<string> {
    const { tls, clientCerts } = this.#options
    const { certificate, key } = certificateFiles(this.folder)
    const flags = [
      `--endpoints=${this.endpoint}`,
      ...(tls ? [`--cacert=${certificate}`] : []),
      ...(clientCerts ? [`--cert=${certificate}`, `--key=${key}`] : []),
      ...(this.#password === undefined ? [] : [`--user=${USER}:${this.#password}`]),
    ]
    const options = { env: CTL_ENV, timeout: CTL_MS }
    const { stdout } = await promisify(execFile)(pathOf(CTL), [...flags, ...args], options)
    return stdout.trimEnd()
  }

  /** All that it has at the moment, as a file. */
  async snapshot(): Promise<string> {
    const file = join(this.folder, 'snapshot')
    await this.ctl('snapshot', 'save', file)
    giveAway(file)
    return file
  }

  /** Kills it, and starts it on what there was then. */
  async restore(snapshot: string): Promise<void> {
    await this.kill()
    rmSync(this.#data, { recursive: true, force: true })
    const { name, peer, initialCluster } = this.#self
    const of = [`--name=${name}`, `--initial-advertise-peer-urls=${peer}`, `--initial-cluster=${initialCluster}`]
    await runUnprivileged(CTL, ['snapshot', 'restore', snapshot, `--data-dir=${this.#data}`, ...of], this.folder, CTL_ENV)
    await this.start()
  }

  async enableAuth(password: string): Promise<void> {
    await this.ctl('user', 'add', `${USER}:${password}`)
    await this.ctl('user', 'grant-role', USER, 'root').catch(() => {})
    await this.ctl('auth', 'enable')
    this.#password = password
    await until('root to be let in', async () => (await this.ctl('user', 'list')).includes(USER))
  }

  protected arguments(): string[] {
    const { tls, clientCerts, tokens, tokenTtlS = 300, quotaBytes, autoCompaction, args = [], member } = this.#options
    const { certificate, key } = certificateFiles(this.folder)
    const { name, peer, initialCluster } = this.#self
    const all = {
      name,
      'data-dir': this.#data,
      'listen-client-urls': this.endpoint,
      'advertise-client-urls': this.endpoint,
      'listen-peer-urls': peer,
      'initial-advertise-peer-urls': member?.advertise ?? peer,
      'initial-cluster': initialCluster,
      'heartbeat-interval': 50,
      'election-timeout': ELECTION_TIMEOUT_MS,
      logger: 'zap',
      ...(tls && { 'cert-file': certificate, 'key-file': key }),
      ...(clientCerts && { 'trusted-ca-file': certificate, 'client-cert-auth': 'true' }),
      ...(tokens === 'jwt'
        ? { 'auth-token': `jwt,sign-method=HS256,priv-key=${jwtKeyFile(this.folder)},ttl=${tokenTtlS}s` }
        : { 'auth-token-ttl': tokenTtlS }),
      ...(quotaBytes !== undefined && { 'quota-backend-bytes': quotaBytes }),
      ...(autoCompaction !== undefined && {
        'auto-compaction-mode': 'revision',
        'auto-compaction-retention': autoCompaction,
      }),
    }
    return [...Object.entries(all).map(([option, value]) => `--${option}=${value}`), ...args]
  }

  get #self(): { name: string; peer: string; initialCluster: string } {
    const { member } = this.#options
    const peer = `http://127.0.0.1:${this.#peerPort}`
    const name = member?.name ?? 'default'
    return { name, peer, initialCluster: member?.initialCluster ?? `${name}=${peer}` }
  }

  protected isReady(_pid: number, said: string): boolean {
    return said.includes('serving client traffic')
  }

  get #data(): string {
    return join(this.folder, 'data')
  }

  get #wal(): string {
    return join(this.#data, 'member', 'wal')
  }
}
