/** Until when a holder may believe that it holds, and how it learns that it does not. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { deadlineOf, isTooShort, marginMs } from '../../src/core/deadline.js'
import { BackendError, OwnershipLostError, type DistributedLock } from '../../src/index.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

/** D − s for a TTL, written out: 0.1 % for the store's clock, and clamp(2 %, 5, 250) for late timers. */
const LEFT: [ttlMs: number, leftMs: number][] = [
  [100, 94.9],
  [250, 244.75],
  [1_000, 979],
  [10_000, 9_790],
  [12_500, 12_237.5],
  [60_000, 59_690],
  [2 ** 31 - 1, (2 ** 31 - 1) * 0.999 - 250],
]

describe('the deadline', () => {
  it.each(LEFT)('of a TTL of %d ms is %d ms after the request was sent', async (ttlMs, leftMs) => {
    expect(deadlineOf(500, ttlMs)).toBeCloseTo(500 + leftMs, 6)
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs, autoRenew: false })
    expect(lock.remainingMs).toBeCloseTo(leftMs, 6)
    clock.jump(leftMs - 0.01)
    lock.assertHeld()
    clock.jump(0.02)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
  })

  it('has a margin of 2 %, at least 5 ms and at most 250 ms', () => {
    expect([100, 250, 300, 5_000, 12_500, 1e9].map(marginMs)).toEqual([5, 5, 6, 100, 250, 250])
  })

  it('always comes before the store could think otherwise', () => {
    fc.assert(
      fc.property(fc.integer({ min: 100, max: 2 ** 31 - 1 }), fc.double({ min: 0, max: 0.001, noNaN: true }), (ttlMs, fast) => {
        const expiry = ttlMs / (1 + fast)
        expect(deadlineOf(0, ttlMs)).toBeLessThan(expiry)
        expect(deadlineOf(0, ttlMs)).toBeGreaterThan(ttlMs * 0.94)
      }),
    )
  })

  it('leaves less than 20 % of the TTL: too short', () => {
    expect(isTooShort(199, 1_000)).toBe(true)
    expect(isTooShort(200, 1_000)).toBe(false)
  })

  it('counts from before the request was sent, not from the reply', async () => {
    const { manager, store, clock } = manualWorld()
    store.delayReply('claim', 4_000)
    const waiting = manager().lock('k', { autoRenew: false })
    await clock.advance(4_000)
    const lock = await waiting
    expect(lock.remainingMs).toBe(5_790)
    clock.jump(5_790)
    expect(lock.signal.aborted).toBe(true)
  })

  it('counts from before the request was sent, however long it took to the store', async () => {
    const { manager, store, clock } = manualWorld()
    store.delay('claim', 4_000)
    const waiting = manager().lock('k', { autoRenew: false })
    await clock.advance(4_000)
    expect((await waiting).remainingMs).toBe(5_790)
  })
})

