/** Callers of one process share a place on the store, and hand the lock over among themselves, in bounded turns. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  BackendError, ConfigurationError, LockNotAcquiredError, ManagerClosedError, OwnershipLostError, type DistributedLock,
  type LockManager, type LockOptions,
} from '../../src/index.js'
import type { EventName } from '../../src/core/events.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { all, manualWorld, watch } from '../support/manual-world.js'

const TURNS = 1_024n
const epochOf = ({ fence }: { fence: bigint }) => fence / TURNS
const turnOf = ({ fence }: { fence: bigint }) => Number(fence % TURNS)

/** What of a TTL of 10,000 a holder may count on: the store's clock may run a little faster, and work has to notice the loss. */
const CERTAIN_MS = 9_790

function world() {
  const the = manualWorld()
  const { store, clock } = the
  const log: string[] = []
  const pause = (ms: number) => new Promise<void>((resume) => void clock.timer(ms, resume, 'awaited'))
  return {
    ...the,
    /** Who held the lock, in order. */
    log,
    /** Callers who come at the same moment. */
    callers: (locks: LockManager, count: number, options?: LockOptions) =>
      Array.from({ length: count }, () => watch(locks.lock('k', options))),
    /** Takes the lock, notes its name and releases it after a while, so many times. */
    work: async (locks: LockManager, name: string, ms: number, { times = 1, ...options }: LockOptions & { times?: number } = {}) => {
      for (let i = 0; i < times; i++) {
        const lock = await locks.lock('k', options)
        log.push(name)
        if (ms > 0) await pause(ms)
        await lock.release()
      }
    },
    /** How many claims the store has been asked for. */
    places: () => new Set(store.sent('claim').flatMap(({ claimIds }) => claimIds)).size,
    methods: () => store.requests.map(({ method }) => method),
  }
}

/** Lets those be told who are told at once, and gives the event loop no turn. */
async function microtasks(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve()
}

/** Calls the listener in the very moment of each such event. */
function hear(name: EventName, listener: () => void): void {
  subscribe(`holdfast:${name}`, listener)
  onTestFinished(() => void unsubscribe(`holdfast:${name}`, listener))
}

type Caller = ReturnType<typeof watch<DistributedLock>>

/** Each in turn has to have the lock by now, and releases it. */
async function serve(callers: readonly Caller[]): Promise<DistributedLock[]> {
  const served: DistributedLock[] = []
  for (const caller of callers) {
    await settle()
    expect(caller.error).toBeUndefined()
    caller.value!.assertHeld()
    served.push(caller.value!)
    expect(await caller.value!.release()).toBe(true)
  }
  await settle()
  return served
}

describe('callers of one process', () => {
  it('share one place on the store', async () => {
    const { manager, store, callers, places } = world()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    const before = places()
    callers(a, 5)
    await settle()
    expect(places() - before).toBe(1)
    expect((await all(b.inspect()))[0]!.waiters).toEqual([{ owner: a.owner, take: 1 }])
    expect(store.sent('claim')).toHaveLength(2)
  })

  it('are served in the order in which they came, with one claim and one release for all of them', async () => {
    const { manager, callers, methods } = world()
    const waiting = callers(manager(), 5)
    for (let i = 0; i < 5; i++) {
      await settle()
      expect(waiting.map(({ state }) => state)).toEqual([...Array(i + 1).fill('resolved'), ...Array(4 - i).fill('pending')])
      waiting[i]!.value!.assertHeld()
      expect(methods()).toEqual(['claim'])
      await waiting[i]!.value!.release()
    }
    expect(methods()).toEqual(['claim', 'release'])
  })

  it('are served without asking the store, whether they came before or after the lock was acquired', async () => {
    const { manager, callers, methods } = world()
    const a = manager()
    const first = callers(a, 2)
    await settle()
    await serve([...first, ...callers(a, 2)])
    expect(methods()).toEqual(['claim', 'release'])
  })

  it('have fences of one epoch, each greater by one', async () => {
    const { manager, callers } = world()
    const served = await serve(callers(manager(), 5))
    expect(served.map(turnOf)).toEqual([0, 1, 2, 3, 4])
    expect(new Set(served.map(epochOf)).size).toBe(1)
  })

  it('exclude each other: none has it before the one before has let go', async () => {
    const { manager, callers } = world()
    const [first, second] = callers(manager(), 2)
    await settle()
    expect(second!.state).toBe('pending')
    const releasing = first!.value!.release()
    expect(() => first!.value!.assertHeld()).toThrow('it was released')
    expect(first!.value!.remainingMs).toBe(0)
    expect(await releasing).toBe(true)
    await settle()
    second!.value!.assertHeld()
  })

  it('release what they hold and no more: a second release is false, with no request, and leaves the next alone', async () => {
    const { manager, store, callers } = world()
    const [first, second] = callers(manager(), 3)
    await settle()
    const lock = first!.value!
    expect(await Promise.all([lock.release(), lock.release()])).toEqual([true, false])
    expect(await lock.release()).toBe(false)
    await settle()
    second!.value!.assertHeld()
    expect(store.sent('release')).toEqual([])
    expect(lock.signal.aborted).toBe(false)
  })

  it('that are served in memory are found by unlock()', async () => {
    const { manager, callers } = world()
    const a = manager()
    for (const caller of callers(a, 3)) {
      await settle()
      caller.value!.assertHeld()
      await a.unlock('k')
      expect(() => caller.value!.assertHeld()).toThrow('it was released')
    }
    await settle()
    await expect(a.unlock('k')).rejects.toThrow('is not locked by this manager')
  })

  it('that come when everybody has been served begin anew, with a greater fence', async () => {
    const { manager, callers } = world()
    const a = manager()
    const [, last] = await serve(callers(a, 2))
    const [next] = await serve(callers(a, 1))
    expect(next!.fence).toBeGreaterThan(last!.fence)
    expect(turnOf(next!)).toBe(0)
  })

  it('leave nothing behind, on the store or here', async () => {
    const { manager, clock, callers, unheard } = world()
    const a = manager()
    await serve(callers(a, 5, { waitMs: 5_000, signal: new AbortController().signal }))
    expect(await all(a.inspect())).toEqual([])
    await clock.advance(60_000)
    expect(clock.pending()).toBe(0)
    expect(unheard).toEqual([])
  })

  it('share a place with those who differ only in how long they wait, and may hold', async () => {
    const { manager, callers, places } = world()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    callers(a, 1)
    callers(a, 1, { waitMs: 5_000 })
    callers(a, 1, { maxHoldMs: 5_000 })
    callers(a, 1, { signal: new AbortController().signal, reentrant: true })
    watch(a.tryLock('k', { waitMs: 1_000 }))
    watch(a.withLock('k', () => {}))
    await settle()
    expect(places()).toBe(2)
  })

  it.each<LockOptions>([{ ttlMs: 9_000 }, { renewEveryMs: 1_000 }, { type: 'batch' }, { metadata: { job: 7 } }, { retryMs: 20 }])(
    'share no place with others who ask for %o, but these share one',
    async (options) => {
      const { manager, callers, places } = world()
      const [a, b] = [manager(), manager()]
      await b.lock('k')
      callers(a, 2)
      callers(a, 2, options)
      callers(a, 1)
      await settle()
      expect(places()).toBe(3)
      expect((await all(b.inspect()))[0]!.waiters).toHaveLength(2)
    },
  )

  it.each<LockOptions>([{ fairness: 'strict' }, { autoRenew: false }])('that ask for %o have a place each', async (options) => {
    const { manager, callers, places } = world()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    callers(a, 2)
    callers(a, 3, options)
    await settle()
    expect(places()).toBe(1 + 1 + 3)
  })

  it('that want strict fairness are served in the order of all processes', async () => {
    const { manager, work, log, clock } = world()
    const [a, b] = [manager(), manager()]
    for (const name of ['a0', 'b0', 'a1', 'b1', 'a2', 'b2']) {
      void work(name.startsWith('a') ? a : b, name, 1, { fairness: 'strict' })
      await settle()
    }
    await clock.advance(100)
    expect(log).toEqual(['a0', 'b0', 'a1', 'b1', 'a2', 'b2'])
  })

  it('that try once never join the line', async () => {
    const { manager, store, callers, places } = world()
    const a = manager()
    const waiting = callers(a, 3)
    await settle()
    const before = places()
    expect(await a.tryLock('k')).toBeNull()
    expect(await a.tryLock('k', { waitMs: 0 })).toBeNull()
    expect(places() - before).toBe(2)
    expect(store.sent('claim').at(-1)!.args[1]).toBe('leave')
    expect((await serve(waiting)).map(turnOf)).toEqual([0, 1, 2])
  })

  it('share no place on other keys, or in other managers', async () => {
    const { manager, places } = world()
    const a = manager()
    watch(a.lock('x'))
    watch(a.lock('y'))
    watch(manager({ prefix: 'other' }).lock('x'))
    await settle()
    expect(places()).toBe(3)
  })
})

