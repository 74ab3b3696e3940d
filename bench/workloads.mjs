/** What is measured. `params` go to the job in the processes, `primary` is the metric that ratios are made of. */
import { CONTENDERS } from './contenders/index.mjs'

/** Long enough never to matter in a loop. */
const TTL_MS = 10_000

const CONVOY_CAP_MS = 60_000

/** How long each measurement takes, and how many rounds there are. */
export const PACES = {
  full: { rounds: 3, warmUpMs: 1_000, loopMs: 2_000, convoyMs: 4_000 },
  quick: { rounds: 2, warmUpMs: 400, loopMs: 700, convoyMs: 1_200 },
  smoke: { rounds: 1, warmUpMs: 50, loopMs: 150, convoyMs: 150 }
}

const idsOf = (wanted) => CONTENDERS.filter(wanted).map(({ id }) => id)
const ALONE = idsOf(({ role, tuned }) => role !== 'local' && !tuned)
const SENDING = idsOf(({ role, tuned }) => role !== 'local' && tuned !== 'waiting')
const WAITING = idsOf(({ role, tuned }) => (role === 'ours' || role === 'peer') && tuned !== 'sending')
const LOCAL = [...WAITING, ...idsOf(({ role }) => role === 'local')]

const OPERATIONS = ['opsPerS', 'waitP50Ms', 'waitP99Ms', 'waitMaxMs', 'requestsPerOp', 'scriptsPerOp', 'commandsPerOp',
  'clientCpuUsPerOp', 'serverCpuUsPerOp', 'failures']
const HAND_OFFS = ['gapMs', 'handOffsPerS', 'opsPerS', 'waitP50Ms', 'waitP99Ms', 'waitMaxMs', 'jain', 'requestsPerOp', 'scriptsPerOp',
  'clientCpuUsPerOp', 'serverCpuUsPerOp', 'timerLateMs', 'failures']

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
    })
  ]
}