describe('a reply that comes late', () => {
  it('after more than 80 % of the TTL is asked again before anybody gets the lock', async () => {
    const { manager, store, clock } = manualWorld()
    const ttlMs = 5_000
    // 0.999 × 5,000 − 100 − 3,896 = 999 left: less than 20 %.
    store.delayReply('claim', 3_896)
    const waiting = watch(manager().lock('k', { ttlMs }))
    const again = store.hold('claim')
    await clock.advance(3_896)
    expect(waiting.state).toBe('pending')
    expect(store.sent('claim')).toHaveLength(2)
    expect(store.sent('claim')[1]!.claimIds).toEqual(store.sent('claim')[0]!.claimIds)
    again.release()
    await settle()
    expect(waiting.value!.remainingMs).toBe(4_895)
  })

  it('within that is good enough', async () => {
    const { manager, store, clock } = manualWorld()
    store.delayReply('claim', 3_895)
    const waiting = watch(manager().lock('k', { ttlMs: 5_000, autoRenew: false }))
    await clock.advance(3_895)
    expect(store.sent('claim')).toHaveLength(1)
    expect(waiting.value!.remainingMs).toBe(1_000)
  })

  it('within that gives a lock that is renewed in time', async () => {
    const { manager, store, clock } = manualWorld()
    store.delayReply('claim', 3_500)
    const waiting = watch(manager().lock('k', { ttlMs: 5_000 }))
    await clock.advance(3_500)
    expect(store.sent('claim')).toHaveLength(1)
    // A third of the TTL from now would be too late.
    await clock.advance(30_000)
    waiting.value!.assertHeld()
  })

  it('again and again is an error that says what to do, and leaves nothing behind', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.delayReply('claim', 1_000, { times: Infinity, owner: a.owner })
    const waiting = watch(a.lock('k', { ttlMs: 1_000 }))
    await clock.advance(3_000)
    expect(waiting.error).toBeInstanceOf(BackendError)
    expect(waiting.error.message).toContain('take longer than 80 % of ttlMs (1000): a longer TTL is needed')
    expect(store.sent('claim')).toHaveLength(3)
    expect(await b.tryLock('k')).not.toBeNull()
  })
})

describe('a pushed grant', () => {
  /** A holder, and one who waits behind it for `ttlMs`; the store has granted it, but not told anybody. */
  async function granted(ttlMs = 10_000, autoRenew = false) {
    const world = manualWorld()
    const [a, b] = [world.manager(), world.manager()]
    const lock = await a.lock('k', { ttlMs: 600_000 })
    const waiting = watch(b.lock('k', { ttlMs, autoRenew }))
    await settle()
    const wakeUps = world.store.holdWakeUps()
    await lock.release()
    await settle()
    const grant = world.store.wakeUps.find(({ kind }) => kind === 'granted')
    if (grant?.kind !== 'granted') throw new Error('The store has not granted it.')
    const push = async (since: number | undefined, forMs?: number) => {
      world.store.wake(b.owner, { ...grant, since, ...(forMs !== undefined && { forMs }) })
      await settle()
    }
    return { ...world, waiting, push, wakeUps, asked: () => world.store.sent('claim').length - 2 }
  }

  it('is taken without asking again', async () => {
    const { clock, waiting, push, asked } = await granted()
    await push(clock.now())
    expect(waiting.value!.remainingMs).toBe(9_790)
    expect(asked()).toBe(0)
  })

  it('is judged by the time that it gives, not by its arrival', async () => {
    const { clock, waiting, push, asked } = await granted()
    const since = clock.now()
    clock.jump(5_000)
    await push(since)
    expect(waiting.value!.remainingMs).toBe(4_790)
    expect(asked()).toBe(0)
  })

  it('with less than 20 % left is asked again', async () => {
    const { clock, waiting, push, asked } = await granted()
    const since = clock.now()
    clock.jump(7_791)
    await push(since)
    expect(asked()).toBe(1)
    expect(waiting.value!.remainingMs).toBe(9_790)
  })

  it('without a time is asked again', async () => {
    const { waiting, push, asked } = await granted()
    await push(undefined)
    expect(asked()).toBe(1)
    expect(waiting.value!.remainingMs).toBe(9_790)
  })

  it('without a time, and the lock gone meanwhile, is not taken for held', async () => {
    const { manager, clock, waiting, push } = await granted(1_000)
    clock.jump(1_000)
    const third = await manager().tryLock('k')
    expect(third).not.toBeNull()
    await push(undefined)
    expect(waiting.state).toBe('pending')
  })

  it('that is overdue, and the lock gone meanwhile, is not taken for held', async () => {
    const { manager, clock, waiting, push } = await granted(1_000)
    const since = clock.now()
    clock.jump(1_000)
    const third = await manager().tryLock('k')
    expect(third).not.toBeNull()
    await push(since)
    expect(waiting.state).toBe('pending')
    third!.assertHeld()
  })

  it('for less than the TTL lasts for that long, and is renewed at once', async () => {
    const { clock, store, waiting, push, asked } = await granted(10_000, true)
    const renewals = store.hold('renew')
    await push(clock.now(), 2_000)
    expect(waiting.value!.remainingMs).toBe(1_958)
    await clock.advance(0)
    expect(asked()).toBe(0)
    expect(store.sent('renew')).toHaveLength(1)
    await clock.advance(100)
    waiting.value!.assertHeld()
    renewals.release()
    await settle()
    expect(waiting.value!.remainingMs).toBe(9_690)
  })

  it('for less than the TTL, and never renewed, ends before the store would end it', async () => {
    const { clock, store, waiting, push } = await granted(10_000, true)
    store.hold('renew')
    await push(clock.now(), 2_000)
    await clock.advance(1_957)
    waiting.value!.assertHeld()
    await clock.advance(1)
    expect(waiting.value!.signal.aborted).toBe(true)
  })

  it('for less than the TTL of which too little is left is asked again', async () => {
    const { clock, waiting, push, asked } = await granted(10_000, true)
    const since = clock.now()
    clock.jump(1_559)
    await push(since, 2_000)
    expect(asked()).toBe(1)
    expect(waiting.value!.remainingMs).toBe(9_790)
  })

  it('for less than the TTL of a lock that nobody renews is asked again', async () => {
    const { clock, waiting, push, asked } = await granted()
    await push(clock.now(), 2_000)
    expect(asked()).toBe(1)
    expect(waiting.value!.remainingMs).toBe(9_790)
  })

  it('from a store whose clock runs ahead lasts no longer than a TTL from now', async () => {
    const { clock, waiting, push } = await granted()
    await push(clock.now() + 60_000)
    expect(waiting.value!.remainingMs).toBe(9_800)
  })

  it('gives a lock that is renewed in time, however late it came', async () => {
    const world = manualWorld()
    const { manager, store, clock } = world
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 600_000 })
    const waiting = watch(b.lock('k', { ttlMs: 6_000 }))
    await settle()
    const wakeUps = store.holdWakeUps()
    await lock.release()
    await settle()
    await clock.advance(4_200)
    wakeUps.release()
    await settle()
    expect(store.sent('claim')).toHaveLength(2)
    await clock.advance(30_000)
    waiting.value!.assertHeld()
  })

  it('told twice is one grant', async () => {
    const { clock, store, waiting, push, named, wakeUps } = await granted()
    await push(clock.now())
    await push(clock.now())
    wakeUps.release()
    await settle()
    waiting.value!.assertHeld()
    expect(named('acquired')).toHaveLength(2)
    expect(store.sent('release')).toHaveLength(1)
  })
})

