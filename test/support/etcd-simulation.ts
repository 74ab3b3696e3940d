/**
 * A minute of three processes on a made-up etcd, of which nearly everything is left to chance: what their callers want, how long requests
 * are on their way, which of them are lost or late. The same seed gives the same minute.
 *
 *   Schedule   lets time pass, and makes things go wrong
 *   Traffic    the callers: they lock, hold, extend, hand on, give up
 *   Judge      knows who believes to hold what, and complains
 */
import { onTestFinished, vi } from 'vitest'
import { HoldfastError, type ErrorCode } from '../../src/core/errors.js'
import { Mutex, type DistributedLock, type Session } from '../../src/index.js'
import { Random } from '../fault/random.js'
import { inversions, overlaps, type Hold } from './check.js'
import type { Fate } from './made-up-etcd.js'
import { isHeld, MadeUpWorld, type MadeUpProcess } from './made-up-world.js'

/** What is special about a run. */
export interface Kind {
  readonly keys: readonly string[]
  /** What may become of a request; what is there twice is twice as likely. */
  readonly fates: readonly Fate[]
  /** How often something becomes of it. */
  readonly faultRate: number
  /** Processes are cut off for a while. */
  readonly cutsOff: boolean
  /** What a holder does before it releases. */
  readonly deeds: readonly Deed[]
  readonly forcesReleases: boolean
  /** Sessions with mutexes, too: such as come and go, or also one for each process that lasts. */
  readonly sessions: 'none' | 'short' | 'long'
  /** Some do not renew what they hold. */
  readonly isAllRenewed: boolean
}

type Deed = 'works' | 'stalls' | 'extends' | 'holds long' | 'hands on'

const NAMES = ['A', 'B', 'C']
const CALLERS = 3
const MUTEXES = ['m1', 'm2']
const RUN_MS = 60_000
const STEP_MS = 50
const LONGEST_WAIT_MS = 20_000
/** Of a run in which nothing goes wrong any more. */
const PATIENCE_MS = 60_000
/** Longer than any TTL. */
const SETTLING_MS = 20_000
const CLOSING_MS = 15_000
const WATCHES_LOST_RATE = 0.003
const CUT_OFF_RATE = 0.004
const SHOWN_LINES = 40
const ALWAYS_SHOWN = ['cut off', 'expired']

/** Whoever asks for a lock where things go wrong has to expect these. */
const EXPECTED: readonly ErrorCode[] = [
  'BACKEND', 'LOCK_NOT_ACQUIRED', 'LOCK_NOT_HELD', 'OWNERSHIP_LOST', 'LOCKED', 'LOCK_RELEASED', 'SESSION_EXPIRED',
]

interface Problem {
  readonly what: string
  readonly at: number
  /** What of the trace is shown: those lines in which one of them is. */
  readonly words?: readonly string[]
}

/** What somebody holds, or believes to. */
interface Guarded {
  readonly fence: bigint
  readonly isHeld: () => boolean
}

class Judge {
  readonly #world: MadeUpWorld
  readonly #mayLose: boolean
  readonly #problems: Problem[] = []
  readonly #holds: Hold[] = []
  /** By part of the names that its claims have on the store. */
  readonly #open = new Map<string, Map<Hold, Guarded>>()

  constructor(world: MadeUpWorld, mayLose: boolean) {
    this.#world = world
    this.#mayLose = mayLose
  }

  complain(what: string, words?: readonly string[]): void {
    this.#problems.push({ what, at: this.#now, ...(words && { words }) })
  }

