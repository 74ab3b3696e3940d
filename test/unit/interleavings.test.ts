/**
 * Every order in which requests, replies and wake-ups can arrive, as far as fast-check finds them: each leg of each request is
 * a task of its scheduler, requests of one process may overtake each other, wake-ups and replies may be lost, claims may be
 * carried out twice. Time is a manual clock that moves whenever the schedule says so. Whoever hears of an event may abort waits,
 * release locks or close a manager in the middle of the step.
 */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { Backend, BackendFactory, WakeUp } from '../../src/core/backend.js'
import {
  BackendError, HoldfastError, LockNotAcquiredError, LockNotHeldError, ManagerClosedError, OwnershipLostError, type DistributedLock,
  type LockOptions,
} from '../../src/index.js'
import { LockManager } from '../../src/lock-manager.js'
import { ManualClock, settle } from '../support/manual-clock.js'

const TTL_MS = 1_000

/** What a process does with the lock once; numbers are virtual milliseconds. */
type Errand =
  | { readonly kind: 'lock'; readonly holdMs: number; readonly options: LockOptions }
  | { readonly kind: 'stall'; readonly ms: number }
  | { readonly kind: 'try' }
  | { readonly kind: 'abort'; readonly afterMs: number }
  | { readonly kind: 'timeout'; readonly waitMs: number }
  | { readonly kind: 'extend'; readonly ttlMs: number; readonly thenMs: number }
  /** Gives the lock away, in a message that is delivered so many times, to one process after another. */
  | { readonly kind: 'transfer'; readonly times: number; readonly to: number }
  | { readonly kind: 'revoke'; readonly now: boolean }
  | { readonly kind: 'close' }
  | { readonly kind: 'unlock' }

const span = (max: number) => fc.integer({ min: 0, max })

const ttl = fc.integer({ min: 100, max: 3 * TTL_MS })

/** Mostly what shares a seat with others of its process. */
const options = fc.oneof(
  { weight: 4, arbitrary: fc.constant<LockOptions>({}) },
  { weight: 1, arbitrary: fc.constantFrom<LockOptions>({ fairness: 'strict' }, { ttlMs: 2 * TTL_MS }, { autoRenew: false }) },
  { weight: 1, arbitrary: fc.constantFrom<LockOptions>({ maxHoldMs: 300 }, { maxHoldMs: 2_500 }, { metadata: { m: 1 } }, { type: 't' }) },
)

/** Short ones make for hand-overs in a row. */
const holdTime = fc.oneof(span(5), span(4 * TTL_MS))

const errand: fc.Arbitrary<Errand> = fc.oneof(
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('lock' as const), holdMs: holdTime, options }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('stall' as const), ms: span(2 * TTL_MS) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('try' as const) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('abort' as const), afterMs: span(400) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('timeout' as const), waitMs: fc.integer({ min: 1, max: 400 }) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('extend' as const), ttlMs: ttl, thenMs: ttl }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('transfer' as const), times: fc.integer({ min: 1, max: 3 }), to: fc.nat(3) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('revoke' as const), now: fc.constant(false) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('unlock' as const) }) },
)

/** How the network treats one request or wake-up. */
type Fate = 'ok' | 'lost' | 'failed' | 'twice'

/** Out of a hundred: how many are lost, fail, and are carried out twice. */
interface Network {
  readonly lost: number
  readonly failed: number
  readonly twice: number
}

const network = fc.constantFrom<Network>(
  { lost: 0, failed: 0, twice: 0 },
  { lost: 0, failed: 0, twice: 30 },
  { lost: 7, failed: 7, twice: 7 },
  { lost: 40, failed: 10, twice: 0 },
)

const EVENTS = [
  'waiting', 'acquired', 'refused', 'cancelled', 'released', 'transferred', 'revoked', 'release-failed', 'claim-failed', 'renew-failed',
  'lost',
]

/** One that ends early. */
const closing = fc.record({ kind: fc.constant('close' as const) })

class World {
  readonly clock = new ManualClock()
  readonly store: BackendFactory = memoryBackend({ now: () => this.clock.now() })
  readonly #scheduler: fc.Scheduler
  readonly #network: Network
  readonly #dice: Iterator<number>
  /** Every handle that a process works under right now. */
  readonly working = new Set<DistributedLock>()
  highestFence = 0n
  /** Somebody did not get an answer in time, and may have left something to its TTL. */
  hadTroubles = false

  constructor(scheduler: fc.Scheduler, itsNetwork: Network, dice: Iterator<number>) {
    this.#scheduler = scheduler
    this.#network = itsNetwork
    this.#dice = dice
  }

  readonly managers: LockManager[] = []

