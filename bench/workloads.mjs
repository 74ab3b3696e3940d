/**
 * What is measured. A workload's `params` go to its job (in `jobs/`), `primary` is the metric that ratios to the
 * `reference` are made of, `columns` what its table shows, and `chart` what its chart shows, if not the primary.
 * All are in a full run; `paces` says in which others.
 */
import { CONTENDERS } from './contenders/index.mjs'

/** How many rounds, how long each measurement takes, and how large it is. */
export const PACES = {
  full: { rounds: 3, warmUpMs: 1_000, loopMs: 2_000, convoyMs: 4_000, held: 10_000, heldWarmUpMs: 12_500, heldMs: 12_500, growTo: 100_000 },
  quick: { rounds: 2, warmUpMs: 300, loopMs: 700, convoyMs: 1_000, held: 10_000, heldWarmUpMs: 12_500, heldMs: 12_500, growTo: 10_000 },
  smoke: { rounds: 1, warmUpMs: 20, loopMs: 100, convoyMs: 100, held: 100, heldWarmUpMs: 100, heldMs: 500, growTo: 100 }
}

/** Long enough never to matter in a loop. */
const TTL_MS = 10_000
/** With renewals at a third of it, or at four fifths, there are several while we look. */
const HELD_TTL_MS = 5_000
/** No renewals while we look. */
const GROWTH_TTL_MS = 120_000
const CAP_MS = 60_000
const DRAIN_MS = 20_000
const THINK_MS = 4

const idsOf = (wanted, on = 'redis') => CONTENDERS.filter((each) => each.store === on && each.does.includes('lock') && wanted(each)).map(({ id }) => id)
const ALONE = idsOf(({ role, tuned }) => role !== 'local' && !tuned)
const isTunedFor = (purpose, tuned) => tuned === undefined || tuned === purpose
const SENDING = idsOf(({ role, tuned }) => role !== 'local' && role !== 'limit' && isTunedFor('sending', tuned))
const WAITING = idsOf(({ role, tuned }) => (role === 'ours' || role === 'peer') && isTunedFor('waiting', tuned))
const LOCAL = [...WAITING, ...idsOf(({ role }) => role === 'local')]
const RENEWING = idsOf(({ renews }) => renews)
const FILE_ALONE = idsOf(({ tuned }) => !tuned, 'sqlite')
const FILE_WRITING = idsOf(({ role, tuned }) => role !== 'peer' && isTunedFor('sending', tuned), 'sqlite')
const FILE_WAITING = idsOf(({ role, tuned }) => (role === 'ours' || role === 'peer') && isTunedFor('waiting', tuned), 'sqlite')

const GO = 'clientv3 (Go)'
const ETCD_ALONE = idsOf(({ tuned }) => !tuned, 'etcd')
const ETCD_WAITING = idsOf(({ role }) => role === 'ours' || role === 'peer', 'etcd')

/** Databases that are servers, by the name of the store. */
const SQL = {
  postgres: {
    title: 'PostgreSQL', reference: 'transaction on pg', signal: 'update + NOTIFY',
    alone: idsOf(({ role, tuned }) => role !== 'signal' && !tuned, 'postgres'),
    waiting: idsOf(({ role, tuned }) => (role === 'ours' || role === 'peer') && isTunedFor('waiting', tuned), 'postgres')
  },
  mariadb: { title: 'MariaDB', reference: 'transaction on mysql2', alone: idsOf(() => true, 'mariadb') }
}

/** What sessions are for. `bare` does with the client alone what a mutex or a session is at the least, and `transfer` a transfer. */
const SESSIONS = {
  redis: { title: 'Redis', ours: 'holdfast', bare: 'ioredis', transfer: 'WATCH on ioredis', others: [] },
  postgres: { title: 'PostgreSQL', ours: 'holdfast on pg', bare: 'transaction on pg', transfer: 'transfer on pg', others: [] },
  etcd: { title: 'etcd', ours: 'holdfast on etcd', bare: 'node:http2', others: [GO] }
}

/** Of those that another server has as well, a few are enough to see that they work. */
const SMOKE_SESSIONS = ['postgres-stm-transfer-hot', 'etcd-mutex-alone', 'etcd-session-churn', 'etcd-election-failover', 'etcd-stm-transfer-hot']

