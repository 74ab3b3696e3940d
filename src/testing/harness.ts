/**
 * What the cases stand on: a world is the store as one test sees it (a prefix of its own), and the processes it has opened
 * there, each with a connection of its own and a record of its wake-ups.
 */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type {
  Backend, BackendFactory, Blocker, Claim, ClaimState, ReleaseState, RenewState, ResourceState, RevokeState, Traits, WakeUp,
} from '../core/backend.js'
import { systemClock, type Clock } from '../core/clock.js'
import type { ManagerOptions } from '../core/options.js'
import { tokenOf } from '../core/token.js'
import { createLocks, type LockManager } from '../lock-manager.js'

/** Gives the factory of another process: its own connection to the same store. */
export type Open = () => BackendFactory | Promise<BackendFactory>

export type Granted = Extract<WakeUp, { kind: 'granted' }>
type Told = Exclude<WakeUp['kind'], 'look'>
export type Held = Extract<ClaimState, { status: 'held' }>
export type Queued = Extract<ClaimState, { status: 'queued' }>
export type Refused = Extract<ClaimState, { status: 'refused' }>

/** So long that it does not expire in a test, however slow the machine. */
export const LONG_MS = 60_000
/** For what has to happen, before a test gives up. */
const PATIENCE_MS = 4_000
/** Between asking and asking again, where grants are not told. */
const POLL_MS = 10
/** As often as a manager's default. */
const RETRY_MS = 50

export interface World {
  readonly traits: Traits
  readonly prefix: string
  /** A TTL that a test can wait for. */
  readonly shortMs: number
  /** Opens a process; by default all of them use the world's prefix. */
  open(prefix?: string): Promise<Process>
  three(): Promise<[Process, Process, Process]>
  /** Opens a manager, as another process has it; `changed` may stand between it and its store. */
  locks(options?: ManagerOptions, changed?: (backend: Backend) => Partial<Backend>): Promise<LockManager>
  /** A claim of a lock with a TTL that does not matter, unless told otherwise. */
  claim(resource: string, settings?: Partial<Claim>): Claim
  /** Lets a claim that is held expire, with no race against the clock: it is held until the call. */
  letExpire(process: Process, claim: Claim): Promise<void>
  /** Waits until a claim of `shortMs` that holds by now is surely over. */
  pastExpiry(): Promise<void>
  close(): Promise<void>
  /** Throws if a promise was rejected meanwhile with nobody listening. */
  checkRejections(): void
}

export function openWorld(open: Open, traits: Traits): World {
  const opened: Process[] = []
  const managers: LockManager[] = []
  const unheard: unknown[] = []
  const hear = (reason: unknown) => unheard.push(reason)
  process.on('unhandledRejection', hear)

  const prefix = `conformance-${randomId().slice(0, 12)}`
  const shortMs = Math.max(traits.minTtlMs, 100)
  const world: World = {
    traits,
    prefix,
    shortMs,
    async open(itsPrefix = prefix) {
      const one = new Process(await open(), itsPrefix, traits)
      opened.push(one)
      await one.backend.ready()
      return one
    },
    three: () => Promise.all([world.open(), world.open(), world.open()]),
    async locks(options, changed) {
      const factory = await open()
      const backend: BackendFactory = (scope) => {
        const inner = factory(scope)
        return changed ? instead(inner, changed(inner)) : inner
      }
      const locks = createLocks(backend, { prefix, logger: QUIET, ...options })
      managers.push(locks)
      await locks.ready()
      return locks
    },
    claim: (resource, settings) => ({ id: randomId(), resource, take: 1, limit: 1, ttlMs: LONG_MS, ...settings }),
    async letExpire(holder, claim) {
      const state = await holder.renew(claim, shortMs, true)
      assert.equal(state.status, 'held', 'a claim has to be held in order to expire')
      await world.pastExpiry()
    },
    // A store may count whole milliseconds, or look only now and then.
    pastExpiry: () => sleep(shortMs + 50),
    async close() {
      await Promise.all([...opened, ...managers].map((one) => one.close()))
      // Node reports a rejection that nobody handles after the microtasks of its turn.
      await sleep(0)
      process.off('unhandledRejection', hear)
    },
    checkRejections() {
      assert.deepEqual(unheard, [], 'promises were rejected with nobody listening')
    },
  }
  return world
}

