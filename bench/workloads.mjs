/** What is measured. `params` go to the job in the processes, `primary` is the metric that ratios are made of. */
import { CONTENDERS } from './contenders/index.mjs'

/** Long enough never to matter in a loop. */
const TTL_MS = 10_000

const CONVOY_CAP_MS = 60_000
const GROWTH_CAP_MS = 60_000

/** How long each measurement takes, and how many rounds there are. */
export const PACES = {
  full: { rounds: 3, warmUpMs: 1_000, loopMs: 2_000, convoyMs: 4_000, heldMs: 12_500, held: 10_000, growTo: 100_000 },
  quick: { rounds: 2, warmUpMs: 300, loopMs: 700, convoyMs: 1_000, heldMs: 5_000, held: 10_000, growTo: 10_000 },
  smoke: { rounds: 1, warmUpMs: 20, loopMs: 100, convoyMs: 100, heldMs: 500, held: 100, growTo: 100 }
}

/** With renewals at a third of it, or at four fifths, there are several while we look. */
const HELD_TTL_MS = 5_000
/** No renewals while we look. */
const GROWTH_TTL_MS = 120_000
const DRAIN_MS = 20_000

const idsOf = (wanted) => CONTENDERS.filter(wanted).map(({ id }) => id)
const ALONE = idsOf(({ role, tuned }) => role !== 'local' && !tuned)
const SENDING = idsOf(({ role, tuned }) => role !== 'local' && tuned !== 'waiting')
const WAITING = idsOf(({ role, tuned }) => (role === 'ours' || role === 'peer') && tuned !== 'sending')
const RENEWING = idsOf(({ renews }) => renews)
const LOCAL = [...WAITING, ...idsOf(({ role }) => role === 'local')]

const OPERATIONS = ['opsPerS', 'waitP50Ms', 'waitP99Ms', 'waitMaxMs', 'requestsPerOp', 'scriptsPerOp', 'commandsPerOp',
  'clientCpuUsPerOp', 'serverCpuUsPerOp', 'failures']
const HAND_OFFS = ['gapMs', 'handOffsPerS', 'opsPerS', 'waitP50Ms', 'waitP99Ms', 'waitMaxMs', 'jain', 'requestsPerOp', 'scriptsPerOp',
  'clientCpuUsPerOp', 'serverCpuUsPerOp', 'timerLateMs', 'failures']
const HELD = ['renewalRequests', 'renewalCommands', 'clientCpuMs', 'serverCpuMs', 'heapPerHeldBytes']