describe('after a stall, in the very next line', () => {
  /** The clock has jumped past the deadline, and no timer has fired. */
  async function stalled() {
    const world = manualWorld()
    const lock = await world.manager().lock('k')
    return { ...world, lock, stall: () => world.clock.jump(15_000) }
  }

  it('signal.aborted tells the truth, with the reason', async () => {
    const { lock, stall } = await stalled()
    const { signal } = lock
    expect(signal.aborted).toBe(false)
    stall()
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toBeInstanceOf(OwnershipLostError)
  })

  it('signal.reason tells the truth first', async () => {
    const { lock, stall } = await stalled()
    const { signal } = lock
    expect(signal.reason).toBeUndefined()
    stall()
    expect(signal.reason).toBeInstanceOf(OwnershipLostError)
  })

  it('signal.throwIfAborted() throws', async () => {
    const { lock, stall } = await stalled()
    const { signal } = lock
    signal.throwIfAborted()
    stall()
    expect(() => signal.throwIfAborted()).toThrow(OwnershipLostError)
  })

  it('assertHeld() throws the same error that the signal has', async () => {
    const { lock, stall } = await stalled()
    const { signal } = lock
    stall()
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
    expect(() => lock.assertHeld()).toThrow(signal.reason as Error)
    expect(signal.aborted).toBe(true)
  })

  it('remainingMs is 0', async () => {
    const { lock, stall } = await stalled()
    stall()
    expect(lock.remainingMs).toBe(0)
  })

  it('a signal read for the first time is aborted', async () => {
    const { lock, stall } = await stalled()
    stall()
    expect(lock.signal.aborted).toBe(true)
  })

  it('reading lock.signal is enough to abort one that was handed out before', async () => {
    const { lock, stall } = await stalled()
    let told = 0
    lock.signal.addEventListener('abort', () => told++)
    stall()
    void lock.signal
    expect(told).toBe(1)
  })

  it('AbortSignal.any is aborted', async () => {
    const { lock, stall } = await stalled()
    const { signal } = lock
    stall()
    const both = AbortSignal.any([signal, new AbortController().signal])
    expect(both.aborted).toBe(true)
    expect(both.reason).toBeInstanceOf(OwnershipLostError)
  })

  it('fetch and the promises of timers refuse to start', async () => {
    const { lock, stall } = await stalled()
    const { signal } = lock
    stall()
    await expect(fetch('http://127.0.0.1:9/', { signal })).rejects.toThrow(OwnershipLostError)
  })

  it('release() says false, extend() and transfer() throw, unlock() says that it was lost', async () => {
    for (const use of [
      async (lock: DistributedLock) => expect(await lock.release()).toBe(false),
      async (lock: DistributedLock) => expect(lock.extend(5_000)).rejects.toThrow(OwnershipLostError),
      async (lock: DistributedLock) => expect(() => lock.transfer()).toThrow(OwnershipLostError),
    ]) {
      const { lock, stall } = await stalled()
      stall()
      await use(lock)
    }
    const world = manualWorld()
    const locks = world.manager()
    await locks.lock('k')
    world.clock.jump(15_000)
    await expect(locks.unlock('k')).rejects.toThrow(OwnershipLostError)
  })

  it('in a callback form the signal tells of the loss too', async () => {
    const { manager, clock } = manualWorld()
    await manager().withLock('k', { signal: new AbortController().signal }, (lock) => {
      const { signal } = lock
      clock.jump(15_000)
      expect(signal.aborted).toBe(true)
      expect(signal.reason).toBeInstanceOf(OwnershipLostError)
    })
  })

  it('a renewal that was sent before the stall and is answered after it does not bring the lock back', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const renewal = store.holdReply('renew')
    await clock.advance(3_000)
    clock.jump(8_812)
    renewal.release()
    await settle()
    // Sent at 3,000: good for 8,811 from then.
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
  })

  it('a renewal that was sent before the stall and answered in time for it keeps the lock', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const renewal = store.holdReply('renew')
    await clock.advance(3_000)
    clock.jump(5_800)
    renewal.release()
    await settle()
    expect(lock.remainingMs).toBe(8_811 - (clock.now() - store.sent('renew')[0]!.sentAt))
  })

  it('the loss is told once, however many look', async () => {
    const { lock, stall, named, clock } = await stalled()
    const told: unknown[] = []
    lock.signal.addEventListener('abort', () => told.push(lock.signal.reason))
    stall()
    void lock.signal.aborted
    void lock.remainingMs
    expect(() => lock.assertHeld()).toThrow()
    await clock.advance(60_000)
    expect(told).toHaveLength(1)
    expect(named('lost')).toHaveLength(1)
  })
})