describe('a turn', () => {
  it('goes on for as long as nobody else waits', async () => {
    const { manager, clock, work, log, methods } = world()
    const a = manager()
    for (const name of ['a0', 'a1', 'a2']) void work(a, name, 40, { times: 10 })
    await clock.advance(2_000)
    expect(log).toEqual(Array.from({ length: 30 }, (_, i) => `a${i % 3}`))
    expect(methods().filter((method) => method !== 'renew')).toEqual(['claim', 'release'])
  })

  it('lasts for one pass over those who were there when another process came, and then it is that one’s', async () => {
    const { manager, clock, work, log } = world()
    const [a, b] = [manager(), manager()]
    for (const name of ['a0', 'a1', 'a2', 'a3']) void work(a, name, 1)
    await settle()
    void work(b, 'b0', 1)
    await settle()
    for (const name of ['a4', 'a5']) void work(a, name, 1)
    await clock.advance(20)
    expect(log).toEqual(['a0', 'a1', 'a2', 'a3', 'b0', 'a4', 'a5'])
  })

  it('lasts for one pass over those who are there when it begins, if others wait already', async () => {
    const { manager, clock, work, log } = world()
    const [a, b, c] = [manager(), manager(), manager()]
    const first = await c.lock('k')
    for (const name of ['a0', 'a1', 'a2']) void work(a, name, 1)
    await settle()
    void work(b, 'b0', 1)
    await settle()
    await first.release()
    await settle()
    for (const name of ['a3', 'a4']) void work(a, name, 1)
    await clock.advance(20)
    expect(log).toEqual(['a0', 'a1', 'a2', 'b0', 'a3', 'a4'])
  })

  it('lasts for 2 ms even if that is more than one pass', async () => {
    const { manager, clock, work, log } = world()
    const [a, b] = [manager(), manager()]
    void work(a, 'a0', 0.5)
    await settle()
    void work(b, 'b0', 0.5)
    await settle()
    for (let i = 1; i < 7; i++) void work(a, `a${i}`, 0.5)
    await clock.advance(20)
    expect(log).toEqual(['a0', 'a1', 'a2', 'a3', 'b0', 'a4', 'a5', 'a6'])
  })

  it('lasts for no more than 50 ms even if that is less than one pass', async () => {
    const { manager, clock, work, log } = world()
    const [a, b] = [manager(), manager()]
    for (let i = 0; i < 12; i++) void work(a, 'a', 10)
    await settle()
    for (let i = 0; i < 12; i++) void work(b, 'b', 10)
    await clock.advance(1_000)
    expect(log.join('')).toBe('aaaaabbbbbaaaaabbbbbaabb')
  })

  it('counts from when it became known that others wait, not from its beginning', async () => {
    const { manager, clock, work, log } = world()
    const [a, b] = [manager(), manager()]
    for (let i = 0; i < 20; i++) void work(a, 'a', 10)
    await clock.advance(65)
    void work(b, 'b', 10)
    await clock.advance(1_000)
    // The one who lets go at 110 may still hand over, the one at 120 may not.
    expect(log.join('')).toBe(`${'a'.repeat(12)}b${'a'.repeat(8)}`)
  })

  it('alternates with the turns of others, and nobody is left behind', async () => {
    const { manager, clock, work, log } = world()
    const processes = [manager(), manager(), manager()]
    processes.forEach((locks, i) => {
      for (const name of ['x', 'y', 'z']) void work(locks, `${i}${name}`, 1, { times: 8 })
    })
    await clock.advance(500)
    expect(log).toHaveLength(72)
    const turns = log.map((name) => name[0]!).join('').match(/(.)\1*/g)!
    // Each process comes again only when both others have had their turn, of one pass each; at the ends it may be otherwise.
    for (const [i, turn] of turns.slice(1, -3).entries()) {
      expect(turn).toHaveLength(3)
      expect(new Set(turns.slice(i, i + 3).map(([process]) => process)).size).toBe(3)
    }
  })

  it('that is over costs one request to release and one to claim, sent together, and makes a greater fence', async () => {
    const { manager, store, clock, callers, work } = world()
    const [a, b] = [manager(), manager()]
    const waiting = callers(a, 3)
    await settle()
    void work(b, 'b', 1)
    await clock.advance(50)
    const sent = store.requests.length
    await waiting[0]!.value!.release()
    await clock.advance(5)
    const requests = store.requests.slice(sent)
    expect(requests.slice(0, 2).map(({ method, sentAt }) => [method, sentAt])).toEqual([
      ['release', requests[0]!.sentAt],
      ['claim', requests[0]!.sentAt],
    ])
    expect(requests[1]!.claimIds).not.toEqual(requests[0]!.claimIds)
    expect(epochOf(waiting[1]!.value!)).toBeGreaterThan(epochOf(waiting[0]!.value!))
    expect(turnOf(waiting[1]!.value!)).toBe(0)
  })

  it('ends by the store’s hint, also if that overtakes the reply to the grant itself', async () => {
    const { manager, store, clock, work, log } = world()
    const [a, b] = [manager(), manager()]
    const reply = store.holdReply('claim', { owner: a.owner })
    for (const name of ['a0', 'a1', 'a2']) void work(a, name, 1)
    await settle()
    void work(b, 'b0', 1)
    await settle()
    expect(store.wakeUps.map(({ kind }) => kind)).toEqual(['contended'])
    for (const name of ['a3', 'a4', 'a5']) void work(a, name, 1)
    reply.release()
    await clock.advance(20)
    expect(log).toEqual(['a0', 'a1', 'a2', 'b0', 'a3', 'a4', 'a5'])
  })

  it('is not cut short by a hint about the one before, which came while that was being released', async () => {
    const { manager, clock, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const first = await a.lock('k')
    const others = watch(b.lock('k'))
    const waiting = Array.from({ length: 4 }, () => watch(a.lock('k')))
    await clock.advance(60)
    const { claimIds } = store.sent('claim')[0]!
    const reply = store.holdReply('release')
    void first.release()
    await settle()
    store.wake(a.owner, { kind: 'contended', resource: 'k', claimId: claimIds[0]! })
    reply.release()
    await clock.advance(1_000)
    const next = watch(b.lock('k'))
    await others.value!.release()
    await settle()
    for (const caller of waiting) {
      expect(caller.state).toBe('resolved')
      await caller.value!.release()
      await settle()
    }
    expect(next.state).toBe('resolved')
  })

  it('ends even if all hints are lost: while it hands over in memory, a renewal asks every 100 ms', async () => {
    const { manager, store, clock, work, log } = world()
    const [a, b] = [manager(), manager()]
    const start = clock.now()
    const wakeUps = store.holdWakeUps()
    for (const name of ['a0', 'a1']) void work(a, name, 15, { times: 50 })
    await settle()
    void work(b, 'b0', 10)
    await clock.advance(99)
    expect(store.sent('release')).toEqual([])
    await clock.advance(30)
    expect(store.sent('renew').map(({ sentAt }) => sentAt - start)).toEqual([100])
    expect(store.sent('release').map(({ sentAt }) => sentAt - start)).toEqual([120])
    expect(log).not.toContain('b0')
    wakeUps.release()
    await settle()
    expect(log).toContain('b0')
  })

  it('asks every 100 ms only once it hands over', async () => {
    const { manager, store, clock, callers } = world()
    const [first] = callers(manager(), 3)
    await clock.advance(3_000)
    expect(store.sent('renew')).toEqual([])
    await first!.value!.release()
    await clock.advance(1_000)
    expect(store.sent('renew').length).toBeGreaterThanOrEqual(10)
    expect(store.sent('renew').length).toBeLessThanOrEqual(14)
  })

  it('asks every 100 ms only as long as somebody is in line, and again when somebody comes', async () => {
    const { manager, store, clock, callers } = world()
    const a = manager()
    const [first] = callers(a, 2)
    await settle()
    await first!.value!.release()
    await clock.advance(3_000)
    expect(store.sent('renew')).toEqual([])
    callers(a, 1)
    await clock.advance(1_000)
    expect(store.sent('renew').length).toBeGreaterThanOrEqual(9)
  })

  it('ends with the fences of its epoch: after 1,024 of them one release and one claim travel', async () => {
    const { manager, callers, methods } = world()
    const served = await serve(callers(manager(), 1_030))
    expect(methods()).toEqual(['claim', 'release', 'claim', 'release'])
    const epoch = epochOf(served[0]!)
    expect(served.map(turnOf)).toEqual([...Array(1_024).keys(), 0, 1, 2, 3, 4, 5])
    expect(served.map((lock) => epochOf(lock) > epoch)).toEqual([...Array(1_024).fill(false), ...Array(6).fill(true)])
    expect(served.every(({ fence }, i) => i === 0 || fence > served[i - 1]!.fence)).toBe(true)
  })

  it('costs ten thousand callers twenty requests', async () => {
    const { manager, work, log, methods, clock, warnings } = world()
    const a = manager()
    const done = Array.from({ length: 10_000 }, (_, i) => work(a, String(i), 0))
    await Promise.all(done)
    expect(log).toEqual(Array.from({ length: 10_000 }, (_, i) => String(i)))
    expect(methods().filter((method) => method === 'claim')).toHaveLength(10)
    expect(methods()).toHaveLength(20)
    expect(clock.pending('awaited')).toBe(0)
    expect(warnings).toEqual([])
  })
})

describe('what is not handed over', () => {
  /** One has the lock and another waits; what was handed over would have the same epoch. */
  async function two(options?: LockOptions) {
    const the = world()
    const [a, b] = [the.manager(), the.manager()]
    const [first, second] = the.callers(a, 2, options)
    await settle()
    const lock = first!.value!
    return { ...the, a, b, lock, second: second! }
  }

  function expectFresh(second: Caller, lock: DistributedLock): void {
    second.value!.assertHeld()
    expect(epochOf(second.value!)).toBeGreaterThan(epochOf(lock))
    expect(turnOf(second.value!)).toBe(0)
  }

  it.each(['lost', 'revoked'] as const)('is a hold of which a renewal says that it is %s: the next has a fresh claim', async (status) => {
    const { store, clock, lock, second } = await two()
    store.answer('renew', [{ status }])
    await clock.advance(3_400)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
    expect(await lock.release()).toBe(false)
    expectFresh(second, lock)
  })

  it('is a hold whose deadline has passed, though nobody has noticed yet', async () => {
    const { clock, lock, second } = await two()
    clock.jump(CERTAIN_MS)
    expect(await lock.release()).toBe(false)
    await settle()
    expectFresh(second, lock)
  })

  it('is a hold whose maxHoldMs is over, though nobody has noticed yet', async () => {
    const { clock, lock, second } = await two({ maxHoldMs: 500 })
    clock.jump(500)
    expect(await lock.release()).toBe(false)
    await settle()
    expectFresh(second, lock)
  })

  it('is a hold whose maxHoldMs is over', async () => {
    const { clock, lock, second } = await two({ maxHoldMs: 500 })
    await clock.advance(500)
    expect(lock.signal.reason).toBeInstanceOf(OwnershipLostError)
    expectFresh(second, lock)
  })

  it.each([false, true])('is a hold that was taken away with forceRelease({ now: %s })', async (now) => {
    const { b, lock, second } = await two()
    await b.forceRelease('k', { now })
    await settle()
    expect(lock.signal.aborted).toBe(true)
    expect(await lock.release()).toBe(false)
    expectFresh(second, lock)
  })

  it('is a hold that was given away: the next waits for whoever has it now', async () => {
    const { b, lock, second } = await two()
    const adopted = await b.adopt(lock.transfer())
    await settle()
    expect(await lock.release()).toBe(false)
    expect(second.state).toBe('pending')
    adopted.assertHeld()
    await adopted.release()
    await settle()
    expectFresh(second, adopted)
  })

  it.each([20_000, 5_000])('is a hold that was extended to %d ms: those in line have asked for another TTL', async (ttlMs) => {
    const { lock, second, store } = await two()
    await lock.extend(ttlMs)
    expect(await lock.release()).toBe(true)
    await settle()
    expect(store.sent('release')).toHaveLength(1)
    expectFresh(second, lock)
    expect(second.value!.remainingMs).toBe(CERTAIN_MS)
  })

  it('is a hold with less than half of its TTL left', async () => {
    const { lock, second, clock, store } = await two()
    store.blackHole('renew')
    await clock.advance(CERTAIN_MS - 4_999)
    lock.assertHeld()
    expect(await lock.release()).toBe(true)
    await settle()
    expectFresh(second, lock)
    expect(second.value!.remainingMs).toBe(CERTAIN_MS)
  })

  it('is not a hold with half of its TTL left', async () => {
    const { lock, second, clock, store } = await two()
    store.blackHole('renew')
    await clock.advance(CERTAIN_MS - 5_000)
    await lock.release()
    await settle()
    expect(epochOf(second.value!)).toBe(epochOf(lock))
    expect(second.value!.remainingMs).toBe(5_000)
  })

  it('is a hold whose release failed, and it can still be released', async () => {
    const { lock, second, store, clock, b } = await two()
    void b.lock('k')
    await clock.advance(60)
    store.fail('release', outage(), { times: 2 })
    await expect(lock.release()).rejects.toThrow('The connection broke.')
    await settle()
    expect(second.state).toBe('pending')
    await expect(lock.release()).rejects.toThrow('The connection broke.')
    expect(await lock.release()).toBe(true)
    expect(second.state).toBe('pending')
  })
})

describe('a lock that was handed over', () => {
  async function handedOver(options?: LockOptions, afterMs = 0) {
    const the = world()
    const a = the.manager()
    const [first, second, third] = the.callers(a, 3, options)
    await the.clock.advance(afterMs)
    return { ...the, a, first: first!, second: second!, third: third!, release: () => first!.value!.release() }
  }

  it('has what is left of the TTL, not a fresh one', async () => {
    const { release, second } = await handedOver(undefined, 2_000)
    await release()
    await settle()
    expect(second.value!.remainingMs).toBe(CERTAIN_MS - 2_000)
  })

  it('is renewed in time, however often it is handed over', async () => {
    const { manager, clock, work, log, named, methods } = world()
    const a = manager({ ttlMs: 900 })
    for (const name of ['a0', 'a1', 'a2']) void work(a, name, 130, { times: 20 })
    await clock.advance(10_000)
    expect(log).toHaveLength(60)
    expect(named('lost')).toEqual([])
    expect(named('renew-failed')).toEqual([])
    expect(methods().filter((method) => method !== 'renew')).toEqual(['claim', 'release'])
  })

  it('lasts longer by a renewal that was sent before and answered after', async () => {
    const { release, second, store, clock } = await handedOver({ renewEveryMs: 50 }, 49)
    const reply = store.holdReply('renew')
    store.blackHole('renew')
    await clock.advance(1)
    expect(reply.count).toBe(1)
    await clock.advance(9)
    await release()
    await settle()
    expect(second.value!.remainingMs).toBe(CERTAIN_MS - 59)
    reply.release()
    await settle()
    expect(second.value!.remainingMs).toBe(CERTAIN_MS - 9)
  })

  it.each(['lost', 'revoked'] as const)('is over when a renewal that was sent before says "%s" after', async (status) => {
    const { release, first, second, third, store, clock } = await handedOver({ renewEveryMs: 50 })
    let answer!: (states: unknown) => void
    store.intercept('renew', () => new Promise((resolve) => (answer = resolve)))
    await clock.advance(50)
    await release()
    await settle()
    const { signal } = second.value!
    expect(signal.aborted).toBe(false)
    answer([{ status }])
    await settle()
    expect(signal.reason).toBeInstanceOf(OwnershipLostError)
    expect(await second.value!.release()).toBe(false)
    await settle()
    third.value!.assertHeld()
    expect(epochOf(third.value!)).toBeGreaterThan(epochOf(first.value!))
  })

  it('is left alone by a renewal that was sent before it was extended', async () => {
    const { release, second, store, clock } = await handedOver({ renewEveryMs: 50 }, 49)
    const reply = store.holdReply('renew')
    await clock.advance(1)
    await release()
    await settle()
    await second.value!.extend(1_000)
    const left = second.value!.remainingMs
    expect(left).toBeLessThan(1_000)
    reply.release()
    await settle()
    expect(second.value!.remainingMs).toBe(left)
  })

  it('is not reported as badly renewed because a renewal is on its way when it is handed over', async () => {
    const { release, second, store, clock, named } = await handedOver({ ttlMs: 9_000 }, 2_999)
    store.delayReply('renew', 10)
    await clock.advance(1)
    expect(store.sent('renew')).toHaveLength(1)
    await release()
    await clock.advance(1_000)
    expect(named('renew-failed')).toEqual([])
    second.value!.assertHeld()
  })

  it('is reported as badly renewed if renewals go unanswered, however often it is handed over meanwhile', async () => {
    const { manager, store, clock, work, named } = world()
    const a = manager()
    store.blackHole('renew')
    for (const name of ['a0', 'a1']) void work(a, name, 15, { times: 50 })
    await clock.advance(1_005)
    const sent = store.sent('renew').length
    expect(sent).toBeGreaterThanOrEqual(9)
    expect(named('renew-failed')).toHaveLength(sent - 1)
  })

  it('is revoked for its holder, and not for the one before', async () => {
    const { release, first, second, manager } = await handedOver()
    const { signal } = first.value!
    await release()
    await settle()
    await manager().forceRelease('k')
    await settle()
    expect(second.value!.signal.aborted).toBe(true)
    expect(signal.aborted).toBe(false)
  })

  it('is lost to its holder, and not to the one before, when its deadline passes', async () => {
    const { release, first, second, store, clock, named } = await handedOver()
    store.blackHole('renew')
    const { signal } = first.value!
    await release()
    await clock.advance(CERTAIN_MS)
    expect(second.value!.signal.reason).toBeInstanceOf(OwnershipLostError)
    expect(signal.aborted).toBe(false)
    expect(named('lost').map(({ fence }) => fence)).toEqual([second.value!.fence])
  })

  it('ends after the maxHoldMs of its holder, counted from when that one got it', async () => {
    const { manager, clock, callers } = world()
    const a = manager()
    const [first] = callers(a, 1, { maxHoldMs: 1_000 })
    const [second] = callers(a, 1, { maxHoldMs: 50 })
    const [third] = callers(a, 1)
    await clock.advance(900)
    await first!.value!.release()
    await clock.advance(49)
    second!.value!.assertHeld()
    expect(second!.value!.remainingMs).toBe(1)
    await clock.advance(1)
    expect(() => second!.value!.assertHeld()).toThrow('maxHoldMs (50) is over')
    await clock.advance(5_000)
    third!.value!.assertHeld()
  })

  it('can be extended and transferred as any other', async () => {
    const { release, second, manager, a } = await handedOver()
    await release()
    await settle()
    await second.value!.extend(20_000)
    expect(second.value!.remainingMs).toBeGreaterThan(15_000)
    const { fence } = second.value!
    const adopted = await manager().adopt(second.value!.transfer())
    expect(adopted.fence).toBe(fence + 1n)
    expect(await a.tryLock('k')).toBeNull()
  })

  it('excludes other processes', async () => {
    const { release, second, manager, clock } = await handedOver()
    await release()
    await clock.advance(30_000)
    second.value!.assertHeld()
    expect(await manager().tryLock('k')).toBeNull()
  })
})

describe('whoever leaves the line', () => {
  async function threeInLine(options: readonly (LockOptions | undefined)[]) {
    const the = world()
    const [a, b] = [the.manager(), the.manager()]
    const lock = await b.lock('k')
    const waiting = options.map((each) => the.callers(a, 1, each)[0]!)
    await settle()
    const waiters = async () => (await all(b.inspect('k')))[0]?.waiters.length
    return { ...the, a, b, lock, waiting, waiters }
  }

  it('leaves the place to the others, with no request', async () => {
    const controllers = [new AbortController(), new AbortController()]
    const { store, clock, lock, waiting, waiters } = await threeInLine([
      { signal: controllers[0]!.signal }, { waitMs: 100 }, undefined, { signal: controllers[1]!.signal },
    ])
    const sent = store.requests.length
    controllers[0]!.abort(new Error('not any more'))
    await clock.advance(100)
    controllers[1]!.abort()
    await settle()
    expect(waiting.map(({ state }) => state)).toEqual(['rejected', 'rejected', 'pending', 'rejected'])
    expect(waiting[0]!.error).toEqual(new Error('not any more'))
    expect(waiting[1]!.error).toBeInstanceOf(LockNotAcquiredError)
    expect(store.requests).toHaveLength(sent)
    expect(await waiters()).toBe(1)
    await lock.release()
    await settle()
    waiting[2]!.value!.assertHeld()
  })

  it.each(['abort', 'waitMs'])('as the last one (%s) takes the claim back', async (how) => {
    const controller = new AbortController()
    const last = how === 'abort' ? { signal: controller.signal } : { waitMs: 200 }
    const { store, clock, waiting, waiters, lock, a, b } = await threeInLine([{ waitMs: 100 }, last])
    await clock.advance(199)
    expect(await waiters()).toBe(1)
    controller.abort()
    await clock.advance(1)
    expect(waiting.map(({ state }) => state)).toEqual(['rejected', 'rejected'])
    expect(await waiters()).toBe(0)
    expect(store.sent('release').map(({ owner }) => owner)).toEqual([a.owner])
    await lock.release()
    expect(await all(b.inspect())).toEqual([])
  })

  it('as the last one makes room for a fresh claim of whoever comes then', async () => {
    const { clock, waiting, lock, a, callers, places } = await threeInLine([{ waitMs: 100 }])
    await clock.advance(100)
    expect(waiting[0]!.state).toBe('rejected')
    const [next] = callers(a, 1)
    await settle()
    expect(places()).toBe(3)
    await lock.release()
    await settle()
    next!.value!.assertHeld()
  })

  it('before the claim was even sent takes it back', async () => {
    const { manager, store } = world()
    const controller = new AbortController()
    const waiting = [1, 2].map(() => watch(manager().lock('k', { signal: controller.signal })))
    controller.abort()
    await settle()
    expect(waiting.map(({ state }) => state)).toEqual(['rejected', 'rejected'])
    expect(store.sent('claim')).toEqual([])
  })

  it('behind a holder of this process leaves it alone', async () => {
    const { manager, store, clock, callers } = world()
    const a = manager()
    const [holder] = callers(a, 1)
    const [second] = callers(a, 1, { waitMs: 100 })
    await clock.advance(100)
    expect(second!.state).toBe('rejected')
    holder!.value!.assertHeld()
    expect(store.sent('release')).toEqual([])
    await holder!.value!.release()
    expect(await all(a.inspect())).toEqual([])
  })

  it('because its time is over learns that this process holds the lock, since when, and who else waits', async () => {
    const { manager, clock, callers } = world()
    const [a, b] = [manager(), manager()]
    const options = { type: 'batch', metadata: { job: 7 } }
    callers(a, 1, options)
    await clock.advance(300)
    callers(a, 1, options)
    const [refused] = callers(a, 1, { ...options, waitMs: 100 })
    callers(a, 1, options)
    watch(b.lock('k'))
    await clock.advance(100)
    const { error } = refused!
    expect(error).toBeInstanceOf(LockNotAcquiredError)
    expect(error.blocker).toEqual({
      holder: {
        owner: a.owner,
        epoch: expect.any(BigInt),
        heldForMs: 400,
        expiresInMs: CERTAIN_MS - 400,
        type: 'batch',
        metadata: '{"job":7}',
      },
      ahead: 1,
      waiting: 3,
    })
    expect(error.message).toContain(`is held by this process (${a.owner}) for 400 ms`)
    expect(error.message).toContain('3 wait')
  })

  it('because its time is over learns who holds the lock elsewhere, and how many are before it', async () => {
    const { clock, waiting, b } = await threeInLine([undefined, undefined, { waitMs: 100 }, undefined])
    await clock.advance(100)
    const { blocker, message } = waiting[2]!.error as LockNotAcquiredError
    expect(blocker).toMatchObject({ holder: { owner: b.owner }, ahead: 2, waiting: 3 })
    expect(message).toContain(b.owner)
    expect(message).not.toContain('this process')
  })

  it('because its time is over is refused, though a claim for the next turn is just on its way', async () => {
    const { manager, store, clock, callers, work } = world()
    const [a, b] = [manager(), manager()]
    const [first] = callers(a, 1)
    const [second] = callers(a, 1, { waitMs: 100 })
    const third = watch(a.tryLock('k', { waitMs: 100 }))
    await settle()
    void work(b, 'b', 1_000)
    await clock.advance(90)
    store.delayReply('claim', 20, { owner: a.owner })
    await first!.value!.release()
    await clock.advance(10)
    expect(second!.error).toBeInstanceOf(LockNotAcquiredError)
    expect(third.value).toBeNull()
  })

  it('because its time is over hears of a store that does not answer', async () => {
    const { manager, store, clock, callers } = world()
    store.blackHole('claim')
    const waiting = callers(manager(), 3, { waitMs: 2_000 })
    await clock.advance(2_000)
    for (const { error } of waiting) expect(error).toEqual(new BackendError('No answer from memory within 2000 ms.', { transient: true }))
  })
})

describe('a claim that fails', () => {
  it('for good fails everybody in line, and the line is there for others', async () => {
    const { manager, store, callers, named } = world()
    const a = manager()
    const error = new ConfigurationError('Another limit.')
    store.answer('claim', [{ status: 'failed', error }])
    const waiting = callers(a, 3)
    await settle()
    for (const each of waiting) expect(each.error).toBe(error)
    expect(named('claim-failed').map((event) => event.error)).toEqual([error, error, error])
    await serve(callers(a, 2))
  })

  it('for good as a request fails everybody in line', async () => {
    const { manager, store, clock, callers } = world()
    const error = new BackendError('NOAUTH', { transient: false })
    store.fail('claim', error)
    const waiting = callers(manager(), 3)
    await settle()
    for (const each of waiting) expect(each.error).toBe(error)
    expect(clock.pending('awaited')).toBe(0)
    expect(store.sent('claim')).toHaveLength(1)
  })

  it('for a while is asked for again, for all of them', async () => {
    const { manager, store, clock, callers } = world()
    store.fail('claim', outage(), { times: 3 })
    const waiting = callers(manager(), 3)
    await clock.advance(1_000)
    await serve(waiting)
    expect(store.sent('claim')).toHaveLength(4)
    expect(new Set(store.sent('claim').flatMap(({ claimIds }) => claimIds)).size).toBe(1)
  })

  it('for the next turn, for a while, is waited out by those who were in line before', async () => {
    const { manager, store, clock, callers, work } = world()
    const [a, b] = [manager(), manager()]
    const [first, second] = callers(a, 2)
    await settle()
    void work(b, 'b', 1)
    await clock.advance(100)
    store.fail('claim', outage(), { times: Infinity })
    await first!.value!.release()
    await clock.advance(20_000)
    expect(second!.state).toBe('pending')
    store.heal()
    await clock.advance(1_000)
    second!.value!.assertHeld()
  })
})

describe('a line that is empty', () => {
  it('is not kept in memory, however it came to be so', async () => {
    setFlagsFromString('--expose-gc')
    const collectGarbage = runInNewContext('gc') as () => void
    const { manager, store, clock, events } = manualWorld()
    const [a, b] = [manager(), manager()]
    /** A seat remembers what the first in line has asked for. */
    const ask = (key: string, waitMs: number) => {
      const { signal } = new AbortController()
      watch(a.withLock(key, { signal, waitMs }, () => {}))
      return new WeakRef(signal)
    }
    const signals: WeakRef<AbortSignal>[] = []
    for (let i = 0; i < 20; i++) {
      signals.push(ask(`released ${i}`, 5_000))
      await b.lock(`left ${i}`)
      signals.push(ask(`left ${i}`, 10))
      await clock.advance(10)
      store.fail('claim', new ConfigurationError('Another limit.'))
      signals.push(ask(`failed ${i}`, 5_000))
      await settle()
    }
    store.requests.length = 0
    events.length = 0
    await settle()
    collectGarbage()
    await settle()
    collectGarbage()
    // One or another may still be in a register.
    expect(signals.filter((signal) => signal.deref()).length).toBeLessThanOrEqual(2)
  })
})

describe('close()', () => {
  it('sends everybody in line away, and leaves nothing on the store', async () => {
    const { manager, callers, clock, unheard } = world()
    const [a, b] = [manager(), manager()]
    const [holder, ...others] = callers(a, 4, { waitMs: 60_000 })
    await settle()
    await holder!.value!.release()
    await settle()
    const [second, ...rest] = others
    const { signal } = second!.value!
    await a.close()
    expect(signal.reason).toBeInstanceOf(ManagerClosedError)
    for (const { error } of rest) expect(error).toBeInstanceOf(ManagerClosedError)
    expect(await second!.value!.release()).toBe(false)
    expect(clock.pending()).toBe(0)
    expect(await all(b.inspect())).toEqual([])
    expect(unheard).toEqual([])
  })

  it('sends everybody away who waits behind another process', async () => {
    const { manager, callers } = world()
    const [a, b] = [manager(), manager()]
    const lock = await b.lock('k')
    const waiting = callers(a, 3)
    await settle()
    await a.close()
    for (const { error } of waiting) expect(error).toBeInstanceOf(ManagerClosedError)
    await lock.release()
    expect(await all(b.inspect())).toEqual([])
  })

  it.each(['here', 'elsewhere'])('sends everybody away behind a holder %s, even if the first of them sends others away itself', async (where) => {
    const { manager, callers, named } = world()
    const [a, b] = [manager(), manager()]
    await (where === 'here' ? a : b).lock('k')
    const next = new AbortController()
    const waiting = [undefined, { signal: next.signal }, undefined, undefined].flatMap((options) => callers(a, 1, options))
    await settle()
    hear('cancelled', () => next.abort())
    await a.close()
    expect(waiting.map(({ state }) => state)).toEqual(Array(4).fill('rejected'))
    expect(named('cancelled')).toHaveLength(4)
  })

  it('takes nobody in who comes at the very moment when others are sent away', async () => {
    const { manager, callers } = world()
    const [a, b] = [manager(), manager()]
    callers(a, 2)
    await settle()
    const late: Caller[] = []
    hear('cancelled', () => late.push(...callers(a, 1)))
    await a.close()
    expect(late[0]!.error).toBeInstanceOf(ManagerClosedError)
    expect(await all(b.inspect())).toEqual([])
  })

  it('is done once, also if one who hears of it calls it, too', async () => {
    const { manager, store } = world()
    const a = manager()
    const lock = await a.lock('k')
    const closing: Promise<void>[] = []
    lock.signal.addEventListener('abort', () => closing.push(a.close()))
    closing.push(a.close())
    await Promise.all(closing)
    expect(closing).toHaveLength(2)
    expect(store.requests.map(({ method }) => method)).toEqual(['claim', 'release', 'close'])
  })
})

describe('the event loop', () => {
  it('has its turn after 64 hand-overs in a row', async () => {
    const { manager, work, log } = world()
    const a = manager()
    const first = await a.lock('k')
    const done = Array.from({ length: 200 }, (_, i) => work(a, String(i), 0))
    await settle()
    let turns = 0
    const turn = () => {
      log.push(`turn ${turns++} of the event loop`)
      if (turns < 3) setImmediate(turn)
    }
    setImmediate(turn)
    await first.release()
    await Promise.all(done)
    const at = [0, 1, 2].map((i) => log.indexOf(`turn ${i} of the event loop`))
    expect(at[0]).toBe(64)
    expect(at[1]! - at[0]!).toBeLessThanOrEqual(66)
    expect(at[2]! - at[1]!).toBeLessThanOrEqual(66)
    expect(log).toHaveLength(203)
  })

  it('has its turn also when fewer take longer than a millisecond', async () => {
    const { manager, clock, log } = world()
    const a = manager()
    const slow = async (name: string) => {
      const lock = await a.lock('k')
      log.push(name)
      clock.jump(0.5)
      await lock.release()
    }
    const first = await a.lock('k')
    const done = Array.from({ length: 10 }, (_, i) => slow(String(i)))
    await settle()
    setImmediate(() => log.push('the event loop'))
    await first.release()
    await Promise.all(done)
    expect(log.indexOf('the event loop')).toBe(2)
  })

  /** Two have had the lock; the third has been granted it, and will be told in the next turn of the event loop. */
  async function grantedButNotTold(options: LockOptions) {
    const the = world()
    const a = the.manager()
    const [first, second] = the.callers(a, 2)
    const [third] = the.callers(a, 1, options)
    await settle()
    await first!.value!.release()
    await microtasks()
    the.clock.jump(1)
    await second!.value!.release()
    await microtasks()
    expect(third!.state).toBe('pending')
    return { ...the, a, second: second!, third: third! }
  }

  it('may let a signal abort between a grant and its being told: it is a lock all the same, and nothing stays behind', async () => {
    const controller = new AbortController()
    const { a, second, third, named, store } = await grantedButNotTold({ signal: controller.signal })
    controller.abort()
    await settle()
    third.value!.assertHeld()
    expect(third.value!.fence).toBe(second.value!.fence + 1n)
    expect(named('cancelled')).toEqual([])
    expect(store.sent('release')).toEqual([])
    expect(await third.value!.release()).toBe(true)
    expect(await all(a.inspect())).toEqual([])
  })

  it('may let the time to wait end between a grant and its being told', async () => {
    const { a, third, clock, named } = await grantedButNotTold({ waitMs: 5 })
    clock.jump(10)
    await clock.advance(0)
    third.value!.assertHeld()
    expect(named('refused')).toEqual([])
    await third.value!.release()
    expect(await all(a.inspect())).toEqual([])
  })

  it('may let the manager close between a grant and its being told', async () => {
    const { a, third, manager } = await grantedButNotTold({})
    await a.close()
    await settle()
    expect(third.error).toBeInstanceOf(ManagerClosedError)
    expect(await all(manager().inspect())).toEqual([])
  })
})

describe('events', () => {
  it('tell once of each caller that it waits, has the lock, and has released it', async () => {
    const { manager, callers, named } = world()
    const served = await serve(callers(manager(), 4))
    const fences = served.map(({ fence }) => fence)
    expect(named('waiting')).toHaveLength(3)
    expect(named('acquired').map(({ fence }) => fence)).toEqual(fences)
    expect(named('released').map(({ fence }) => fence)).toEqual(fences)
  })

  it('tell of those who come later that they wait, and for whom', async () => {
    const { manager, callers, named, clock } = world()
    const a = manager()
    const [first] = callers(a, 1)
    await clock.advance(100)
    callers(a, 2)
    await settle()
    const holder = expect.objectContaining({ owner: a.owner, heldForMs: 100, epoch: epochOf(first!.value!) })
    expect(named('waiting').map(({ blocker }) => blocker)).toEqual([
      { holder, ahead: 0, waiting: 0 },
      { holder, ahead: 1, waiting: 1 },
    ])
  })

  it('tell of those behind another process that they wait, and how many are before each', async () => {
    const { manager, callers, named } = world()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    callers(a, 3)
    await settle()
    callers(a, 1)
    await settle()
    const holder = expect.objectContaining({ owner: b.owner })
    expect(named('waiting').map(({ blocker }) => blocker)).toEqual([
      { holder, ahead: 0, waiting: 2 },
      { holder, ahead: 1, waiting: 2 },
      { holder, ahead: 2, waiting: 2 },
      { holder, ahead: 3, waiting: 3 },
    ])
  })

  it('tell nothing more of those who leave because of them', async () => {
    const { manager, callers, named } = world()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    const controller = new AbortController()
    hear('waiting', () => controller.abort())
    const waiting = callers(a, 3, { signal: controller.signal })
    await settle()
    expect(waiting.map(({ state }) => state)).toEqual(Array(3).fill('rejected'))
    expect(named('waiting')).toHaveLength(1)
    expect(named('cancelled')).toHaveLength(3)
  })

  it('tell once of each that it waits, however many turns it takes', async () => {
    const { manager, clock, work, log, named } = world()
    const [a, b] = [manager(), manager()]
    for (let i = 0; i < 12; i++) void work(a, 'a', 10)
    for (let i = 0; i < 12; i++) void work(b, 'b', 10)
    await clock.advance(1_000)
    expect(log).toHaveLength(24)
    expect(named('waiting').filter(({ owner }) => owner === a.owner)).toHaveLength(11)
    expect(named('waiting').filter(({ owner }) => owner === b.owner)).toHaveLength(12)
  })

  it('tell in the order of things: one has released it before the next has acquired it', async () => {
    const { manager, callers, events } = world()
    await serve(callers(manager(), 3))
    const told = events.filter(({ name }) => name === 'acquired' || name === 'released').map(({ name }) => name)
    expect(told).toEqual(['acquired', 'released', 'acquired', 'released', 'acquired', 'released'])
  })

  it('come when it is so: whoever hears that the next has it finds that the one before has not', async () => {
    const { manager, callers } = world()
    const [a, b] = [manager(), manager()]
    const [first, second] = callers(a, 2)
    await settle()
    const again: Promise<boolean>[] = []
    hear('acquired', () => again.push(first!.value!.release()))
    expect(await first!.value!.release()).toBe(true)
    expect(await Promise.all(again)).toEqual([false])
    await settle()
    second!.value!.assertHeld()
    expect(await b.tryLock('k')).toBeNull()
  })

  it('tell how long each has waited and held', async () => {
    const { manager, clock, work, named } = world()
    const a = manager()
    for (const ms of [10, 20, 30]) void work(a, '', ms)
    await clock.advance(100)
    expect(named('acquired').map(({ waitedMs, ttlMs }) => [waitedMs, ttlMs])).toEqual([[0, 10_000], [10, 10_000], [30, 10_000]])
    expect(named('released').map(({ heldMs }) => heldMs)).toEqual([10, 20, 30])
  })
})