  /** Somebody was told that it holds. Returns what ends that. */
  begins(key: string, who: string, askedAt: number, guarded: Guarded): () => void {
    const open = this.#open.get(key) ?? new Map<Hold, Guarded>()
    this.#open.set(key, open)
    for (const [hold, other] of open) if (!other.isHeld()) this.#ends(key, hold)
    const { fence } = guarded
    // It was told too late, and knows.
    if (!guarded.isHeld()) return () => {}
    const [since, at] = [askedAt, this.#now].map(nanoseconds)
    const hold: Hold = { key, process: who, waiter: this.#holds.length, askedAt: since!, grantedAt: at!, releasedAt: undefined, fence }
    this.#holds.push(hold)
    open.set(hold, guarded)
    this.#world.etcd.trace.note(`${who} holds ${key} under fence ${fence}`)
    return () => {
      if (!this.#mayLose && !guarded.isHeld()) this.complain(`${who} has lost ${key}, though nothing went wrong.`, [key])
      this.#ends(key, hold)
    }
  }

  #ends(key: string, hold: Hold): void {
    if (!this.#open.get(key)!.delete(hold)) return
    hold.releasedAt = nanoseconds(this.#now)
    this.#world.etcd.trace.note(`${hold.process} holds ${key} no more`)
  }

  get holds(): number {
    return this.#holds.length
  }

  /** With what led to it. Undefined if all went well. */
  get verdict(): string | undefined {
    const [first, ...others] = [...this.#problems, ...this.#overlaps(), ...this.#inversions()].sort((a, b) => a.at - b.at)
    if (!first) return undefined
    const lines = this.#world.etcd.trace.last(SHOWN_LINES, first.at, first.words && [...first.words, ...ALWAYS_SHOWN])
    return [first.what, ...others.map(({ what }) => what), 'What happened before the first of it:', ...lines].join('\n')
  }

  #overlaps(): Problem[] {
    return overlaps(this.#holds).map(({ key, first, second, ns }) => ({
      what: `Two hold ${key}: ${nameOf(first)} and ${nameOf(second)}, for ${ns === undefined ? 'ever' : `${Number(ns) / 1e6} ms`}`,
      at: milliseconds(second.grantedAt), words: [key],
    }))
  }

  #inversions(): Problem[] {
    return inversions(this.#holds, { toleranceMs: RUN_MS * 10 }).fence.map(({ key, first, second }) => ({
      what: `The fence of ${key} goes back: ${nameOf(second)} came before ${nameOf(first)}`, at: milliseconds(first.grantedAt), words: [key],
    }))
  }

  get #now(): number {
    return this.#world.clock.now()
  }
}

function nameOf({ process, fence }: Hold): string {
  return `${process} (fence ${fence})`
}

function nanoseconds(ms: number): bigint {
  return BigInt(Math.round(ms * 1e6))
}

function milliseconds(ns: bigint): number {
  return Number(ns) / 1e6
}

class Traffic {
  readonly #world: MadeUpWorld
  readonly #processes: readonly MadeUpProcess[]
  readonly #judge: Judge
  readonly #random: Random
  readonly #kind: Kind
  #isOver = false
  running = 0

  constructor(world: MadeUpWorld, processes: readonly MadeUpProcess[], judge: Judge, random: Random, kind: Kind) {
    this.#world = world
    this.#processes = processes
    this.#judge = judge
    this.#random = random
    this.#kind = kind
  }

  start(): void {
    for (const one of this.#processes) {
      for (let i = 0; i < CALLERS; i++) void this.#repeat(() => this.#callOnce(one))
      if (this.#kind.sessions !== 'none') void this.#repeat(() => this.#useSession(one))
      if (this.#kind.sessions === 'long') void this.#repeat(() => this.#useLongSession(one))
    }
  }

  /** Whoever is at something may end it. */
  end(): void {
    this.#isOver = true
  }

  async #repeat(errand: () => Promise<void>): Promise<void> {
    this.running++
    while (!this.#isOver) {
      try {
        await errand()
      } catch (error) {
        this.#failed(error)
        await this.#pause(20)
      }
    }
    this.running--
  }

  #failed(error: unknown): void {
    const isExpected = this.#kind.fates.length > 0 && error instanceof HoldfastError && EXPECTED.includes(error.code)
    const isBusy = error instanceof HoldfastError && (error.code === 'LOCK_NOT_ACQUIRED' || error.code === 'LOCKED')
    if (!isExpected && !isBusy) this.#judge.complain(`Somebody was told: ${(error as Error).stack}`)
  }

  async #callOnce(caller: MadeUpProcess): Promise<void> {
    const key = this.#random.one(this.#kind.keys)
    const dice = this.#random.next()
    if (dice < 0.5) await this.#lock(caller, key)
    else if (dice < 0.7) await this.#tryLock(caller, key)
    else if (dice < 0.75 && this.#kind.forcesReleases) await caller.locks.forceRelease(key)
    else await this.#giveUp(caller, key)
  }

  async #lock(caller: MadeUpProcess, key: string): Promise<void> {
    const random = this.#random
    const askedAt = this.#world.clock.now()
    const lock = await caller.locks.lock(key, {
      waitMs: random.one([0, 500, 3_000, 8_000]),
      fairness: random.one(['bounded', 'strict'] as const),
      ...(random.next() < 0.2 && { ttlMs: random.one([2_000, 3_000, 7_000]) }),
      ...(!this.#kind.isAllRenewed && random.next() < 0.15 && { autoRenew: false }),
    })
    await this.#hold(caller, lock, askedAt, random.one(this.#kind.deeds))
  }