  manager(name: string): LockManager {
    const manager = new LockManager((scope) => this.#unreliable(scope), { owner: name, ttlMs: TTL_MS }, this.clock)
    this.managers.push(manager)
    return manager
  }

  #unreliable: BackendFactory = (scope) => {
    const wake = (wakeUp: WakeUp) => {
      const fate = this.#fate()
      if (fate === 'lost' || fate === 'failed') return
      void this.#leg(`wake ${wakeUp.kind}`).then(() => scope.wake(wakeUp))
      if (fate === 'twice') void this.#leg('wake again').then(() => scope.wake(wakeUp))
    }
    const backend = this.store({ ...scope, wake })
    // Memory needs no heartbeat; here wake-ups get lost.
    return {
      name: backend.name,
      traits: { ...backend.traits, heartbeatMs: 200 },
      ready: () => backend.ready(),
      claim: (claims, ifBusy) => this.#request('claim', () => backend.claim(claims, ifBusy)),
      renew: (renewals) => this.#request('renew', () => backend.renew(renewals)),
      release: (claims) => this.#request('release', () => backend.release(claims)),
      revoke: (resource, when) => this.#request('revoke', () => backend.revoke(resource, when)),
      inspect: (prefix) => backend.inspect(prefix),
      close: () => backend.close(),
    } satisfies Backend
  }