export function workloadsAt(pace) {
  const times = { warmUpMs: pace.warmUpMs, ttlMs: TTL_MS }
  const loop = ({ workers = 1, shared = false, thinkMs = 0, ...rest }) => ({
    jobName: 'loop', processes: 1, params: { ...times, durationMs: pace.loopMs, workers, shared, thinkMs }, ...rest
  })
  const uncontended = (options) =>
    loop({ contenders: SENDING, primary: 'opsPerS', reference: 'ioredis', columns: OPERATIONS, ...options })
  const hotKey = (options) =>
    loop({ contenders: WAITING, primary: 'handOffsPerS', reference: 'holdfast', columns: HAND_OFFS, shared: true, ...options })
  const flight = (workers, options) =>
    uncontended({
      id: `flight-${workers}`, title: `${workers} in flight`, workers,
      says: `${workers} workers in one process lock and unlock keys of their own, without a pause.`,
      ...options
    })
  const think = (workers) =>
    flight(workers, {
      id: `think-${workers}`, title: `${workers} in flight with think time`, thinkMs: 4,
      says: `${workers} workers in one process lock and unlock keys of their own, and pause for 0 to 4 ms after each, ` +
        'so that they do not march in step. Without any waiting that would be ' +
        `${Math.round(workers / 2)},000 a second: the server is far from idle.`
    })
  const convoy = (waiters, options) => ({
    id: `convoy-4x${waiters}`, title: `convoy 4×${waiters}`, jobName: 'convoy', processes: 4,
    params: { ...times, durationMs: pace.convoyMs, capMs: CONVOY_CAP_MS, workers: waiters, workMs: 1 },
    contenders: WAITING, primary: 'gapMs', reference: 'holdfast', columns: HAND_OFFS,
    says: `4 processes with ${waiters} waiter${waiters > 1 ? 's' : ''} each come for one key at once. Each has it once and ` +
      'works for 1 ms. The gap is the time in which nobody has the key, per hand-off.',
    ...options
  })

  return [
    uncontended({
      id: 'alone', title: 'alone', workers: 1, quick: true, contenders: ALONE,
      says: 'One worker locks and unlocks, one key after the other: the latency of two requests.'
    }),
    flight(64, { quick: true }),
    flight(512),
    think(64),
    think(512),
    convoy(1),
    convoy(4, { quick: true }),
    convoy(16),
    convoy(64),
    hotKey({
      id: 'hot-local', title: 'hot key, 64 waiters in one process', workers: 64, quick: true, contenders: LOCAL,
      says: '64 workers of one process want one key all the time, and do nothing with it. A hand-off is counted when another ' +
        'has it than before.'
    }),
    hotKey({
      id: 'hot-4x4', title: 'hot key 4×4', processes: 4, workers: 4, quick: true,
      says: '4 processes with 4 waiters each want one key all the time, and do nothing with it.'
    }),
    {
      id: 'held', title: `${pace.held.toLocaleString('en')} held`, jobName: 'held', smoke: true,
      params: { count: pace.held, durationMs: pace.heldMs, ttlMs: HELD_TTL_MS },
      contenders: RENEWING, primary: 'renewalRequests', reference: 'holdfast', columns: HELD,
      says: `One process holds ${pace.held.toLocaleString('en')} locks with a TTL of ${HELD_TTL_MS / 1000} s and does nothing ` +
        `else for ${pace.heldMs / 1000} s. Each library renews at its own pace.`
    },
    {
      id: 'grow-keys', title: 'growth: keys', jobName: 'grow-keys', smoke: true,
      params: { sizes: sizesTo(pace.growTo), operations: pace.growTo / 20, capMs: GROWTH_CAP_MS, ttlMs: GROWTH_TTL_MS },
      contenders: ['holdfast', 'ioredis', 'redis-semaphore', 'redlock'], primary: 'growth', reference: 'holdfast',
      chart: `costUsAt${pace.growTo}`,
      columns: [...sizesTo(pace.growTo).map((size) => `costUsAt${size}`), `cpuUsAt${pace.growTo}`, 'heapPerHeldBytes'],
      says: 'What a lock and its unlock cost, 64 in flight, while the same process holds so many others. The growth is that of ' +
        'the dearest against the first.'
    },
    {
      id: 'grow-waiters', title: 'growth: waiters', jobName: 'grow-waiters', smoke: true,
      params: { sizes: sizesTo(pace.growTo), durationMs: pace.loopMs, drainMs: DRAIN_MS, ttlMs: GROWTH_TTL_MS },
      contenders: ['holdfast', 'async-mutex', 'redis-semaphore', 'redlock'], primary: 'drainToHot', reference: 'holdfast',
      chart: `drainPerSAt${pace.growTo}`,
      columns: ['hotPerS', ...sizesTo(pace.growTo).map((size) => `drainPerSAt${size}`), 'heapPerWaiterBytes'],
      says: 'So many waiters of one process come for one key that is held; then it is let go of, and each has it and lets go at ' +
        'once. How many get through in a second, against the 64 of a hot key in the same process.'
    }
  ]
}

/** 100, 1,000, … and the last. */
function sizesTo(last) {
  return [100, 1_000, 10_000, 100_000].filter((size) => size <= last)
}
