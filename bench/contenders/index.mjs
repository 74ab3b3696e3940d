/**
 * Everybody who takes part. Adding one is a line here, and a file beside this one if it is another library.
 *
 * A file exports `open(url, settings)`, which resolves with
 *
 *   acquire(key)   resolves with a hold, rejects if it gave up
 *   release(hold)
 *   tries()        of transactions: how often they were applied, and committed
 *   hold(key)      like acquire, for a library that renews only what is held in another way
 *
 * so that no wrapper stands between the loop and the library. All get the same `ttlMs`.
 *
 *   does     what it is about, if not locks or not only: see lib/doing.mjs
 *   role     'raw': what the client alone can do · 'limit': what it can do with our scripts · 'signal': what telling another process
 *            costs, without a lock · 'local': no store at all · 'peer' · 'ours'
 *   store    where it keeps its locks, 'redis', 'sqlite', 'postgres', 'mariadb' or 'etcd': who needs no more than files is measured beside SQLite
 *   program  a program in `go/` that measures by itself, instead of a file here; and what it `needs` to be built
 *   direct   the commands that it sends besides scripts: that is how requests are told from what scripts call
 *   tuned    the same library, set up in its own favour for 'sending' many requests at once, for 'waiting' or for 'renewing'; where
 *            another matters, it would make no difference or a bad one, so there it does not take part
 *   renews   whether it keeps alive what it holds
 *   quick    false: not in a quick run, since somebody much like it is
 */

/** Of 1, 2, 5 and 10 ms the one that gives most of them the best results where 16 wait. */
const POLL_MS = 2
const PATIENT = { retryCount: -1, retryDelay: POLL_MS, retryJitter: POLL_MS - 1 }
/** The client gathers the requests of a tick. That costs a lone request some microseconds, and helps many. */
const GATHERING = { enableAutoPipelining: true }

const HOLDFAST = { role: 'ours', file: 'holdfast' }
const IOREDIS = { role: 'raw', file: 'ioredis', direct: ['set'] }
const NODE_REDIS = { role: 'raw', file: 'node-redis', direct: ['set'] }
const REDLOCK = { role: 'peer', file: 'redlock' }
const SESAMECARE = { role: 'peer', file: 'sesamecare-redlock', quick: false }
const UNIVERSAL = { role: 'peer', file: 'redlock-universal', direct: ['set', 'ping'] }
const SEMAPHORE = { role: 'peer', file: 'redis-semaphore', direct: ['set'] }
const VERROU = { role: 'peer', file: 'verrou', direct: ['set'] }

const ON_LIBSQL = { role: 'ours', store: 'sqlite', file: 'holdfast-sqlite' }
const LIBSQL = { role: 'raw', store: 'sqlite', file: 'libsql' }
const LOCKFILE = { role: 'peer', store: 'sqlite', file: 'proper-lockfile' }

const ON_POSTGRES = { role: 'ours', store: 'postgres', file: 'holdfast-postgres' }
const VERROU_PG = { role: 'peer', store: 'postgres', file: 'verrou-pg' }

/** The server counts all that it is asked, and does not tell what is what. */
const ETCD = { store: 'etcd', direct: ['message'] }
const ON_ETCD = { ...ETCD, role: 'ours', file: 'holdfast-etcd' }