describe('a lost lock', () => {
  it('is told by an abort event at its deadline, before the store lets others in', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const start = clock.now()
    const lock = await a.lock('k')
    store.blackHole('renew')
    store.blackHole('release')
    let abortedAt = Infinity
    let grantedAt = Infinity
    lock.signal.addEventListener('abort', () => (abortedAt = clock.now() - start))
    void b.lock('k').then(() => (grantedAt = clock.now() - start))
    await clock.advance(20_000)
    expect(abortedAt).toBe(9_790)
    expect(grantedAt).toBeGreaterThanOrEqual(10_000)
    expect(grantedAt).toBeLessThan(10_050)
  })

  it('is given back, in case that the store still counts it as ours: the next need not wait for the TTL', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 60_000, maxHoldMs: 1_000 })
    const waiting = watch(b.lock('k'))
    await clock.advance(1_000)
    expect(store.sent('release').map(({ owner }) => owner)).toEqual([a.owner])
    expect(waiting.state).toBe('resolved')
  })

  it('is never acquired again behind the holder’s back', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k')
    const renewals = store.blackHole('renew')
    await clock.advance(10_000)
    renewals.release()
    store.heal()
    await clock.advance(60_000)
    expect(lock.signal.aborted).toBe(true)
    expect(store.sent('claim')).toHaveLength(1)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
  })

  it('names the key and what happened', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const reasons: Record<string, DistributedLock> = {
      'it was not renewed within its TTL (10000 ms)': await locks.lock('expired', { autoRenew: false }),
      'maxHoldMs (2000) is over': await locks.lock('capped', { maxHoldMs: 2_000 }),
    }
    await clock.advance(10_000)
    for (const [why, lock] of Object.entries(reasons)) {
      expect(lock.signal.reason).toMatchObject({ key: lock.key, code: 'OWNERSHIP_LOST' })
      expect((lock.signal.reason as Error).message).toBe(
        `The lock on "${lock.key}" is lost: ${why}. Another process may hold it now; stop the guarded work.`,
      )
    }
    expect(store.sent('release').length).toBeGreaterThanOrEqual(2)
  })

  it('has a signal that is aborted also if it is looked at only after release() has said false', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { autoRenew: false })
    clock.jump(20_000)
    expect(await lock.release()).toBe(false)
    expect(lock.signal.aborted).toBe(true)
  })

  it('of which the store was not told yet is withdrawn again until it is', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 60_000, maxHoldMs: 1_000 })
    store.fail('release', undefined, { times: 3 })
    await clock.advance(1_000)
    expect(await b.tryLock('k')).toBeNull()
    await clock.advance(1_000)
    expect(await b.tryLock('k')).not.toBeNull()
  })
})