/** What tests do to a store is no news. */
const QUIET = { info() {}, warn() {}, error() {} }

/** A backend of which some parts are others. */
function instead(backend: Backend, parts: Partial<Backend>): Backend {
  return new Proxy(backend, {
    get(target, name) {
      const part: unknown = Reflect.get(name in parts ? parts : target, name)
      return typeof part === 'function' ? part.bind(target) : part
    },
  })
}

/** Under which epoch a claim holds, or held. */
const epochs = new WeakMap<Claim, bigint>()

/** One process: a backend of its own, asked about one claim at a time. */
export class Process {
  readonly owner = `host-${randomId().slice(0, 8)}`
  readonly clock: Clock = systemClock()
  readonly backend: Backend
  readonly wakeUps: WakeUp[] = []
  readonly #traits: Traits
  readonly #listeners = new Set<() => void>()
  /** How many wake-ups it had heard when it last asked about a claim: they cannot be about what was answered. */
  readonly #heardWhenAsked = new Map<string, number>()
  #closed = false

  constructor(factory: BackendFactory, prefix: string, traits: Traits) {
    this.#traits = traits
    this.backend = factory({
      prefix,
      owner: this.owner,
      clock: this.clock,
      retryMs: RETRY_MS,
      wake: (wakeUp) => {
        this.wakeUps.push(wakeUp)
        for (const listener of this.#listeners) listener()
      },
      warn: () => {},
    })
  }

  /** Claims, and keeps the place that it is given, as the core does. */
  async ask(claim: Claim, ifBusy: 'queue' | 'leave'): Promise<ClaimState> {
    this.#heardWhenAsked.set(claim.id, this.wakeUps.length)
    const state = only(await this.backend.claim([claim], ifBusy))
    if (state.status === 'queued') claim.place = state.place
    if (state.status === 'held') epochs.set(claim, state.epoch)
    return state
  }

  /** Claims, and must hold at once. */
  async hold(claim: Claim, ifBusy: 'queue' | 'leave' = 'queue'): Promise<Held> {
    return expectStatus(await this.ask(claim, ifBusy), 'held')
  }

  /** Claims, and must wait. */
  async queue(claim: Claim): Promise<Queued> {
    return expectStatus(await this.ask(claim, 'queue'), 'queued')
  }

  /** Claims without waiting, and must not get it. */
  async refused(claim: Claim): Promise<Refused> {
    return expectStatus(await this.ask(claim, 'leave'), 'refused')
  }

  async renew(claim: Claim, ttlMs: number, exact = false): Promise<RenewState> {
    return only(await this.backend.renew([{ claim, ttlMs, exact, counting: true }]))
  }

  /** Takes over, as `claim`, what another process holds as `given`. */
  async takeOver(claim: Claim, given: Claim, from: Process, ttlMs = LONG_MS): Promise<RenewState['status']> {
    const epoch = epochs.get(given) ?? 0n
    given.isTold = true
    const renewal = { claim, ttlMs, exact: false, from: tokenOf(given.id, epoch, from.owner) }
    const { status } = only(await this.backend.renew([renewal]))
    if (status === 'held') epochs.set(claim, epoch)
    return status
  }

  async release(claim: Claim): Promise<ReleaseState['status']> {
    return only(await this.backend.release([claim])).status
  }

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.backend.revoke(resource, when)
  }

  async inspect(prefix = ''): Promise<ResourceState[]> {
    const resources: ResourceState[] = []
    for await (const resource of this.backend.inspect(prefix)) resources.push(resource)
    return resources.sort((a, b) => (a.key < b.key ? -1 : 1))
  }

  /** What it has been told about a claim. */
  told(claim: Claim, kind: Told): WakeUp[] {
    return this.wakeUps.filter((wakeUp) => wakeUp.kind === kind && wakeUp.claimId === claim.id)
  }