const LEAN = { performance: 'lean' }
const ALL = [
  { id: 'holdfast', ...HOLDFAST, renews: true },
  { id: 'holdfast on node-redis', ...HOLDFAST, quick: false, settings: { clientName: 'node-redis' } },
  { id: 'holdfast strict', ...HOLDFAST, quick: false, ...waiting({ lock: { fairness: 'strict' }, what: 'lock' }) },

  // As rarely as redis-semaphore: what one renewal costs, apart from how often it is made.
  { id: 'holdfast every 4 s', ...HOLDFAST, renews: true, tuned: 'renewing', settings: { lock: { renewEveryMs: 4_000 } } },

  { id: 'ioredis', ...IOREDIS },
  { id: 'ioredis pipelined', ...IOREDIS, ...sending() },
  { id: 'node-redis', ...NODE_REDIS },
  { id: 'WATCH on ioredis', role: 'raw', file: 'watch-ioredis', does: ['transfer'] },
  { id: 'our scripts on ioredis', role: 'limit', file: 'scripts', renews: true },

  { id: 'redlock', ...REDLOCK, renews: true },
  { id: 'redlock pipelined', ...REDLOCK, quick: false, ...sending() },
  { id: 'redlock tuned', ...REDLOCK, ...waiting({ redlock: PATIENT }) },

  { id: 'sesamecare', ...SESAMECARE, renews: true },
  { id: 'sesamecare pipelined', ...SESAMECARE, ...sending() },
  { id: 'sesamecare tuned', ...SESAMECARE, ...waiting({ redlock: PATIENT }) },

  { id: 'redlock-universal', ...UNIVERSAL, renews: true },
  { id: 'redlock-universal pipelined', ...UNIVERSAL, quick: false, ...sending({ lock: LEAN }) },
  {
    id: 'redlock-universal tuned', ...UNIVERSAL, quick: false,
    ...waiting({ lock: { ...LEAN, retryAttempts: 1e9, retryDelay: POLL_MS } })
  },

  { id: 'redis-semaphore', ...SEMAPHORE, renews: true },
  { id: 'redis-semaphore pipelined', ...SEMAPHORE, ...sending() },
  {
    id: 'redis-semaphore tuned', ...SEMAPHORE,
    ...waiting({ mutex: { retryInterval: POLL_MS, acquireTimeout: Infinity } })
  },

  { id: 'verrou', ...VERROU },
  { id: 'verrou pipelined', ...VERROU, quick: false, ...sending() },
  { id: 'verrou tuned', ...VERROU, quick: false, ...waiting({ verrou: { retry: { delay: POLL_MS } } }) },

  { id: 'async-mutex', role: 'local', file: 'async-mutex' },

  { id: 'holdfast on libsql', ...ON_LIBSQL },
  { id: 'holdfast strict on libsql', ...ON_LIBSQL, ...waiting({ lock: { fairness: 'strict' } }) },

  { id: 'libsql', ...LIBSQL },
  // Tries again by itself, rather than SQLite for it: matters only where several write.
  { id: 'libsql trying again', ...LIBSQL, tuned: 'sending', settings: { busyTimeoutMs: 0 } },
  { id: 'our statements on libsql', role: 'limit', store: 'sqlite', file: 'statements' },

  // By default it would not wait at all.
  { id: 'proper-lockfile', ...LOCKFILE, settings: { retries: { forever: true } } },
  {
    id: 'proper-lockfile tuned', ...LOCKFILE,
    ...waiting({ retries: { forever: true, minTimeout: POLL_MS, maxTimeout: POLL_MS } })
  },

  { id: 'holdfast on pg', ...ON_POSTGRES },
  { id: 'holdfast on postgres.js', ...ON_POSTGRES, settings: { clientName: 'postgres.js' } },
  { id: 'holdfast strict on pg', ...ON_POSTGRES, ...waiting({ lock: { fairness: 'strict' }, what: 'lock' }) },

  { id: 'transaction on pg', role: 'raw', store: 'postgres', file: 'transaction-pg' },
  { id: 'transfer on pg', role: 'raw', store: 'postgres', file: 'transfer-pg', does: ['transfer'] },
  { id: 'our functions on pg', role: 'limit', store: 'postgres', file: 'functions-pg' },
  { id: 'update + NOTIFY', role: 'signal', store: 'postgres', file: 'notify' },

  { id: 'verrou on pg', ...VERROU_PG },
  { id: 'verrou tuned on pg', ...VERROU_PG, ...waiting({ verrou: { retry: { delay: POLL_MS } } }) },

  { id: 'holdfast on mysql2', role: 'ours', store: 'mariadb', file: 'holdfast-mysql' },
  { id: 'transaction on mysql2', role: 'raw', store: 'mariadb', file: 'transaction-mysql2' },
  { id: 'our procedures on mysql2', role: 'limit', store: 'mariadb', file: 'procedures-mysql2' },
  { id: 'verrou on mysql2', role: 'peer', store: 'mariadb', file: 'verrou-mysql2' },

  { id: 'holdfast on etcd', ...ON_ETCD },
  { id: 'holdfast strict on etcd', ...ON_ETCD, ...waiting({ lock: { fairness: 'strict' }, what: 'lock' }) },
  { id: 'node:http2', ...ETCD, role: 'raw', file: 'http2-etcd' },
  { id: 'clientv3 (Go)', ...ETCD, role: 'peer', program: 'etcd-mutex', needs: ['go', 'clientv3'] }
]

function sending(settings) {
  return { tuned: 'sending', settings: { client: GATHERING, ...settings } }
}

function waiting(settings) {
  return { tuned: 'waiting', settings }
}

const DEFAULTS = { store: 'redis', settings: {}, direct: [], tuned: undefined, renews: false, quick: true, needs: [], does: ['lock'] }
export const CONTENDERS = ALL.map((contender) => ({ ...DEFAULTS, ...contender }))

export function contenderOf(id) {
  const found = CONTENDERS.find((contender) => contender.id === id)
  if (!found) throw new Error(`There is no contender "${id}". There are: ${CONTENDERS.map(({ id }) => id).join(', ')}`)
  return found
}

export async function openContender(id, url, common) {
  const { file, settings } = contenderOf(id)
  const { open } = await import(`./${file}.mjs`)
  return open(url, { ...common, ...settings })
}