const WAITS = ['waitP50Ms', 'waitP99Ms', 'waitMaxMs']
const REQUESTS = ['requestsPerOp', 'scriptsPerOp', 'commandsPerOp']
const COSTS = ['clientCpuUsPerOp', 'serverCpuUsPerOp', 'failures']

export function workloadsAt(pace) {
  return [
    alone(pace),
    flight(pace, 64, ['quick', 'smoke']),
    flight(pace, 512),
    think(pace, 64),
    think(pace, 512),
    convoy(pace, 1),
    convoy(pace, 4, ['quick', 'smoke']),
    convoy(pace, 16),
    convoy(pace, 64),
    hotLocal(pace),
    hotKey(pace),
    held(pace),
    growKeys(pace),
    growWaiters(pace),
    sqliteAlone(pace),
    sqliteProcesses(pace),
    sqliteHandOver(pace),
    sqlAlone(pace, 'postgres'),
    sqlFlight(pace, 'postgres'),
    sqlConvoy(pace, 'postgres'),
    sqlHandOver(pace, 'postgres'),
    sqlAlone(pace, 'mariadb'),
    sqlFlight(pace, 'mariadb'),
    etcdAlone(pace),
    etcdFlight(pace),
    etcdClusterFlight(pace),
    etcdHotKey(pace),
    etcdConvoy(pace),
    ...Object.keys(SESSIONS).flatMap((store) => [
      sessionMutex(pace, store, 1),
      sessionMutex(pace, store, 64),
      sessionChurn(pace, store),
      electionFailover(pace, store),
      stmTransfer(pace, store, false),
      stmTransfer(pace, store, true)
    ])
  ].map((workload) => ({ store: 'redis', processes: 1, paces: [], ...workload }))
}

function loop({ warmUpMs, loopMs }, { workers = 1, shared = false, thinkMs = 0, what = 'lock' }) {
  return { jobName: 'loop', params: { warmUpMs, durationMs: loopMs, ttlMs: TTL_MS, workers, shared, thinkMs, what } }
}

function uncontended(pace, options) {
  const columns = ['cycleP50Ms', ...WAITS, ...REQUESTS, ...COSTS]
  return { ...loop(pace, options), contenders: SENDING, primary: 'opsPerS', reference: 'ioredis', columns }
}

function alone(pace) {
  return {
    ...uncontended(pace, {}), id: 'alone', title: 'alone', contenders: ALONE, paces: ['quick', 'smoke'],
    says: 'One worker locks and unlocks, one key after the other: the latency of two requests.'
  }
}

function flight(pace, workers, paces = []) {
  return {
    ...uncontended(pace, { workers }), id: `flight-${workers}`, title: `${workers} in flight`, paces,
    says: `${workers} workers in one process lock and unlock keys of their own, without a pause.`
  }
}

function think(pace, workers) {
  const withoutWaiting = Math.round((workers * 2) / THINK_MS).toLocaleString('en')
  return {
    ...uncontended(pace, { workers, thinkMs: THINK_MS }),
    id: `think-${workers}`, title: `${workers} in flight with think time`,
    says: `${workers} workers in one process lock and unlock keys of their own, and pause for 0 to ${THINK_MS} ms ` +
      `after each, so that they do not march in step. If locking took no time that would be ${withoutWaiting},000 ` +
      'a second, so the server is far from idle.'
  }
}

function contended(primary) {
  const columns = ['handOffsPerS', 'opsPerS', ...WAITS, 'jain', ...REQUESTS.slice(0, 2), ...COSTS, 'timerLateMs']
  return { contenders: WAITING, primary, reference: 'holdfast', columns: columns.filter((name) => name !== primary) }
}

function convoy({ warmUpMs, convoyMs }, waiters, paces = []) {
  return {
    ...contended('gapMs'), id: `convoy-4x${waiters}`, title: `convoy 4×${waiters}`, processes: 4, paces,
    jobName: 'convoy',
    params: { warmUpMs, durationMs: convoyMs, capMs: CAP_MS, ttlMs: TTL_MS, workers: waiters, workMs: 1 },
    says: `4 processes with ${waiters} waiter${waiters > 1 ? 's' : ''} each come for one key at once. Each has it ` +
      'once and works for 1 ms. The gap is the time in which nobody has the key, per hand-off.'
  }
}

