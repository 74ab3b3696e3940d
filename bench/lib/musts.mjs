/** What holdfast has promised to be, checked against what was measured in this run. */
import { contenderOf } from '../contenders/index.mjs'
import { bytes, count, short, time } from './metrics.mjs'
import { ratioBetween } from './summary.mjs'
import { table } from './table.mjs'

const RAW = 'ioredis'
const OURS = 'holdfast'
/** On files. */
const RAW_FILE = 'libsql'
const OURS_FILE = 'holdfast on libsql'
const OURS_STRICT = 'holdfast strict on libsql'
/** On database servers: `reference` is the transaction of the design document, `signal` the least that tells another process. */
const SQL = {
  postgres: { ours: 'holdfast on pg', reference: 'transaction on pg', verrou: 'verrou on pg', signal: 'update + NOTIFY' },
  mariadb: { ours: 'holdfast on mysql2', reference: 'transaction on mysql2', verrou: 'verrou on mysql2' }
}
/** On etcd: the client alone, and Go's. */
const ETCD = { ours: 'holdfast on etcd', raw: 'node:http2', go: 'clientv3 (Go)' }
/** Who has to be there. */
const OURS_ON = { redis: OURS, sqlite: OURS_FILE, etcd: ETCD.ours, 'etcd-cluster': ETCD.ours, ...Object.fromEntries(Object.entries(SQL).map(([store, { ours }]) => [store, ours])) }

/** Each tells what was measured, and whether it is enough. */
const MUSTS = [
  must('alone', `at least 0.85 of ${RAW}, or at most 35 µs more`, (alone) => {
    // By the median of single cycles: what else the machine does hits operations per second, but hardly this.
    const share = alone.ratio(RAW, OURS, 'cycleP50Ms')
    const moreUs = 1000 * (alone.of(OURS, 'cycleP50Ms') - alone.of(RAW, 'cycleP50Ms'))
    return { met: share >= 0.85 || moreUs <= 35, measured: `${short(share)}, ${short(moreUs)} µs more` }
  }),
  ...['flight-64', 'flight-512'].flatMap((id) => [atLeastRaw(id, 1.4), aheadOfPeers(id)]),
  atLeastRaw('think-512', 1.1),
  atMost('convoy-4x4', "gap at most 1/10 of redlock's", 'gapMs', 'redlock', 1 / 10),
  atMost('convoy-4x4', "gap at most 1/3 of redis-semaphore's", 'gapMs', 'redis-semaphore', 1 / 3),
  must('convoy-4x4', 'at most 3 scripts per acquisition', (convoy) => {
    const scripts = convoy.of(OURS, 'scriptsPerOp')
    return { met: scripts <= 3, measured: short(scripts) }
  }),
  must('hot-local', 'at least as many hand-overs as async-mutex', (hot) => {
    const share = hot.ratio(OURS, 'async-mutex')
    return { met: share >= 1, measured: `${short(share)} (${count(hot.of(OURS))}/s)` }
  }),
  fair('hot-local'),
  must('hot-local', `timers still run: at most ${time(50)} late`, (hot) => {
    const lateMs = hot.of(OURS, 'timerLateMs')
    return { met: lateMs <= 50, measured: time(lateMs) }
  }),
  aheadOfPeers('hot-4x4'),
  fair('hot-4x4'),
  atMost('held', "at most 1/20 of redis-semaphore's renewal commands", 'renewalRequests', 'redis-semaphore', 1 / 20),
  atMost('held', 'at most 1/5 of its client CPU', 'clientCpuMs', 'redis-semaphore', 1 / 5),
  must('grow-keys', 'cost per acquisition grows by at most 30 %', (keys) => {
    const growth = keys.of(OURS, 'growth')
    return { met: growth <= 1.3, measured: `× ${short(growth)} from ${keys.sizes}` }
  }),
  must('grow-keys', `at most ${bytes(1536)} of heap per held lock`, (keys) => {
    const heap = keys.of(OURS, 'heapPerHeldBytes')
    return { met: heap <= 1536, measured: bytes(heap) }
  }),
  must('grow-waiters', 'they drain at the rate of a hot key (at least 0.7 of it)', (waiters) => {
    const share = waiters.of(OURS, 'drainToHot') ?? 0
    return { met: share >= 0.7, measured: waiters.troubleOf(OURS) ?? `× ${short(share)}, ${waiters.sizes}` }
  }),
  must('grow-waiters', `at most ${bytes(1024)} of heap per waiter`, (waiters) => {
    const heap = waiters.of(OURS, 'heapPerWaiterBytes')
    return { met: heap <= 1024, measured: bytes(heap ?? NaN) }
  }),
  must('sqlite-alone', `at least 0.75 of ${RAW_FILE}`, (alone) => {
    // As above. Of operations per second it is said in the table.
    const share = alone.ratio(RAW_FILE, OURS_FILE, 'cycleP50Ms')
    return { met: share >= 0.75, measured: short(share) }
  }),
  must('sqlite-8', `at least 10,000/s, or what the file gives to ${RAW_FILE}`, (writers) => {
    const [best] = writers.raw.sort((a, b) => writers.of(b) - writers.of(a))
    const [perS, share] = [writers.of(OURS_FILE), writers.ratio(OURS_FILE, best)]
    return { met: perS >= 10_000 || share >= 1, measured: `${count(perS)}/s, ${short(share)} × ${best}` }
  }),
  handOver('p50', 'handOverP50Ms', 1),
  handOver('p99', 'handOverP99Ms', 10),
  ...Object.keys(SQL).flatMap((store) => {
    const { ours, reference, verrou } = SQL[store]
    return [
      atLeast(`${store}-alone`, ours, 1.3, reference),
      atLeast(`${store}-64`, ours, 6, reference),
      atLeast(`${store}-64`, ours, 3, verrou)
    ]
  }),
  must('postgres-hand-over', `p50 at most 2 × ${SQL.postgres.signal}, one way`, (workload) => {
    const { ours, signal } = SQL.postgres
    const [ratio, ms] = [workload.ratio(ours, signal), workload.of(ours)]
    return { met: ratio <= 2, measured: `${short(ratio)} (${time(ms ?? NaN)})` }
  }),
  must('etcd-alone', `at least 0.9 of ${ETCD.raw}, by lock+unlock p50`, (alone) => {
    // As above.
    const share = alone.ratio(ETCD.raw, ETCD.ours, 'cycleP50Ms')
    return { met: share >= 0.9, measured: short(share) }
  }),
  atLeast('etcd-64', ETCD.ours, 4, ETCD.go),
  must('etcd-64', `less client CPU per operation than ${ETCD.go}`, (flight) => {
    const [ratio, us] = [flight.ratio(ETCD.ours, ETCD.go, 'clientCpuUsPerOp'), flight.of(ETCD.ours, 'clientCpuUsPerOp')]
    return { met: ratio < 1, measured: `1/${short(1 / ratio)} (${short(us ?? NaN)} µs)` }
  }),
  atLeast('etcd-cluster-64', ETCD.ours, 4, ETCD.go),
  atLeast('etcd-hot-4x4', ETCD.ours, 4, ETCD.go),
  must('etcd-convoy-4x16', `gap at most that of ${ETCD.go}`, (convoy) => {
    const [ratio, ms] = [convoy.ratio(ETCD.ours, ETCD.go), convoy.of(ETCD.ours)]
    return { met: ratio <= 1, measured: `${short(ratio)} (${time(ms ?? NaN)})` }
  })
]