  async #tryLock(caller: MadeUpProcess, key: string): Promise<void> {
    const askedAt = this.#world.clock.now()
    const lock = await caller.locks.tryLock(key)
    if (lock) await this.#hold(caller, lock, askedAt, 'works')
  }

  /** Waits for a moment only. */
  async #giveUp(caller: MadeUpProcess, key: string): Promise<void> {
    const leaving = new AbortController()
    const askedAt = this.#world.clock.now()
    const asked = caller.locks.lock(key, { signal: leaving.signal })
    const used = asked.then((lock) => this.#hold(caller, lock, askedAt, undefined), (error: unknown) => {
      if (error !== GIVEN_UP) throw error
    })
    used.catch(() => {})
    await this.#pause(100)
    leaving.abort(GIVEN_UP)
    await used
  }

  async #hold(caller: MadeUpProcess, lock: DistributedLock, askedAt: number, deed: Deed | undefined): Promise<void> {
    const end = this.#begins(caller, lock, askedAt)
    if (deed === 'works') await this.#pause(300)
    if (deed === 'stalls') await this.#pause(8_000)
    if (deed === 'extends') {
      await this.#extend(lock, [2_000, 4_000, 12_000])
      await this.#pause(3_000)
    }
    if (deed === 'holds long') {
      await this.#extend(lock, [3_000, 6_000, 12_000])
      await this.#pause(25_000)
    }
    end()
    if (deed === 'hands on' && isHeld(lock)) await this.#adopt(this.#random.one(this.#processes), lock.transfer())
    else await lock.release()
  }

  /** If that fails, it holds as it did before. */
  async #extend(lock: DistributedLock, ttls: readonly number[]): Promise<void> {
    await lock.extend(this.#random.one(ttls)).catch((error: unknown) => this.#failed(error))
  }

  /** Once more, if it fails. */
  async #adopt(caller: MadeUpProcess, text: string): Promise<void> {
    const askedAt = this.#world.clock.now()
    const lock = await caller.locks.adopt(text).catch(() => caller.locks.adopt(text))
    const end = this.#begins(caller, lock, askedAt)
    await this.#pause(500)
    end()
    await lock.release()
  }

  #begins({ name }: MadeUpProcess, lock: DistributedLock, askedAt: number): () => void {
    return this.#judge.begins(`/${lock.key}/`, name, askedAt, { fence: lock.fence, isHeld: () => isHeld(lock) })
  }

  /** Its own, and perhaps another process takes it up. */
  async #useSession(caller: MadeUpProcess): Promise<void> {
    const session = await caller.locks.session({ ttlMs: 5_000 })
    await this.#useMutexes(caller, session)
    if (this.#random.next() < 0.5) return session.close()
    await session.orphan()
    const heir = this.#random.one(this.#processes)
    const again = await heir.locks.session({ lease: session.lease })
    await this.#useMutexes(heir, again)
    await again.close()
  }

  /** In what it has let go of it is in nobody's way, for as long as it lasts. */
  async #useLongSession(caller: MadeUpProcess): Promise<void> {
    const session = await caller.locks.session({ ttlMs: this.#random.one([10_000, 60_000, 120_000]) })
    const use = async (prefix: string) => {
      while (!this.#isOver && !session.signal.aborted) await this.#useMutex(caller, session, prefix).catch((error: unknown) => this.#failed(error))
    }
    await Promise.all(MUTEXES.map(use))
    await this.#world.pause(SETTLING_MS)
    const isLive = !session.signal.aborted
    const left = this.#world.etcd.keys.filter((key) => MUTEXES.some((name) => key === `${name}/${session.lease.toString(16)}`))
    if (isLive && left.length > 0) this.#judge.complain(`A session has left ${left.join(' ')} behind.`, left)
    await session.close()
  }

  async #useMutexes(caller: MadeUpProcess, session: Session): Promise<void> {
    try {
      for (let i = 0; i < 4 && !this.#isOver && !session.signal.aborted; i++) await this.#useMutex(caller, session, this.#random.one(MUTEXES))
    } catch (error) {
      // What could not be unlocked is nobody's to take up.
      await session.close()
      throw error
    }
  }

  async #useMutex({ name }: MadeUpProcess, session: Session, prefix: string): Promise<void> {
    const mutex = new Mutex(session, prefix)
    const askedAt = this.#world.clock.now()
    try {
      await (this.#random.next() < 0.5 ? mutex.lock({ signal: this.#patience(this.#random.one([50, 1_000, LONGEST_WAIT_MS])) }) : mutex.tryLock())
    } catch (error) {
      if (error !== GIVEN_UP) this.#failed(error)
      return this.#pause(50)
    }
    const { fence } = mutex
    const end = this.#judge.begins(`${prefix}/`, name, askedAt, { fence, isHeld: () => !mutex.signal.aborted })
    await this.#pause(300)
    end()
    await mutex.unlock()
  }

  /** Two sessions may have been taken up of which each has what the other waits for, by requests of who had them before that came late. */
  #patience(ms: number): AbortSignal {
    const leaving = new AbortController()
    this.#world.clock.timer(ms, () => leaving.abort(GIVEN_UP), 'background')
    return leaving.signal
  }

  #pause(mostMs: number): Promise<void> {
    return this.#world.pause(mostMs * this.#random.next())
  }
}

