/**
 * One run: traffic without faults, then faults one or two at a time with time to heal in between, then time to recover; and then the
 * judges. What is done when, and to whom, follows from the seed.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { PREFIX, startEnvironment, type BackendName, type Environment } from './environment.js'
import type { Fault, Victims } from './fault.js'
import { FAULTS } from './faults.js'
import { Gate, type Errand, type GateMode, type Visit } from './gate.js'
import type { Event, Run, Violation } from './history.js'
import { Orphans } from './orphans.js'
import { Random } from './random.js'
import { TrafficWorker } from './traffic.js'
import { isBroken, validate } from './validate.js'
import { REIGNS, workOf, type Kind, type Work } from './work.js'

export interface RunOptions {
  readonly backend: BackendName
  readonly seed: number
  /** How long there are faults. */
  readonly faultsMs: number
  readonly ttlMs?: number
  readonly workers?: number
  /** How often a leader is killed, instead of all else: the processes do nothing but lead then. */
  readonly failovers?: number
  /** Beside locks, instead of what the seed says. */
  readonly work?: readonly Kind[]
  /** Only those with these names. */
  readonly faults?: readonly string[]
  readonly gate?: GateMode
  /** How long the guarded work takes at most. */
  readonly workMs?: number
  /** For each worker instead of the package: a file that exports `connect`. */
  readonly library?: string
  readonly waitsForReplicas?: boolean
  readonly onProgress?: (events: readonly Event[]) => void
  /** For runs that have to fail: no more is needed once this one is broken. */
  readonly untilBroken?: string
}

const WARM_UP_MS = 3_000
const HEALED_MS = 3_000
const RECOVERY_MS = 10_000
const FAULT_MS = [1_000, 4_000] as const
const CALLERS = 2
const THINK_MS = 30
const WORK_MS = 3
const TICK_MS = 50
const PROBE_MS = 200
const STALL_MS = 250
/** Until a replica that was behind is known to all. */
const SETTLED_MS = 5_000
const REIGN_MS = [20, 200] as const
const NO_LEADER_MS = 30_000

export async function run(options: RunOptions): Promise<Run> {
  const { backend, workers = 6 } = options
  const environment = await startEnvironment(backend, workers)
  try {
    return await new Controller(environment, options).run()
  } finally {
    await environment.stop()
  }
}

