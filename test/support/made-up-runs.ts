/** Logs of runs that nobody ran: for a report one has to know beforehand what is in them. */
import type { Event, Run, Violation, Workload } from '../fault/history.js'

const NS = 1e6
/** hrtime does not begin at 0. */
const START = 987_654_321_000_000n

export const at = (ms: number): bigint => START + BigInt(Math.round(ms * NS))

export interface Hold {
  readonly op: string
  readonly worker: string
  readonly key?: string
  readonly workload?: Workload
  readonly fence: bigint
  readonly asked: number
  readonly granted: number
  readonly until: number
  /** It never lets go, as far as the log knows. */
  readonly keeps?: boolean
}

/** Written in any order, as logs of several processes are. */
export class MadeUpLog {
  readonly events: Event[] = []
  readonly violations: Violation[] = []

  add(...events: Event[]): this {
    this.events.push(...events)
    return this
  }

  hold({ op, worker, key = 'k', workload = 'fenced', fence, asked, granted, until, keeps = false }: Hold): this {
    this.add(
      { type: 'asked', at: at(asked), worker, op, key, workload },
      { type: 'granted', at: at(granted), worker, op, key, fence },
    )
    if (keeps) return this
    return this.add(
      { type: 'releasing', at: at(until), worker, op, key },
      { type: 'released', at: at(until + 0.5), worker, op, key, ours: true },
    )
  }

  refusal(op: string, worker: string, asked: number, refused: number, error = 'it took too long', key = 'k'): this {
    return this.add(
      { type: 'asked', at: at(asked), worker, op, key, workload: 'cancelled' },
      { type: 'refused', at: at(refused), worker, op, key, error },
    )
  }

  fault(fault: number, name: string, target: string, from: number, to?: number): this {
    this.add({ type: 'fault', at: at(from), fault, name, target })
    return to === undefined ? this : this.add({ type: 'healed', at: at(to), fault, name })
  }

  phases(faults: number, recovery: number, end: number): this {
    return this.add(
      { type: 'phase', at: at(0), name: 'warm-up' },
      { type: 'phase', at: at(faults), name: 'faults' },
      { type: 'phase', at: at(recovery), name: 'recovery' },
      { type: 'phase', at: at(end), name: 'end' },
    )
  }

  /** `null`: it is about no key. */
  violation(invariant: string, ms: number, ops: readonly string[], message = 'it is so', key: string | null = 'k'): this {
    this.violations.push({ invariant, message, at: at(ms), ops, ...(key === null ? {} : { key }) })
    return this
  }

  run(more: Partial<Run> = {}): Run {
    return { backend: 'redis', seed: 7, ttlMs: 1_000, events: this.events, violations: this.violations, ...more }
  }
}

/** 10 s: 4 s of peace, 4 s with two faults, 2 s of peace. Nothing is wrong with it. */
export function goodRun(): Run {
  const log = new MadeUpLog().phases(4_000, 8_000, 10_000)
  log.add(...['w1', 'w2'].map((worker): Event => ({ type: 'began', at: at(0), worker })))
  for (let n = 0; n < 40; n++) {
    // Twice as many in a second before the faults as after them.
    const granted = n < 32 ? 100 + n * 121 : 8_100 + (n - 32) * 200
    const worker = `w${1 + (n % 2)}`
    const workload = n % 4 === 3 ? 'unfenced' : 'fenced'
    const fence = BigInt(n + 1)
    log.hold({ op: `o${n}`, worker, workload, fence, asked: granted - 20, granted, until: granted + 40 })
    const pass = { op: `o${n}`, key: 'k', fence, accepted: true }
    log.add({ type: 'read', at: at(granted + 5), ...pass, value: n })
    log.add({ type: 'wrote', at: at(granted + 9), ...pass, value: n + 1, lostUpdate: n === 7 })
  }
  log.fault(1, 'partition', 'w1', 4_500, 6_000).fault(2, 'kill', 'w2', 7_000)
  log.hold({ op: 'p', worker: 'w1', fence: 50n, asked: 5_000, granted: 6_400, until: 6_500 })
  log.refusal('q', 'w2', 5_000, 5_800)
  log.add({ type: 'ended', at: at(7_000), worker: 'w2', how: 'killed' }, { type: 'began', at: at(7_500), worker: 'w2' })
  return log.run()
}

/** A has it from 2,000 to 2,300 ms, and B from 2,250 on: the server was replaced by one that did not know of A. */
export function doubleHold(): Run {
  const log = new MadeUpLog().phases(1_000, 3_500, 4_000)
  log.hold({ op: 'before', worker: 'w3', fence: 40n, asked: 1_700, granted: 1_800, until: 1_990 })
  log.hold({ op: 'a', worker: 'w1', fence: 41n, asked: 1_900, granted: 2_000, until: 2_300 })
  log.hold({ op: 'b', worker: 'w2', fence: 42n, asked: 2_050, granted: 2_250, until: 2_420 })
  log.hold({ op: 'after', worker: 'w3', fence: 43n, asked: 2_100, granted: 2_421, until: 2_500 })
  log.hold({ op: 'elsewhere', worker: 'w4', key: 'another', fence: 44n, asked: 2_100, granted: 2_200, until: 2_300 })
  for (const ms of [2_050, 2_150, 2_260, 2_290]) {
    log.add({ type: 'confirmed', at: at(ms), since: at(ms - 0.1), worker: 'w1', op: 'a', key: 'k' })
  }
  log.add(
    { type: 'read', at: at(2_010), op: 'a', key: 'k', fence: 41n, accepted: true, value: 5 },
    { type: 'read', at: at(2_255), op: 'b', key: 'k', fence: 42n, accepted: true, value: 5 },
    { type: 'wrote', at: at(2_280), op: 'a', key: 'k', fence: 41n, accepted: false, value: 6, lostUpdate: false },
    { type: 'wrote', at: at(2_400), op: 'b', key: 'k', fence: 42n, accepted: true, value: 6, lostUpdate: false },
  )
  log.fault(1, 'failover', 'primary', 2_200, 2_240)
  const message = 'w1 said at 2,260 ms that it holds k, which w2 had been granted at 2,250 ms'
  return log.violation('mutual exclusion', 2_260, ['a', 'b'], message).run()
}