const GIVEN_UP = new Error('given up by the caller')

class Schedule {
  readonly #kind: Kind
  readonly #random: Random
  readonly #world = new MadeUpWorld()
  readonly #judge: Judge
  readonly #processes: readonly MadeUpProcess[]
  readonly #traffic: Traffic
  #isHealed = false

  constructor(kind: Kind, seed: number) {
    this.#kind = kind
    this.#random = new Random(seed)
    this.#judge = new Judge(this.#world, kind.fates.length > 0)
    this.#processes = NAMES.map((name) => this.#begin(name))
    this.#traffic = new Traffic(this.#world, this.#processes, this.#judge, this.#random, kind)
  }

  async run(): Promise<string | undefined> {
    this.#traffic.start()
    await this.#disturb()
    this.#traffic.end()
    this.#isHealed = true
    await this.#finish()
    await this.#lookAtTheRest()
    await this.#close()
    if (this.#judge.holds === 0) this.#judge.complain('Nobody ever held anything.')
    return this.#judge.verdict
  }

  complain(what: string): void {
    this.#judge.complain(what)
  }

  #begin(name: string): MadeUpProcess {
    const random = this.#random
    const one = this.#world.process(name, { ttlMs: random.one([2_000, 5_000, 10_000]) })
    const { client } = one
    client.latencyMs = () => (random.next() < 0.02 ? random.between(0, 100) : random.between(1, 5))
    client.lateMs = () => (random.next() < 0.5 ? random.between(2_000, 6_000) : random.between(0, 2_000))
    client.fateOf = (call) => {
      if (client.isCutOff) return random.one(['answer lost', 'request lost', 'not sent', call === 'txn' ? 'late' : 'request lost'] as const)
      // There are many others to each of these, and what comes of them is tried again.
      const rate = call === 'txn' ? this.#kind.faultRate : this.#kind.faultRate / 5
      return this.#isHealed || this.#kind.fates.length === 0 || random.next() >= rate ? 'well' : random.one(this.#kind.fates)
    }
    return one
  }

  async #disturb(): Promise<void> {
    const { fates, cutsOff } = this.#kind
    for (let ms = 0; ms < RUN_MS; ms += STEP_MS) {
      await this.#world.clock.advance(STEP_MS)
      const { client } = this.#random.one(this.#processes)
      if (cutsOff && this.#random.next() < CUT_OFF_RATE) client.cutOff(this.#random.between(1_000, 15_000))
      if (fates.length > 0 && this.#random.next() < WATCHES_LOST_RATE) client.loseWatches()
    }
  }

  async #finish(): Promise<void> {
    const isOver = () => this.#traffic.running === 0
    if (!(await this.#within(PATIENCE_MS, isOver))) this.#judge.complain(`${this.#traffic.running} are stranded.`)
  }

  async #lookAtTheRest(): Promise<void> {
    await this.#world.clock.advance(SETTLING_MS)
    const left = this.#world.etcd.keys.filter((key) => !key.includes('/%/'))
    if (left.length > 0) this.#judge.complain(`Left behind: ${left.join(' ')}`)
  }

  async #close(): Promise<void> {
    let open = this.#processes.length
    for (const { locks } of this.#processes) void locks.close().finally(() => open--)
    if (!(await this.#within(CLOSING_MS, () => open === 0))) this.#judge.complain(`${open} do not close.`)
  }

  /** Also what goes by the process's own timers. */
  async #within(ms: number, isDone: () => boolean): Promise<boolean> {
    for (let passed = 0; passed < ms && !isDone(); passed += STEP_MS) {
      await this.#world.clock.advance(STEP_MS)
      vi.advanceTimersByTime(STEP_MS)
    }
    return isDone()
  }
}

/** What was wrong, and what led to it; undefined if nothing. */
export async function simulate(kind: Kind, seed: number): Promise<string | undefined> {
  // What the code under test leaves to chance, and what it does by the clocks of the process.
  const chance = new Random(~seed)
  vi.spyOn(Math, 'random').mockImplementation(() => chance.next())
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date', 'performance'] })
  onTestFinished(() => {
    vi.restoreAllMocks()
    vi.useRealTimers()
  })
  const schedule = new Schedule(kind, seed)
  const hear = (reason: unknown) => schedule.complain(`Nobody listened: ${(reason as Error).stack ?? String(reason)}`)
  process.on('unhandledRejection', hear)
  onTestFinished(() => void process.off('unhandledRejection', hear))
  return schedule.run()
}