describe('autoRenew: false', () => {
  it('ends at the TTL, without a renewal', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 5_000, autoRenew: false })
    let aborted = false
    lock.signal.addEventListener('abort', () => (aborted = true))
    await clock.advance(4_894)
    expect(aborted).toBe(false)
    await clock.advance(1)
    expect(aborted).toBe(true)
    await clock.advance(105)
    expect(store.sent('renew')).toEqual([])
    expect(await b.tryLock('k')).not.toBeNull()
  })
})

describe('maxHoldMs', () => {
  it('ends the hold, renewed or not, and tells the holder', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 3_000, maxHoldMs: 10_000 })
    await clock.advance(9_999)
    lock.assertHeld()
    expect(store.sent('renew').length).toBeGreaterThan(5)
    await clock.advance(1)
    expect(lock.signal.reason).toBeInstanceOf(OwnershipLostError)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('shows in remainingMs', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 10_000, maxHoldMs: 4_000 })
    expect(lock.remainingMs).toBe(4_000)
    clock.jump(1_500)
    expect(lock.remainingMs).toBe(2_500)
  })

  it('counts from the grant, not from the asking', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const first = await a.lock('k')
    const waiting = b.lock('k', { maxHoldMs: 5_000 })
    await clock.advance(20_000)
    await first.release()
    const lock = await waiting
    expect(lock.remainingMs).toBe(5_000)
  })

  it('longer than the TTL without renewal changes nothing', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 1_000, autoRenew: false, maxHoldMs: 60_000 })
    clock.jump(980)
    expect(() => lock.assertHeld()).toThrow('not renewed within its TTL')
  })
})