function hotLocal(pace) {
  return {
    ...contended('handOffsPerS'), ...loop(pace, { workers: 64, shared: true }), contenders: LOCAL,
    id: 'hot-local', title: 'hot key, 64 waiters in one process', paces: ['quick', 'smoke'],
    says: '64 workers of one process want one key all the time, and do nothing with it. A hand-off is counted when ' +
      'another has it than before.'
  }
}

function hotKey(pace) {
  return {
    ...contended('handOffsPerS'), ...loop(pace, { workers: 4, shared: true }), processes: 4,
    id: 'hot-4x4', title: 'hot key 4×4', paces: ['quick', 'smoke'],
    says: '4 processes with 4 waiters each want one key all the time, and do nothing with it.'
  }
}

function held({ held: count, heldWarmUpMs, heldMs }) {
  const title = `${count.toLocaleString('en')} held`
  return {
    id: 'held', title, paces: ['smoke'], contenders: RENEWING, primary: 'renewalRequests', reference: 'holdfast',
    jobName: 'held', params: { count, warmUpMs: heldWarmUpMs, durationMs: heldMs, ttlMs: HELD_TTL_MS },
    columns: ['renewalCommands', 'clientCpuMs', 'serverCpuMs', 'heapPerHeldBytes'],
    says: `One process holds ${count.toLocaleString('en')} locks with a TTL of ${HELD_TTL_MS / 1000} s and does ` +
      `nothing else; measured for ${heldMs / 1000} s, after ${heldWarmUpMs / 1000} s. Each library renews at its own pace.`
  }
}

function growKeys({ growTo }) {
  const sizes = sizesTo(growTo)
  return {
    id: 'grow-keys', title: 'growth: keys', paces: ['smoke'],
    contenders: ['holdfast', 'ioredis', 'redis-semaphore', 'redlock'], primary: 'growth', reference: 'holdfast',
    jobName: 'grow-keys', params: { sizes, operations: growTo / 20, capMs: CAP_MS, ttlMs: GROWTH_TTL_MS },
    columns: [...sizes.map((size) => `costUsAt${size}`), `cpuUsAt${growTo}`, 'heapPerHeldBytes'],
    chart: `costUsAt${growTo}`,
    says: 'What a lock and its unlock cost, 64 in flight, while the same process holds so many others. The growth is ' +
      'that of the dearest against the first.'
  }
}

function growWaiters({ growTo, loopMs }) {
  const sizes = sizesTo(growTo)
  return {
    id: 'grow-waiters', title: 'growth: waiters', paces: ['smoke'],
    contenders: ['holdfast', 'async-mutex', 'redis-semaphore', 'redlock'], primary: 'drainToHot', reference: 'holdfast',
    jobName: 'grow-waiters', params: { sizes, durationMs: loopMs, drainMs: DRAIN_MS, ttlMs: GROWTH_TTL_MS },
    columns: ['hotPerS', ...sizes.map((size) => `drainPerSAt${size}`), 'heapPerWaiterBytes'],
    chart: `drainPerSAt${growTo}`,
    says: 'So many waiters of one process come for one key that is held; then it is let go of, and each has it and ' +
      'lets go at once. How many get through in a second, against the 64 of a hot key in the same process.'
  }
}

/** Where processes share the cores, each takes longer to warm up. */
function onFile({ warmUpMs, ...pace }, processes) {
  return {
    ...uncontended({ warmUpMs: warmUpMs * processes, ...pace }, {}), store: 'sqlite', processes, reference: 'libsql', paces: ['smoke'],
    columns: ['cycleP50Ms', ...WAITS, ...(processes > 1 ? ['jain'] : []), ...COSTS]
  }
}

function sqliteAlone(pace) {
  return {
    ...onFile(pace, 1), id: 'sqlite-alone', title: 'SQLite alone', contenders: FILE_ALONE,
    says: 'One worker locks and unlocks, one key after the other, and nobody else uses the file: two transactions.'
  }
}