function handOver(name, metric, mostMs) {
  return must('sqlite-hand-over', `strict: ${name} at most ${time(mostMs)}`, (workload) => {
    const ms = workload.of(OURS_STRICT, metric)
    return { met: ms <= mostMs, measured: time(ms ?? NaN) }
  })
}

function atLeastRaw(id, factor) {
  return atLeast(id, OURS, factor, RAW)
}

function atLeast(id, ours, factor, reference) {
  return must(id, `at least ${factor} × ${reference}`, (workload) => {
    const share = workload.ratio(ours, reference)
    return { met: share >= factor, measured: `${short(share)} (${count(workload.of(ours) ?? NaN)}/s)` }
  })
}

function atMost(id, text, metric, opponent, share) {
  return must(id, text, (workload) => {
    const ratio = workload.ratio(OURS, opponent, metric)
    return { met: ratio <= share, measured: ratio === 0 ? '0' : `1/${short(1 / ratio)}` }
  })
}

/** With their defaults and tuned. */
function aheadOfPeers(id) {
  return must(id, 'ahead of every peer', (workload) => {
    const [best] = workload.peers.sort((a, b) => workload.of(b) - workload.of(a))
    const ratio = workload.ratio(OURS, best)
    return { met: ratio > 1, measured: `${short(ratio)} × ${best}` }
  })
}

function fair(id) {
  return must(id, "Jain's index at least 0.99", (workload) => {
    const jain = workload.of(OURS, 'jain')
    return { met: jain >= 0.99, measured: jain?.toFixed(4) }
  })
}

function must(id, text, check) {
  return { id, text, check }
}

export function checkMusts(summaries) {
  return MUSTS.flatMap(({ id, text, check }) => {
    const summary = summaries.find((each) => each.id === id)
    if (!summary) return []
    const row = { store: summary.store, workload: summary.title, must: text, ...check(reader(summary)) }
    if (!/NaN|undefined/.test(String(row.measured))) return [row]
    // Either we could not do it, or somebody to compare with was not there.
    const { trouble } = summary.contenders[OURS_ON[summary.store]] ?? {}
    return trouble ? [{ ...row, measured: trouble, met: false }] : []
  })
}

function reader(summary) {
  const { contenders, primary, params } = summary
  const ofRole = (role) => Object.keys(contenders).filter((id) => contenderOf(id).role === role && contenders[id].metrics[primary])
  return {
    of: (id, metric = primary) => contenders[id]?.metrics[metric]?.median,
    ratio: (id, other, metric = primary) => ratioBetween(summary, id, other, metric) ?? NaN,
    sizes: [params.sizes?.[0], params.sizes?.at(-1)].map((size) => size?.toLocaleString('en')).join(' to '),
    troubleOf: (id) => contenders[id]?.trouble,
    peers: ofRole('peer'),
    raw: ofRole('raw')
  }
}

export function mustTable(musts) {
  return table(
    ['workload', 'must', 'measured', ''],
    musts.map(({ workload, must, measured, met }) => [workload, must, measured, met ? 'met' : 'NOT met']),
    () => true
  )
}
