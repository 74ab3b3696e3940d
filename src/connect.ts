/** From a URL to a manager: loads the backend's driver and checks the server. */
import type { BackendFactory } from './core/backend.js'
import { ConfigurationError, ConnectorError } from './core/errors.js'
import { createLocks, type LockManager } from './lock-manager.js'
import { checkConnectOptions, checkSpan, type ManagerOptions } from './core/options.js'

export interface ConnectOptions extends ManagerOptions {
  /** How long the server may take to answer. Default: 5,000. */
  readonly connectTimeoutMs?: number
}

/** It gets the text: lists of hosts are nothing that `URL` could parse. */
type Loader = (url: string, connectTimeoutMs: number) => Promise<BackendFactory>

const redis: Loader = async (url, timeoutMs) => (await import('./backends/redis/from-url.js')).redisFromUrl(url, timeoutMs)

const postgres: Loader = async (url, timeoutMs) => (await import('./backends/sql/postgres/from-url.js')).postgresFromUrl(url, { connectTimeoutMs: timeoutMs })

const mysql: Loader = async (url, timeoutMs) => (await import('./backends/sql/mysql/from-url.js')).mysqlFromUrl(url, { connectTimeoutMs: timeoutMs })

const etcd: Loader = async (url) => (await import('./backends/etcd/index.js')).etcdBackend(url)

const LOADERS: Readonly<Record<string, Loader>> = {
  'memory:': async () => (await import('./backends/memory/index.js')).memoryBackend(),
  'sqlite:': async (url) => (await import('./backends/sql/sqlite/from-url.js')).sqliteFromUrl(url),
  'redis:': redis,
  'rediss:': redis,
  'redis+sentinel:': redis,
  'rediss+sentinel:': redis,
  'redis+cluster:': redis,
  'rediss+cluster:': redis,
  'postgres:': postgres,
  'postgresql:': postgres,
  'mysql:': mysql,
  'mariadb:': mysql,
  'etcd:': etcd,
  'etcds:': etcd,
}

/**
 * Connects to a store: a URL, or a backend made from your own client. Without a target, the environment variable
 * HOLDFAST_URL says where; without that, it is an SQLite file that all processes of this user on this machine share.
 */
export async function connect(target?: string | BackendFactory, options: ConnectOptions = {}): Promise<LockManager> {
  checkConnectOptions(options)
  const { connectTimeoutMs = 5_000, ...managerOptions } = options
  checkSpan('connectTimeoutMs', connectTimeoutMs)
  const where = target === undefined ? process.env['HOLDFAST_URL'] || embedded() : target
  const backend = typeof where === 'function' ? where : await load(where, connectTimeoutMs)
  const locks = createLocks(backend, managerOptions)
  try {
    await within(connectTimeoutMs, locks)
  } catch (error) {
    await locks.close().catch(() => {})
    throw error
  }
  return locks
}

const EMBEDDED = 'sqlite:'
let isAnnounced = false

/** Where nobody says where. In production that is more likely forgotten than meant, and every machine would have locks of its own. */
function embedded(): string {
  if (process.env['NODE_ENV'] === 'production') {
    throw new ConfigurationError(
      'connect() was not told where, and in production it does not guess. Pass a URL, such as connect(\'redis://localhost:6379\'), or set '
        + "HOLDFAST_URL. If a file on this machine is meant, write connect('sqlite:').",
    )
  }
  if (!isAnnounced) process.stderr.write(`holdfast: connect() was not told where, so locks are for this machine only, as with connect('${EMBEDDED}').\n`)
  isAnnounced = true
  return EMBEDDED
}

async function load(target: string, connectTimeoutMs: number): Promise<BackendFactory> {
  if (target === '') {
    throw new ConfigurationError(
      "connect() was given an empty text. Pass a URL, such as connect('redis://localhost:6379') or connect('sqlite:'), or set HOLDFAST_URL.",
    )
  }
  if (typeof target !== 'string') throw new ConfigurationError('connect() takes a URL or a backend, such as redisBackend(client).')
  // The URL itself may contain a password, so messages name only its scheme.
  const scheme = /^[a-z][a-z0-9+.-]*:/i.exec(target)?.[0].toLowerCase() ?? ''
  const there = Object.keys(LOADERS).join(' ')
  if (/^[\w.-]+:\d+$/.test(target)) throw new ConfigurationError(`connect() takes a URL. Did you mean redis://${target}?`)
  const loader = LOADERS[scheme]
  if (loader) return loader(target, connectTimeoutMs)
  if (URL.canParse(target)) throw new ConfigurationError(`connect() does not know the scheme ${scheme} There are: ${there}`)
  const hint = 'Special characters in a password have to be percent-encoded.'
  throw new ConfigurationError(`connect() takes a URL, such as redis://localhost:6379; this is none. ${hint}`)
}

async function within(timeoutMs: number, locks: LockManager): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const { trouble } = locks
      const why = trouble ? ` ${trouble.message}` : ''
      reject(new ConnectorError(`The store did not answer within ${timeoutMs} ms (connectTimeoutMs).${why}`, { cause: trouble }))
    }, timeoutMs)
  })
  try {
    await Promise.race([locks.ready(), timeout])
  } finally {
    clearTimeout(timer)
  }
}