  async #request<T>(name: string, send: () => Promise<T>): Promise<T> {
    const fate = this.#fate()
    await this.#leg(`${name} →`)
    const reply = await send()
    // A client that sends again what was not answered; not a release, of which the second would say "not held".
    if (fate === 'twice' && name !== 'release') void this.#leg(`${name} → again`).then(send).catch(() => {})
    if (fate === 'lost') return new Promise<T>(() => {})
    await this.#leg(`→ ${name}`)
    if (fate === 'failed') throw new BackendError('The connection was reset.', { transient: true })
    return reply
  }

  #leg(name: string): Promise<void> {
    return this.#scheduler.schedule(Promise.resolve(), name)
  }

  #fate(): Fate {
    const { lost, failed, twice } = this.#network
    const dice = this.#roll(100)
    if (dice < lost) return 'lost'
    if (dice < lost + failed) return 'failed'
    return dice < lost + failed + twice ? 'twice' : 'ok'
  }

  #roll(sides: number): number {
    return (this.#dice.next().value as number) % sides
  }

  /** Moves things on until `done`: a leg of a request, or a moment of time. */
  async run(done: () => boolean): Promise<void> {
    const startedAt = this.clock.now()
    // Requests that hang for ever are asked again ever more patiently.
    const patienceMs = this.#network.lost > 0 ? 3_600_000 : 120_000
    while (!done()) {
      await settle()
      this.check()
      if (this.#scheduler.count() > 0 && this.#roll(10) < 7) await this.#scheduler.waitOne()
      else await this.clock.advance(1 + this.#roll(100))
      this.check()
      if (this.clock.now() - startedAt > patienceMs) throw new Error(`Somebody is stranded after ${patienceMs} ms.`)
    }
  }

  async leftBehind(): Promise<unknown[]> {
    const found: unknown[] = []
    const { clock } = this
    const scope = { prefix: 'holdfast', owner: 'inspector', clock, retryMs: 50, wake() {}, warn() {} }
    for await (const resource of this.store(scope).inspect('')) found.push(resource)
    return found
  }

  /** Everything that is on its way arrives; no time passes. */
  async drain(): Promise<void> {
    for (await settle(); this.#scheduler.count() > 0; await settle()) await this.#scheduler.waitOne()
  }

  /** Of all who work at this moment, at most one may believe that it holds. */
  check(): void {
    const believers = [...this.working].filter((lock) => believes(lock))
    if (believers.length > 1) throw new Error(`Two hold: fences ${believers.map(({ fence }) => fence).join(' and ')}`)
  }

  /** Somebody hears of an event, and acts in the middle of the step. */
  heard(owner: string): void {
    if (this.#roll(100) >= 12) return
    const deed = this.#roll(3)
    if (deed === 0) for (const wait of this.waits) if (this.#roll(2) === 0) wait.abort(ABORTED)
    if (deed === 1) for (const lock of this.working) lock.release().catch(() => {})
    if (deed === 2 && this.#roll(4) === 0) void this.managers.find((manager) => manager.owner === owner)?.close()
  }

  /** Whatever was left is over by now, and nobody renews it. */
  async close(): Promise<void> {
    let open = this.managers.length
    for (const manager of this.managers) void manager.close().finally(() => open--)
    await this.run(() => open === 0)
    const closedAt = this.clock.now()
    await this.run(() => this.clock.now() - closedAt > 4 * TTL_MS)
    expect(await this.leftBehind()).toEqual([])
  }

  readonly waits: AbortController[] = []

  began(lock: DistributedLock): void {
    this.working.add(lock)
    this.check()
    expect(lock.fence).toBeGreaterThan(this.highestFence)
    this.highestFence = lock.fence
  }
}

function believes(lock: DistributedLock): boolean {
  try {
    lock.assertHeld()
    return true
  } catch {
    return false
  }
}

async function pause(clock: ManualClock, ms: number): Promise<void> {
  await new Promise<void>((resume) => clock.timer(ms, resume, 'awaited'))
}

async function run(world: World, locks: LockManager, errands: readonly Errand[]): Promise<void> {
  for (const one of errands) {
    try {
      await runOne(world, locks, one)
    } catch (error) {
      // What a caller has to expect when requests get lost; anything else fails the test.
      const expected = error instanceof LockNotAcquiredError || error instanceof OwnershipLostError || error instanceof LockNotHeldError
      const troubles = error instanceof BackendError || error instanceof ManagerClosedError || isClosed(error)
      if (!expected && !troubles && error !== ABORTED) throw error
      if (troubles) world.hadTroubles = true
    }
  }
}

/** What the store in memory says to one that has left. */
function isClosed(error: unknown): boolean {
  return error instanceof HoldfastError && error.code === 'CONNECTOR'
}

const ABORTED = new Error('aborted by the caller')

async function runOne(world: World, locks: LockManager, one: Errand): Promise<void> {
  const { clock } = world
  if (one.kind === 'close') return locks.close()
  if (one.kind === 'unlock') return locks.unlock('k')
  if (one.kind === 'revoke') return void (await locks.forceRelease('k', { now: one.now }))
  const controller = new AbortController()
  world.waits.push(controller)
  if (one.kind === 'abort') clock.timer(one.afterMs, () => controller.abort(ABORTED), 'background')
  const lock =
    one.kind === 'try'
      ? await locks.tryLock('k')
      : await locks.lock('k', {
          signal: controller.signal,
          ...(one.kind === 'timeout' ? { waitMs: one.waitMs } : {}),
          ...(one.kind === 'lock' ? one.options : {}),
        })
  if (!lock) return
  const held = lock
  world.began(held)
  try {
    if (one.kind === 'lock') await pause(clock, one.holdMs)
    // Nothing of this process runs meanwhile, but the world goes on: that is what the deadline is for.
    if (one.kind === 'stall') clock.jump(one.ms)
    if (one.kind === 'extend') {
      await pause(clock, TTL_MS / 2)
      await held.extend(one.ttlMs)
      await pause(clock, one.ttlMs)
      await held.extend(one.thenMs)
      await pause(clock, one.thenMs)
    }
    if (one.kind === 'transfer') return await giveAway(world, held, one)
    await pause(clock, 1)
  } finally {
    // The guarded work is over, whatever becomes of the release.
    world.working.delete(held)
    await held.release()
  }
}

async function giveAway(world: World, lock: DistributedLock, { times, to }: { times: number; to: number }): Promise<void> {
  const text = lock.transfer()
  world.working.delete(lock)
  const takeUp = async (locks: LockManager) => {
    const adopted = await locks.adopt(text)
    world.began(adopted)
    try {
      await pause(world.clock, 1)
    } finally {
      world.working.delete(adopted)
      await adopted.release()
    }
  }
  const { managers } = world
  const results = await Promise.allSettled(Array.from({ length: times }, (_, i) => takeUp(managers[(to + i) % managers.length]!)))
  for (const result of results) if (result.status === 'rejected') throw result.reason
}

describe('in every order of requests, replies, wake-ups and time', () => {
  it('at most one holds, fences grow, and nobody is stranded', { timeout: 120_000 }, async () => {
    const errands = fc.array(fc.oneof({ weight: 30, arbitrary: errand }, { weight: 1, arbitrary: closing }), { minLength: 1, maxLength: 5 })
    const unheard: unknown[] = []
    const hear = (reason: unknown) => unheard.push(reason)
    process.on('unhandledRejection', hear)
    onTestFinished(() => void process.off('unhandledRejection', hear))
    const dice = fc.infiniteStream(fc.nat({ max: 99 }))
    const callers = fc.array(errands, { minLength: 1, maxLength: 4 })
    const processes = fc.array(callers, { minLength: 2, maxLength: 4 })
    await fc.assert(
      fc.asyncProperty(fc.scheduler(), network, dice, processes, fc.boolean(), async (scheduler, itsNetwork, itsDice, lists, isHeard) => {
        const world = new World(scheduler, itsNetwork, itsDice)
        const listener = (message: unknown) => world.heard((message as { owner: string }).owner)
        if (isHeard) for (const name of EVENTS) subscribe(`holdfast:${name}`, listener)
        let running = lists.flat().length
        const failures: unknown[] = []
        const managers = lists.map((_, i) => world.manager(`p${i}`))
        for (const [i, itsCallers] of lists.entries()) {
          for (const list of itsCallers) {
            run(world, managers[i]!, list)
              .catch((error: unknown) => failures.push(error))
              .finally(() => running--)
          }
        }
        try {
          await world.run(() => running === 0)
        } finally {
          for (const name of EVENTS) unsubscribe(`holdfast:${name}`, listener)
        }
        expect(failures).toEqual([])
        // Where nothing is lost or repeated, nothing may be left behind either, such as a claim that overtook its own withdrawal.
        if (itsNetwork.lost + itsNetwork.failed + itsNetwork.twice === 0 && !world.hadTroubles) {
          await world.drain()
          expect(await world.leftBehind()).toEqual([])
        }
        await world.close()
        expect(unheard).toEqual([])
      }),
      { numRuns: Number(process.env['HOLDFAST_INTERLEAVINGS'] ?? 500) },
    )
  })
})