function sqliteProcesses(pace) {
  return {
    ...onFile(pace, 8), id: 'sqlite-8', title: 'SQLite, 8 processes', contenders: FILE_WRITING,
    says: '8 processes with one worker each lock and unlock keys of their own in one file, without a pause. One can write at a time. ' +
      'Jain is about the processes: who does not wait for his turn can be fast while others get nothing.'
  }
}

function sqliteHandOver(pace) {
  return {
    ...handOver(pace, 1), id: 'sqlite-hand-over', title: 'SQLite hand-over', store: 'sqlite', paces: ['smoke'],
    contenders: FILE_WAITING, reference: 'holdfast strict on libsql'
  }
}

function handOver({ warmUpMs, convoyMs }, workMs) {
  return {
    processes: 2, primary: 'handOverP50Ms',
    jobName: 'hand-over', params: { warmUpMs, durationMs: convoyMs, ttlMs: TTL_MS, workMs },
    columns: ['handOverP99Ms', 'handOverMaxMs', 'handOffsPerS', 'jain', 'clientCpuUsPerOp', 'failures'],
    says: `2 processes want one key all the time and work for ${workMs} ms with it. A hand-over lasts from the call that lets go in the ` +
      'one to the moment when the other has it; if the one takes it again in between, from its first such call.'
  }
}

/** Clients of databases take seconds until they are compiled, and each answer waits for a disk: few come to pass in a second. */
function onSqlServer({ warmUpMs, ...pace }, store, options) {
  const { alone: contenders, reference } = SQL[store]
  return { ...uncontended({ warmUpMs: warmUpMs * 4, ...pace }, options), store, contenders, reference, columns: ['cycleP50Ms', ...WAITS, ...COSTS] }
}

function sqlAlone(pace, store) {
  return {
    ...onSqlServer(pace, store, {}), id: `${store}-alone`, title: `${SQL[store].title} alone`,
    // One server more is enough to see that it works.
    paces: store === 'postgres' ? ['smoke'] : [],
    says: 'One worker locks and unlocks, one key after the other.'
  }
}

function sqlFlight(pace, store) {
  return {
    ...onSqlServer(pace, store, { workers: 64 }), id: `${store}-64`, title: `${SQL[store].title}, 64 in flight`,
    says: '64 workers in one process lock and unlock keys of their own, without a pause. All have 10 connections.'
  }
}

function sqlConvoy(pace, store) {
  const { title, waiting } = SQL[store]
  const reference = waiting[0]
  return { ...convoy(pace, 4), id: `${store}-convoy`, title: `${title}, convoy 4×4`, store, contenders: waiting, reference }
}

/** They work for as long as some commits take: who has just asked again is in the queue by then, and that, too, is on the disk. */
function sqlHandOver(pace, store) {
  const { title, waiting, signal } = SQL[store]
  return {
    ...handOver(pace, 20), id: `${store}-hand-over`, title: `${title} hand-over`, store, paces: ['smoke'],
    contenders: [...waiting, signal], reference: signal
  }
}

/** As with other databases, each answer waits for a disk, and few come to pass until all is compiled: that takes a Node process about eight seconds. */
function onEtcd({ warmUpMs, ...pace }, options) {
  const columns = ['cycleP50Ms', ...WAITS, 'requestsPerOp', ...COSTS]
  return { ...uncontended({ warmUpMs: warmUpMs * 8, ...pace }, options), store: 'etcd', contenders: ETCD_ALONE, columns }
}

function etcdAlone(pace) {
  return {
    ...onEtcd(pace, {}), id: 'etcd-alone', title: 'etcd alone', reference: 'node:http2', paces: ['smoke'],
    says: 'One worker locks and unlocks, one key after the other: two requests, each of which the server writes to its disk.'
  }
}

function etcdFlight(pace) {
  return {
    ...onEtcd(pace, { workers: 64 }), id: 'etcd-64', title: 'etcd, 64 in flight', reference: GO,
    says: '64 workers in one process lock and unlock keys of their own, without a pause.'
  }
}