  /** Waits until a queued claim holds: until it is told so, or by asking where that is the only way. */
  async granted(claim: Claim): Promise<Granted> {
    const polls = this.#traits.wakes === 'poll'
    return this.#until(`${claim.resource} to be granted`, polls, async () => {
      const news = this.wakeUps.slice(this.#heardWhenAsked.get(claim.id))
      const told = news.find((wakeUp) => wakeUp.kind === 'granted' && wakeUp.claimId === claim.id)
      if (told) return told as Granted
      // Where wake-ups may have been lost, the contract is to ask.
      if (!polls && !news.some((wakeUp) => mayConcern(wakeUp, claim))) return undefined
      const state = await this.ask(claim, 'queue')
      if (state.status !== 'held') return undefined
      const { epoch, waiting } = state
      return { kind: 'granted', resource: claim.resource, claimId: claim.id, epoch, since: undefined, waiting }
    })
  }

  /** Waits until it knows that a claim of its own was revoked: it is told, or a renewal says so. */
  async revoked(claim: Claim): Promise<void> {
    await this.#until(`${claim.resource} to be revoked`, true, async () => {
      if (this.told(claim, 'revoked').length > 0) return true
      return (await this.renew(claim, claim.ttlMs)).status !== 'held' ? true : undefined
    })
  }

  /** Waits for a wake-up. */
  async toldOf(claim: Claim, kind: Told): Promise<void> {
    await this.#until(`${claim.resource} to be told of`, false, async () => (this.told(claim, kind).length > 0 ? true : undefined))
  }

  /** Asks until the claim holds: for what need not be told, such as a wait that outlasts a dead process. */
  heldByAsking(claim: Claim, patienceMs = PATIENCE_MS): Promise<Held> {
    return this.#until(`${claim.resource} to be held`, true, async () => {
      const state = await this.ask(claim, 'queue')
      return state.status === 'held' ? state : undefined
    }, patienceMs)
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.backend.close()
  }

  async #until<T>(what: string, polls: boolean, find: () => Promise<T | undefined>, patienceMs = PATIENCE_MS): Promise<T> {
    const deadline = performance.now() + patienceMs
    for (;;) {
      const heard = this.wakeUps.length
      const found = await find()
      if (found !== undefined) return found
      const left = deadline - performance.now()
      if (left <= 0) assert.fail(`waited ${patienceMs} ms in vain for ${what}; wake-ups so far: ${show(this.wakeUps)}`)
      if (this.wakeUps.length === heard) await this.#pause(polls ? Math.min(POLL_MS, left) : left)
    }
  }

  /** Until the next wake-up, at most so long. */
  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer)
        this.#listeners.delete(done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      this.#listeners.add(done)
    })
  }
}

function mayConcern(wakeUp: WakeUp, claim: Claim): boolean {
  return wakeUp.kind === 'look' && (wakeUp.resource === undefined || wakeUp.resource === claim.resource)
}

function randomId(): string {
  return randomBytes(16).toString('hex')
}

function only<T>(list: readonly T[]): T {
  assert.equal(list.length, 1, `one answer for one claim, not ${show(list)}`)
  return list[0]!
}

export function expectStatus<State extends { status: string }, Status extends State['status']>(
  state: State,
  status: Status,
): Extract<State, { status: Status }> {
  assert.equal(state.status, status, `expected ${status}, got ${show(state)}`)
  return state as Extract<State, { status: Status }>
}

export function statuses(states: readonly { readonly status: string }[]): string[] {
  return states.map(({ status }) => status)
}

/** The owner in the way, and how many wait: the parts of a blocker that do not move with time. */
export function inTheWay(blocker: Blocker): { owner: string | undefined; ahead: number; waiting: number } {
  return { owner: blocker.holder?.owner, ahead: blocker.ahead, waiting: blocker.waiting }
}

/** With some room for stores that count in whole milliseconds, or look at their clock only once in a while. */
export function assertBetween(ms: number | undefined, low: number, high: number): void {
  const room = 25
  assert.ok(ms !== undefined && ms >= low - room && ms <= high + room, `${ms} ms is not between ${low} and ${high}`)
}

/** For messages: JSON knows no bigint, and hides what an error says. */
export function show(value: unknown): string {
  return JSON.stringify(value, (_key, part: unknown) => {
    if (typeof part === 'bigint') return `${part}n`
    return part instanceof Error ? `${part.name}: ${part.message}` : part
  })
}
