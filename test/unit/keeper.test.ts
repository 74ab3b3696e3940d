/** The keeper: renews everything that a process holds, and decides loss without waiting for a reply. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { BackendError, OwnershipLostError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('renewals', () => {
  it('come at a third of the TTL, and keep a lock for as long as it is held', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const start = clock.now()
    const lock = await a.lock('k', { ttlMs: 9_000 })
    await clock.advance(90_000)
    const sent = store.sent('renew').map(({ sentAt }) => sentAt - start)
    expect(sent[0]).toBeGreaterThan(2_700)
    expect(sent[0]).toBeLessThanOrEqual(3_000)
    expect(sent).toEqual(Array.from({ length: 30 }, (_, i) => sent[0]! + 3_000 * i))
    lock.assertHeld()
    expect(await b.tryLock('k')).toBeNull()
  })

  it('ask for the TTL, and never shorten', async () => {
    const { manager, store, clock } = manualWorld()
    await manager().lock('k', { ttlMs: 9_000 })
    await clock.advance(3_000)
    expect(store.sent('renew')[0]!.args[0]).toMatchObject([{ ttlMs: 9_000, exact: false, claim: { resource: 'k' } }])
  })

  it('come every renewEveryMs, if that is given', async () => {
    const { manager, store, clock } = manualWorld()
    const start = clock.now()
    const lock = await manager().lock('k', { ttlMs: 10_000, renewEveryMs: 6_000 })
    await clock.advance(30_000)
    const sent = store.sent('renew').map(({ sentAt }) => sentAt - start)
    expect(sent[0]).toBeGreaterThan(5_700)
    expect(sent[0]).toBeLessThanOrEqual(6_000)
    expect(sent).toEqual([0, 1, 2, 3, 4].map((i) => sent[0]! + 6_000 * i))
    lock.assertHeld()
  })

  it('do not begin sooner than renewEveryMs tells, give or take, even if that is a small part of the TTL', async () => {
    const { manager, store, clock } = manualWorld()
    const start = clock.now()
    await manager().lock('k', { ttlMs: 60_000, renewEveryMs: 200 })
    await clock.advance(1_000)
    expect(store.sent('renew')[0]!.sentAt - start).toBeGreaterThanOrEqual(150)
  })

  it.each([9_000, 9_500, 9_789])('every %d ms of a TTL of 10,000, which is accepted, keep the lock', async (renewEveryMs) => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 10_000, renewEveryMs })
    await clock.advance(60_000)
    lock.assertHeld()
  })

  it('come every third of the TTL again, when extend() has made that shorter than renewEveryMs', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 60_000, renewEveryMs: 30_000 })
    await lock.extend(3_000)
    await clock.advance(60_000)
    lock.assertHeld()
  })

  it('of many locks travel in one request', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    const held = await Promise.all(Array.from({ length: 100 }, (_, i) => locks.lock(`k${i}`)))
    await clock.advance(3_000)
    expect(store.sent('renew')).toHaveLength(1)
    expect(new Set(store.sent('renew')[0]!.keys)).toEqual(new Set(held.map(({ key }) => key)))
    await clock.advance(60_000)
    expect(store.sent('renew')).toHaveLength(21)
    for (const lock of held) lock.assertHeld()
  })

  it('of locks that were acquired one after another come to share a request', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    for (let i = 0; i < 5; i++) {
      await locks.lock(`k${i}`)
      await clock.advance(100)
    }
    await clock.advance(9_000)
    for (const { keys } of store.sent('renew')) expect(keys).toHaveLength(5)
  })

  it('of more than a thousand locks travel in requests of a thousand', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    const held = await Promise.all(Array.from({ length: 2_500 }, (_, i) => locks.lock(`k${i}`)))
    await clock.advance(3_000)
    expect(store.sent('renew').map(({ keys }) => keys.length)).toEqual([1_000, 1_000, 500])
    await clock.advance(60_000)
    for (const lock of held) lock.assertHeld()
  })

  it('of locks with different TTLs come in time for each', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const held = await Promise.all([100, 450, 3_000, 60_000].map((ttlMs) => locks.lock(`ttl ${ttlMs}`, { ttlMs })))
    await clock.advance(120_000)
    for (const lock of held) lock.assertHeld()
    for (const { keys } of store.sent('renew')) expect(keys.length).toBeGreaterThan(0)
    // The longest is not dragged along by the shortest.
    const longest = store.sent('renew').filter(({ keys }) => keys.includes('ttl 60000'))
    expect(longest.length).toBeLessThanOrEqual(8)
  })

  it('run on one timer, which does not keep the process alive', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    for (let i = 0; i < 50; i++) await locks.lock(`k${i}`)
    // One more looks whether there were answers to the claims.
    expect(clock.pending('background')).toBe(2)
    expect(clock.pending('awaited')).toBe(0)
    await clock.advance(20_000)
    expect(clock.pending('background')).toBe(1)
  })

  it('end with the last lock', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const held = await Promise.all([1, 2, 3].map((i) => locks.lock(`k${i}`)))
    await clock.advance(5_000)
    for (const lock of held) await lock.release()
    const sent = store.requests.length
    await clock.advance(60_000)
    expect(store.requests.length).toBe(sent)
    expect(clock.pending()).toBe(0)
  })

  it('are not sent for what was released or lost meanwhile', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    const [a] = await Promise.all([locks.lock('a'), locks.lock('b'), locks.lock('c', { maxHoldMs: 1_000 })])
    await clock.advance(1_000)
    await a.release()
    await clock.advance(2_000)
    expect(store.sent('renew').map(({ keys }) => keys)).toEqual([['b']])
  })
})

describe('what is over', () => {
  it('is not kept in memory: locks that were released or given away, and waits that ended', async () => {
    setFlagsFromString('--expose-gc')
    const collectGarbage = runInNewContext('gc') as () => void
    const { manager, store, clock, events } = manualWorld()
    const [a, b] = [manager(), manager()]
    const work = async () => {
      for (let i = 0; i < 20; i++) {
        const lock = await a.lock(`k${i}`)
        lock.signal.addEventListener('abort', () => {})
        watch(b.lock(`k${i}`, { waitMs: 10 }))
        await clock.advance(10)
        if (i % 2 === 0) await lock.release()
        else await (await b.adopt(lock.transfer())).release()
        await settle()
      }
      return store.sent('claim').map(({ args }) => new WeakRef(args[0][0] as object))
    }
    const claims = await work()
    // What was withdrawn is remembered for a minute, until another is.
    await clock.advance(120_000)
    const last = await a.lock('k')
    watch(b.lock('k', { waitMs: 10 }))
    await clock.advance(10)
    await last.release()
    await settle()
    store.requests.length = 0
    events.length = 0
    await settle()
    collectGarbage()
    await settle()
    collectGarbage()
    expect(claims).toHaveLength(40)
    // One or another may still be in a register.
    expect(claims.filter((claim) => claim.deref()).length).toBeLessThanOrEqual(2)
  })
})

describe('a renewal that hangs', () => {
  it('is told of when the next one is due, and not only when the lock is lost', async () => {
    const { manager, store, clock, named } = manualWorld()
    await manager().lock('k', { ttlMs: 9_000 })
    store.blackHole('renew', { times: Infinity })
    await clock.advance(5_000)
    expect(named('renew-failed')).toEqual([])
    await clock.advance(1_500)
    expect(named('renew-failed')).toMatchObject([{ key: 'k', error: { message: 'No answer from memory within 3000 ms.' } }])
    expect(named('lost')).toEqual([])
  })

  it('ends the hold at its local deadline, counted from the last sending that succeeded', async () => {
    const { manager, store, clock } = manualWorld()
    const start = clock.now()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    let abortedAt = Infinity
    lock.signal.addEventListener('abort', () => (abortedAt = clock.now() - start))
    await clock.advance(2_000)
    // The first renewal takes a second and succeeds; it counts from its sending.
    store.delayReply('renew', 1_000)
    await clock.advance(3_000)
    store.blackHole('renew')
    await clock.advance(30_000)
    expect(abortedAt).toBe(store.sent('renew')[0]!.sentAt - start + 8_811)
  })

  it('does not keep the next from being sent, and one that succeeds is enough', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    store.hold('renew')
    await clock.advance(3_000)
    await clock.advance(3_000)
    expect(store.sent('renew')).toHaveLength(2)
    await clock.advance(60_000)
    lock.assertHeld()
  })

  it('and is answered after all, but late, moves the deadline only by what it is worth', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const first = store.holdReply('renew')
    store.blackHole('renew')
    await clock.advance(8_000)
    expect(lock.remainingMs).toBe(811)
    first.release()
    await settle()
    expect(lock.remainingMs).toBe(8_811 - (clock.now() - store.sent('renew')[0]!.sentAt))
  })

  it('ends all holds of the process, each at its own time', async () => {
    const { manager, store, clock } = manualWorld()
    const start = clock.now()
    const locks = manager()
    const endedAt: Record<string, number> = {}
    for (const ttlMs of [1_000, 5_000, 10_000]) {
      const lock = await locks.lock(`ttl ${ttlMs}`, { ttlMs })
      lock.signal.addEventListener('abort', () => (endedAt[lock.key] = clock.now() - start))
    }
    store.blackHole('renew')
    store.blackHole('release')
    await clock.advance(60_000)
    expect(endedAt).toEqual({ 'ttl 1000': 979, 'ttl 5000': 4_895, 'ttl 10000': 9_790 })
  })
})

describe('a renewal that fails', () => {
  it('is tried again within what is left, and the lock is kept when one succeeds', async () => {
    const { manager, store, clock, named } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    store.fail('renew', outage(), { times: 3 })
    await clock.advance(8_000)
    expect(named('renew-failed')).toHaveLength(3)
    expect(lock.remainingMs).toBeGreaterThan(3_000)
    await clock.advance(60_000)
    lock.assertHeld()
  })

  it('is tried again sooner and sooner, but not in a busy loop, until the deadline ends it', async () => {
    const { manager, store, clock } = manualWorld()
    const start = clock.now()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    let abortedAt = Infinity
    lock.signal.addEventListener('abort', () => (abortedAt = clock.now() - start))
    store.fail('renew', outage(), { times: Infinity })
    await clock.advance(60_000)
    expect(abortedAt).toBe(8_811)
    const sent = store.sent('renew').map(({ sentAt }) => sentAt - start)
    expect(sent[0]).toBeLessThanOrEqual(3_000)
    expect(sent.length).toBeGreaterThan(5)
    expect(sent.length).toBeLessThan(100)
    for (const [i, at] of sent.slice(1).entries()) expect(at - sent[i]!).toBeGreaterThanOrEqual(15)
    expect(sent.at(-1)!).toBeLessThan(8_811)
  })

  it('for good, too: only the store’s word or the deadline ends a hold', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    store.fail('renew', new BackendError('MISCONF', { transient: false }), { times: 2 })
    store.fail('renew', new TypeError('a bug'))
    await clock.advance(30_000)
    lock.assertHeld()
  })

  it('for one lock leaves its neighbours alone', async () => {
    const { manager, store, clock, named } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    const [a, b, c] = [await locks.lock('a'), await locks.lock('b'), await locks.lock('c')]
    store.answer('renew', [
      { status: 'held', waiting: 0 },
      { status: 'failed', error: new BackendError('WRONGTYPE', { transient: false }) },
      { status: 'lost' },
    ])
    await clock.advance(3_000)
    expect(named('renew-failed').map(({ key }) => key)).toEqual(['b'])
    expect([a, b, c].map((lock) => lock.signal.aborted)).toEqual([false, false, true])
    expect(a.remainingMs).toBe(8_811 - (clock.now() - store.sent('renew')[0]!.sentAt))
    expect(b.remainingMs).toBe(5_811)
    await clock.advance(30_000)
    a.assertHeld()
    b.assertHeld()
  })

  it('that is left out of an answer is tried again', async () => {
    const { manager, store, clock, named, unheard } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    const both = [await locks.lock('a'), await locks.lock('b')]
    store.answer('renew', [{ status: 'held', waiting: 0 }])
    await clock.advance(30_000)
    for (const lock of both) lock.assertHeld()
    expect(named('renew-failed').map(({ key }) => key)).toEqual(['a', 'b'])
    expect(unheard).toEqual([])
  })

  it('makes no unhandled rejection, whatever it fails with', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const locks = manager({ ttlMs: 1_000 })
    for (const error of [outage(), new Error('no HoldfastError'), 'a string', undefined, null]) {
      await locks.lock(`k ${String(error)}`)
      store.intercept('renew', () => Promise.reject(error), { times: 3 })
      store.intercept('release', () => Promise.reject(error), { times: 3 })
      await clock.advance(700)
    }
    store.fail('renew', new Error('for ever'), { times: Infinity })
    await clock.advance(60_000)
    await settle()
    expect(unheard).toEqual([])
  })
})

describe('the store says', () => {
  it.each([
    ['lost', 'it expired or was taken away'],
    ['revoked', 'it was revoked'],
  ])('%s: the hold ends at once', async (status, why) => {
    const { manager, store, clock, named } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const reasons: unknown[] = []
    lock.signal.addEventListener('abort', () => reasons.push(lock.signal.reason))
    store.answer('renew', [{ status }])
    await clock.advance(3_000)
    expect(reasons).toHaveLength(1)
    expect(reasons[0]).toBeInstanceOf(OwnershipLostError)
    expect((reasons[0] as Error).message).toContain(why)
    expect(named('lost')[0]!.at).toBe(store.sent('renew')[0]!.sentAt)
    expect(await lock.release()).toBe(false)
    await clock.advance(60_000)
    expect(store.sent('renew')).toHaveLength(1)
  })

  it('that an earlier lock was revoked, told late, leaves the one that is held now alone', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await (await locks.lock('k')).release()
    const [claimId] = store.sent('claim')[0]!.claimIds
    const lock = await locks.lock('k')
    store.wake(locks.owner, { kind: 'revoked', resource: 'k', claimId: claimId! })
    lock.assertHeld()
  })

  it('a revoked lock is let go by its holder, so that the next need not wait', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 60_000 })
    store.holdWakeUps()
    await b.forceRelease('k')
    await clock.advance(20_000)
    expect(store.sent('release').map(({ owner }) => owner)).toEqual([a.owner])
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('lost in answer to a lock that was released meanwhile: nothing happens', async () => {
    const { manager, store, clock, named } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const renewal = store.hold('renew')
    await clock.advance(3_000)
    await lock.release()
    renewal.release()
    await settle()
    expect(named('lost')).toEqual([])
    expect(lock.signal.aborted).toBe(false)
  })
})

describe('whatever the network does', () => {
  it('no two hold at the same time, nobody believes in a lock beyond its deadline, and nothing stays behind', async () => {
    const fault = fc.record({
      method: fc.constantFrom('claim', 'renew', 'release'),
      kind: fc.constantFrom('fail', 'failReply', 'delay', 'delayReply', 'duplicate', 'hang'),
      ms: fc.nat(2_500),
    })
    const step = fc.record({
      who: fc.nat(2),
      what: fc.constantFrom('lock', 'try', 'release', 'abort', 'drop wake-ups', 'stall', 'wait', 'wait', 'extend'),
      ms: fc.nat(900),
      fault: fc.option(fault),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 40 }), async (steps) => {
        const { manager, store, clock, unheard } = manualWorld()
        const managers = [manager(), manager(), manager()]
        const held = new Set<{ assertHeld(): void; release(): Promise<boolean>; extend(ms: number): Promise<void>; fence: bigint }>()
        const controllers: AbortController[] = []
        let lastFence = 0n
        const isHeld = (lock: { assertHeld(): void }) => {
          try {
            lock.assertHeld()
            return true
          } catch {
            return false
          }
        }
        const got = (lock: typeof held extends Set<infer L> ? L | null : never) => {
          if (!lock) return
          expect(lock.fence).toBeGreaterThan(lastFence)
          lastFence = lock.fence
          held.add(lock)
        }
        for (const { who, what, ms, fault: planned } of steps) {
          const locks = managers[who]!
          if (planned) {
            const method = planned.method as 'claim' | 'renew' | 'release'
            if (planned.kind === 'hang') store.holdReply(method)
            else if (planned.kind === 'delay' || planned.kind === 'delayReply') store[planned.kind](method, planned.ms)
            else store[planned.kind as 'fail' | 'failReply' | 'duplicate'](method)
          }
          const controller = new AbortController()
          if (what === 'lock') {
            controllers.push(controller)
            void locks.lock('k', { ttlMs: 1_000, signal: controller.signal }).then(got, () => {})
          } else if (what === 'try') {
            void locks.tryLock('k', { ttlMs: 1_000, waitMs: ms }).then(got, () => {})
          } else if (what === 'release') {
            for (const lock of held) void lock.release().catch(() => {})
            // The guarded work is over, whatever becomes of the release.
            held.clear()
          } else if (what === 'extend') {
            for (const lock of held) void lock.extend(100 + ms * 2).catch(() => {})
          } else if (what === 'abort') {
            controllers.pop()?.abort()
          } else if (what === 'drop wake-ups') {
            const wakeUps = store.holdWakeUps()
            await clock.advance(1)
            wakeUps.drop()
          } else if (what === 'stall') {
            clock.jump(ms * 2)
          }
          for (let i = 0; i < 4; i++) {
            await clock.advance(what === 'wait' ? ms / 4 : 1)
            expect([...held].filter(isHeld).length).toBeLessThanOrEqual(1)
          }
        }
        store.heal()
        for (const locks of managers) {
          const closing = locks.close()
          await clock.advance(30_000)
          await closing
        }
        const last = await manager().tryLock('k')
        expect(last).not.toBeNull()
        expect(last!.fence).toBeGreaterThan(lastFence)
        expect(unheard).toEqual([])
      }),
      { numRuns: 150 },
    )
  })
})