const HOSTILE = '<script>alert(1)</script>"\'&\u202e'

/** Whatever can come from outside is markup, invisible, or a line that looks like ours. */
export function hostileRun(): Run {
  const bad = `${HOSTILE}\n>      0.000  w9  GRANTED, fence 1`
  const log = new MadeUpLog()
  log.hold({ op: `${bad}1`, worker: `${bad}1`, key: bad, fence: 1n, asked: 0, granted: 10, until: 500 })
  log.hold({ op: `${bad}2`, worker: `${bad}2`, key: bad, fence: 2n, asked: 0, granted: 300, until: 600 })
  log.refusal(`${bad}3`, `${bad}3`, 100, 200, bad, bad)
  log.fault(1, bad, bad, 50, 400).fault(2, '__proto__', 'constructor', 50)
  log.add(
    { type: 'lost', at: at(450), worker: `${bad}1`, op: `${bad}1`, key: bad, error: bad },
    { type: 'ended', at: at(700), worker: `${bad}2`, how: 'failed', why: bad },
    { type: 'read', at: at(320), op: 'of nobody', key: bad, fence: 3n, accepted: true, value: 1 },
  )
  log.violation(bad, 300, [`${bad}1`, `${bad}2`, 'unknown'], bad, bad)
  return log.run({ backend: bad })
}

export interface Made {
  readonly seconds: number
  readonly keys: number
  readonly workers: number
  /** How often one is granted too early. */
  readonly violations: number
}

/** As a real run might look: contended keys, a fault every few seconds, fences as those of Redis. */
export function simulatedRun({ seconds, keys, workers, violations }: Made): Run {
  const log = new MadeUpLog()
  const random = randomFrom(7)
  const endMs = seconds * 1_000
  log.phases(endMs * 0.2, endMs * 0.8, endMs)
  const broken = simulateFaults(log, random, endMs, workers)
  const everyMs = (endMs * 0.6) / (violations + 1)
  for (let k = 0; k < keys; k++) {
    let fence = 1_763_230_000_000_000n * 1_024n
    let granted = 5 + random() * 5
    let badAt = k === 0 && violations > 0 ? endMs * 0.2 + everyMs : Infinity
    for (let n = 0; granted < endMs - 20; n++) {
      const stop = broken.find(({ from, to }) => granted >= from && granted < to)
      if (stop) granted = stop.to + 100 + random() * 300
      const until = granted + 4 + random() * 12
      const worker = `worker-${1 + Math.floor(random() * workers)}`
      const asked = Math.max(0, granted - 10 - random() * 60)
      fence += BigInt(Math.round(until - granted + 1)) * 1_024_000n
      simulateHold(log, { op: `${k}-${n}`, worker, key: `orders:${k}`, fence, asked, granted, until }, n)
      const early = granted >= badAt && log.violations.length < violations
      if (early) {
        badAt += everyMs
        const message = `orders:${k} was granted twice: operation ${k}-${n + 1} got it before ${k}-${n} had let go`
        log.violation('mutual exclusion', until - 3, [`${k}-${n}`, `${k}-${n + 1}`], message, `orders:${k}`)
      }
      granted = until + (early ? -3 : 0.7)
    }
  }
  return log.run()
}

function simulateHold(log: MadeUpLog, hold: Hold & { readonly key: string }, n: number): void {
  const { op, worker, key, fence, granted, until } = hold
  log.hold(hold)
  const middle = (granted + until) / 2
  log.add(
    { type: 'read', at: at(granted + 0.4), op, key, fence, accepted: true, value: n },
    { type: 'confirmed', at: at(middle), since: at(middle - 0.05), worker, op, key },
    { type: 'wrote', at: at(until - 0.8), op, key, fence, accepted: true, value: n + 1, lostUpdate: false },
  )
}

const FAULTS = ['pause a worker', 'kill a worker', 'partition', 'slow network', 'restart the server', 'failover']

/** Those that stop everything, as far as the simulation goes. */
function simulateFaults(log: MadeUpLog, random: () => number, endMs: number, workers: number): { from: number; to: number }[] {
  const broken: { from: number; to: number }[] = []
  let number = 0
  for (let from = endMs * 0.2; from < endMs * 0.78; from += 800 + random() * 2_500) {
    const name = FAULTS[Math.floor(random() * FAULTS.length)]!
    const to = name === 'kill a worker' ? undefined : from + 200 + random() * 1_500
    const worker = `worker-${1 + Math.floor(random() * workers)}`
    const ofServer = name === 'restart the server' || name === 'failover'
    log.fault(++number, name, ofServer ? 'server' : worker, from, to)
    if (ofServer && to !== undefined) broken.push({ from, to })
  }
  return broken
}

/** mulberry32 */
function randomFrom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