function etcdClusterFlight(pace) {
  return {
    ...etcdFlight(pace), id: 'etcd-cluster-64', title: 'etcd cluster, 64 in flight', store: 'etcd-cluster', paces: ['smoke'],
    says: 'The same on a cluster of three members, all on this machine: each of them carries out and writes what one is asked.'
  }
}

function etcdHotKey(pace) {
  return { ...hotKey(pace), id: 'etcd-hot-4x4', title: 'etcd, hot key 4×4', store: 'etcd', contenders: ETCD_WAITING, reference: GO, paces: ['smoke'] }
}

function etcdConvoy(pace) {
  return { ...convoy(pace, 16), id: 'etcd-convoy-4x16', title: 'etcd, convoy 4×16', store: 'etcd', contenders: ETCD_WAITING, reference: GO }
}

/** On Redis they have plain names, as locks have. */
function named(store, name) {
  const id = store === 'redis' ? name : `${store}-${name}`
  return { id, paces: store === 'redis' || SMOKE_SESSIONS.includes(id) ? ['smoke'] : [] }
}

function ofSessions(pace, store, { id, title, what, workers = 1, shared = false, says }) {
  const { title: on, ours, bare, others } = SESSIONS[store]
  const warmUpMs = pace.warmUpMs * (store === 'redis' ? 1 : 4)
  return {
    ...uncontended({ ...pace, warmUpMs }, { workers, shared, what }), store, says,
    ...named(store, id), title: `${on}: ${title}`,
    contenders: [ours, bare, ...others], reference: others[0] ?? bare,
    columns: ['cycleP50Ms', ...WAITS, ...COSTS]
  }
}

function sessionMutex(pace, store, workers) {
  const [id, title] = workers === 1 ? ['mutex-alone', 'mutex alone'] : [`mutex-${workers}`, `${workers} mutexes in flight`]
  return ofSessions(pace, store, {
    id, title, workers, what: 'mutex',
    says: workers === 1
      ? 'One session locks and unlocks mutexes, one after the other. The client alone locks and unlocks, as with locks.'
      : `${workers} sessions of one process lock and unlock mutexes of their own, without a pause.`
  })
}

function sessionChurn(pace, store) {
  return ofSessions(pace, store, {
    id: 'session-churn', title: 'sessions come and go', what: 'session',
    says: 'One worker opens a session and closes it, one after the other. The client alone locks and unlocks: a session is no less.'
  })
}

/** The clients alone cannot wait: what they are compared with is a lock that is handed over in the order of asking. */
function electionFailover(pace, store) {
  const { title, ours, others } = SESSIONS[store]
  const { params, ...rest } = handOver(pace, store === 'redis' ? 1 : 20)
  const strict = ours.replace('holdfast', 'holdfast strict')
  return {
    ...rest, params: { ...params, what: 'election' }, store, ...named(store, 'election-failover'),
    title: `${title}: a leader resigns`, contenders: [ours, strict, ...others], reference: others[0] ?? strict,
    says: `2 processes want to lead all the time, and lead for ${params.workMs} ms. A hand-over lasts from the call that resigns in the one to ` +
      'the moment when the other leads, and has said so. Beside it a lock, which is handed over in the order of asking.'
  }
}

function stmTransfer(pace, store, shared) {
  const { transfer, ours, others } = SESSIONS[store]
  const workload = ofSessions(pace, store, {
    id: shared ? 'stm-transfer-hot' : 'stm-transfer', title: shared ? 'transfers between two accounts, by 4' : 'transfers, alone',
    what: 'transfer', workers: shared ? 4 : 1, shared,
    says: shared
      ? '4 workers of one process transfer between the same two accounts, without a pause: whoever meets a conflict tries again.'
      : 'One worker transfers between accounts that nobody else has: a read of two keys, and a commit.'
  })
  const contenders = [ours, ...(transfer ? [transfer] : []), ...others]
  return { ...workload, contenders, reference: others[0] ?? transfer, columns: ['triesPerOp', ...(shared ? [] : ['cycleP50Ms']), ...WAITS, ...COSTS] }
}

function sizesTo(last) {
  return [100, 1_000, 10_000, 100_000].filter((size) => size <= last)
}