class Controller implements Victims {
  readonly environment: Environment
  readonly #options: RunOptions
  readonly #ttlMs: number
  /** What is broken, for how long; each fault has one of its own, since when it draws is up to the machine. */
  readonly #random: Random
  readonly #seeds: Random
  readonly #events: Event[] = []
  readonly #gate: Gate
  readonly #work: Work
  readonly #orphans = new Orphans()
  readonly #log = (event: Event): void => {
    this.#events.push(event)
    if (event.type === 'granted') this.#lastGrant = event
  }
  #lastGrant: { readonly worker: string; readonly at: bigint } | undefined
  /** What transactions are about; odd while the store may lose what was committed. */
  #generation = 0
  #erasing = 0
  /** By the number of its way. */
  readonly #workers: TrafficWorker[] = []
  /** Those that were killed, too. */
  readonly #everybody: TrafficWorker[] = []
  #nextFault = 0
  #nextWorker = 0

  constructor(environment: Environment, options: RunOptions) {
    this.environment = environment
    this.#options = options
    this.#ttlMs = options.ttlMs ?? 1_000
    this.#random = new Random(options.seed)
    this.#seeds = new Random(this.#random.below(2 ** 31))
    const { backend, seed, work, library, failovers } = options
    // Other libraries have nothing but locks.
    this.#work = failovers ? REIGNS : workOf(backend, seed, work ?? (library === undefined ? undefined : []))
    this.#gate = new Gate(options.gate ?? 'advances on reads', this.#log)
  }

  async run(): Promise<Run> {
    const { faultsMs, failovers } = this.#options
    const progress = setInterval(() => this.#options.onProgress?.(this.#events), 1_000)
    const stopWatching = this.#watch()
    try {
      await Promise.all(this.environment.ways.map((_, way) => this.replace(way)))
      this.#phase('warm-up')
      await sleep(WARM_UP_MS)
      this.#phase('faults')
      // What cannot be healed is a reason to look at the log, and not to throw it away.
      const injected = failovers === undefined ? this.#injectFor(faultsMs) : this.#failOver(failovers)
      const failed = await injected.then(() => [], (error: unknown) => [failureOf(error)])
      this.#phase('recovery')
      if (!this.#isBroken()) await sleep(RECOVERY_MS)
      this.#phase('end')
      const trouble = await this.#end()
      stopWatching()
      const log = this.#run()
      return { ...log, violations: [...validate(log), ...failed, ...trouble] }
    } finally {
      stopWatching()
      clearInterval(progress)
      await Promise.all(this.#workers.map((worker) => worker.kill()))
    }
  }

  workers(): readonly { readonly worker: TrafficWorker; readonly way: number }[] {
    return this.#workers.map((worker, way) => ({ worker, way })).filter(({ worker }) => !worker.hasEnded)
  }

  async replace(way: number): Promise<void> {
    const { url, machine } = this.environment.ways[way]!
    const library = this.#options.library ?? this.environment.ways[way]!.library
    const name = `w${way}.${this.#nextWorker++}`
    const worker = new TrafficWorker(
      {
        name, way, url, prefix: PREFIX, ttlMs: this.#ttlMs, seed: this.#seeds.below(2 ** 31), ...this.#work, callers: CALLERS,
        managers: this.environment.managers, thinkMs: THINK_MS, workMs: this.#options.workMs ?? WORK_MS,
        ...(library !== undefined && { library }),
        ...(machine && { env: machine.env }),
      },
      this.#log,
      (visit) => this.#answer(visit),
      this.environment.canary,
    )
    this.#workers[way] = worker
    this.#everybody.push(worker)
    await worker.start()
  }

  #answer(visit: Visit | Errand): unknown {
    switch (visit.what) {
      case 'leave':
        return this.#orphans.leave(visit.key, visit)
      case 'find':
        return { left: this.#orphans.find(visit.key) }
      case 'generation':
        return { generation: this.#generation }
      default:
        return this.#gate.visit(visit)
    }
  }

  /** All go through the proxies, which are in this process, and to the store: if one of them stands still, then it is not to blame. */
  #watch(): () => void {
    let isOver = false
    const look = (what: 'the proxies' | 'the store', since: bigint): void => {
      const at = process.hrtime.bigint()
      if (!isOver && at - since > BigInt(STALL_MS) * 1_000_000n) this.#log({ type: 'stalled', at, since, what })
    }
    let tickedAt = process.hrtime.bigint()
    const timer = setInterval(() => {
      look('the proxies', tickedAt)
      tickedAt = process.hrtime.bigint()
    }, TICK_MS)
    const probe = async (): Promise<void> => {
      while (!isOver) {
        const since = process.hrtime.bigint()
        // One that is down fails at once.
        await this.environment.probe?.().catch(() => {})
        look('the store', since)
        await sleep(PROBE_MS)
      }
    }
    if (this.environment.probe) void probe()
    return () => {
      isOver = true
      clearInterval(timer)
    }
  }

  #phase(name: 'warm-up' | 'faults' | 'recovery' | 'end'): void {
    this.#log({ type: 'phase', at: process.hrtime.bigint(), name })
  }

  async #injectFor(faultsMs: number): Promise<void> {
    const { faults: wanted } = this.#options
    const possible = FAULTS.filter(({ name, isFor }) => isFor(this.environment) && (!wanted || wanted.includes(name)))
    const endAt = performance.now() + faultsMs
    while (performance.now() < endAt && !this.#isBroken()) {
      await this.#inject(this.#choose(possible), this.#random.between(...FAULT_MS))
      await this.environment.healthy()
      await sleep(HEALED_MS)
    }
  }

  /** Whoever leads is killed, and another begins in its place: so many times. */
  async #failOver(times: number): Promise<void> {
    for (let i = 0; i < times; i++) {
      const { worker, way } = await this.#leader()
      await sleep(this.#random.between(...REIGN_MS))
      const at = process.hrtime.bigint()
      const fault = this.#nextFault++
      this.#log({ type: 'fault', at, fault, name: 'client kill', target: worker.name, forgets: false })
      await worker.kill()
      await Promise.all([this.replace(way), this.#leader(at)])
      this.#log({ type: 'healed', at: process.hrtime.bigint(), fault, name: 'client kill' })
    }
  }

  /** One who has come to lead since then, and is still alive. */
  async #leader(since = 0n): Promise<{ readonly worker: TrafficWorker; readonly way: number }> {
    const giveUpAt = performance.now() + NO_LEADER_MS
    for (;;) {
      const grant = this.#lastGrant
      const leader = grant && grant.at > since && this.workers().find(({ worker }) => worker.name === grant.worker)
      if (leader) return leader
      if (performance.now() > giveUpAt) throw new Error(`Nobody has led for ${NO_LEADER_MS} ms`)
      await sleep(5)
    }
  }

  /** While the store may lose what was committed, transactions are about other keys, and after that about others again. */
  #erases(): () => void {
    this.#erasing++
    if (this.#generation % 2 === 0) this.#nextGeneration()
    return () => {
      setTimeout(() => {
        if (--this.#erasing === 0) this.#nextGeneration()
      }, SETTLED_MS).unref()
    }
  }

  #nextGeneration(): void {
    this.#generation++
    this.#log({ type: 'generation', at: process.hrtime.bigint(), generation: this.#generation })
  }

  #run(): Omit<Run, 'violations'> {
    const { backend, seed, waitsForReplicas = false, failovers } = this.#options
    const { handOffMs, forgetsAsOne = false } = this.environment
    const store = { forgetsAsOne, ...(handOffMs !== undefined && { handOffMs }) }
    return { backend, seed, ttlMs: this.#ttlMs, waitsForReplicas, ...store, ...(failovers !== undefined && { failovers }), events: this.#events }
  }

  #isBroken(): boolean {
    const { untilBroken } = this.#options
    return untilBroken !== undefined && isBroken(untilBroken, this.#run())
  }

  /** One, or two that have to do with something else. */
  #choose(possible: readonly Fault[]): Fault[] {
    const first = this.#random.one(possible)
    const others = possible.filter(({ part }) => part !== first.part)
    return this.#random.next() < 0.3 && others.length > 0 ? [first, this.#random.one(others)] : [first]
  }

  async #inject(faults: readonly Fault[], ms: number): Promise<void> {
    const planned = faults.map((one) => ({ one, random: new Random(this.#random.below(2 ** 31)) }))
    const healing: (() => Promise<void>)[] = []
    try {
      for (const { one, random } of planned) {
        const { name, forgetsForMs } = one
        const fault = this.#nextFault++
        const settles = one.erases?.(this.environment) === true ? this.#erases() : () => {}
        const at = process.hrtime.bigint()
        const injection = await one.begin(this, random, ms)
        const cutsOff = one.cutsOff?.(this.environment) === true && { cutsOffSince: process.hrtime.bigint() }
        this.#log({ type: 'fault', at, fault, name, target: injection.target, forgets: one.forgets(this.environment), forgetsForMs, ...cutsOff })
        healing.push(async () => {
          const since = process.hrtime.bigint()
          await injection.heal()
          settles()
          this.#log({ type: 'healed', at: process.hrtime.bigint(), fault, name, since })
        })
      }
      await sleep(ms)
    } finally {
      await healAll(healing)
    }
  }

  /** Everybody finishes what it has begun. Nothing must be left then. */
  async #end(): Promise<Violation[]> {
    const at = process.hrtime.bigint()
    const wrong = (await Promise.all(this.#workers.map((worker) => worker.finish()))).flat()
    wrong.push(...this.#everybody.filter((worker) => worker.saidCanary).map(({ name }) => `${name}: it printed the password`))
    const violations = wrong.map((message): Violation => ({ invariant: 'clean end', message, at, ops: [] }))
    // A store that cannot be asked is a reason to look at the log, too.
    const leftovers = await this.#leftovers().catch((error: unknown) => [`Nobody knows: ${failureOf(error).message}`])
    if (leftovers.length > 0) violations.push({ invariant: 'no leaked key', message: leftovers.join(', '), at, ops: [] })
    return violations
  }

  /** What those left behind that were killed goes with time: locks with their TTL, places in queues a while later. */
  async #leftovers(): Promise<string[]> {
    const giveUpAt = performance.now() + 3 * this.#ttlMs + 10_000
    for (;;) {
      const left = await this.environment.leftovers()
      if (left.length === 0 || performance.now() > giveUpAt) return left
      await sleep(200)
    }
  }
}

/** At once: a worker that begins anew may be in need of the network or the server that the other fault is about. */
async function healAll(healing: readonly (() => Promise<void>)[]): Promise<void> {
  const healed = await Promise.allSettled(healing.map((heal) => heal()))
  for (const one of healed) if (one.status === 'rejected') throw one.reason
}

function failureOf(error: unknown): Violation {
  const { message, cause } = error as Error
  const why = cause instanceof Error ? `: ${cause.message}` : ''
  return { invariant: 'all is healed', message: `${message}${why}`, at: process.hrtime.bigint(), ops: [] }
}
