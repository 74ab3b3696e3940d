/** lock, tryLock, withLock, unlock, and what a handle says. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { getEventListeners } from 'node:events'
import { inspect } from 'node:util'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  BackendError, LockNotAcquiredError, LockNotHeldError, OwnershipLostError, type DistributedLock,
} from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { all, manualWorld, watch } from '../support/manual-world.js'

describe('lock', () => {
  it('gives a lock on a free key with one request', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    expect(lock.key).toBe('k')
    expect(store.requests.map(({ method }) => method)).toEqual(['claim'])
    lock.assertHeld()
  })

  it('excludes every other manager, and every other call in this one', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    expect(await a.tryLock('k')).toBeNull()
    expect(await b.tryLock('k')).toBeNull()
    expect(await b.tryLock('other')).not.toBeNull()
  })

  it('waits without limit unless it is told otherwise', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const waiting = watch(b.lock('k'))
    await clock.advance(24 * 3_600_000)
    expect(waiting.state).toBe('pending')
    await lock.release()
    await settle()
    expect(waiting.state).toBe('resolved')
  })

  it('is served in the order of asking, by one release each, with no request in between', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const order: number[] = []
    const first = await a.lock('k', { fairness: 'strict' })
    const waiting: Promise<void>[] = []
    for (let i = 0; i < 20; i++) {
      waiting.push((i % 2 ? a : b).lock('k', { fairness: 'strict' }).then(async (lock) => (order.push(i), void (await lock.release()))))
      await settle()
    }
    expect(store.sent('claim')).toHaveLength(21)
    await first.release()
    await Promise.all(waiting)
    expect(order).toEqual([...Array(20).keys()])
    expect(store.sent('claim')).toHaveLength(21)
    expect(store.sent('release')).toHaveLength(21)
    expect(clock.pending('awaited')).toBe(0)
  })

  it('gets the lock of a holder that died, as soon as it has expired', async () => {
    const { manager, clock, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 5_000 })
    store.blackHole('renew', { owner: a.owner })
    store.blackHole('release', { owner: a.owner })
    const waiting = watch(b.lock('k'))
    await clock.advance(5_000)
    expect(waiting.state).toBe('pending')
    await clock.advance(3)
    expect(waiting.state).toBe('resolved')
  })

  it('is told of a grant whose wake-up was lost no later than the moment the blocker could have expired', async () => {
    const { manager, clock, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 5_000 })
    const waiting = watch(b.lock('k'))
    await clock.advance(1_000)
    const wakeUps = store.holdWakeUps()
    await lock.release()
    await clock.advance(3_000)
    expect(waiting.state).toBe('pending')
    await clock.advance(1_003)
    expect(waiting.state).toBe('resolved')
    wakeUps.drop()
  })

  it('asks again at once when the store says that wake-ups may have been lost', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const waiting = watch(b.lock('k'))
    await settle()
    store.holdWakeUps()
    await lock.release()
    await settle()
    expect(waiting.state).toBe('pending')
    store.wake(b.owner, { kind: 'look' })
    await settle()
    expect(waiting.state).toBe('resolved')
  })

  it('asks again only about the resource of which wake-ups may have been lost, if the store says which', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    for (const key of ['x', 'y']) {
      await a.lock(key)
      watch(b.lock(key))
    }
    await settle()
    const before = store.sent('claim').length
    store.wake(b.owner, { kind: 'look', resource: 'x' })
    await settle()
    expect(store.sent('claim').slice(before).map(({ keys }) => keys)).toEqual([['x']])
    store.wake(b.owner, { kind: 'look' })
    await settle()
    // In whichever order: they are in no line with each other.
    expect(store.sent('claim').slice(before + 1).map(({ keys }) => [...keys].sort())).toEqual([['x', 'y']])
  })

  it('takes no old push for a grant that is over: it asks', async () => {
    const { manager, store } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    await (await a.lock('k')).release()
    await c.lock('k')
    const waiting = watch(b.lock('k'))
    await settle()
    const [claimId] = store.sent('claim').at(-1)!.claimIds
    // The key has had a later holder since: this push was on its way for long.
    store.wake(b.owner, { kind: 'granted', resource: 'k', claimId: claimId!, epoch: 1n, since: 1_000_000, waiting: 0 })
    await settle()
    expect(waiting.state).toBe('pending')
  })

  it('looks again if it is told to look while it asks', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const reply = store.holdReply('claim')
    const waiting = watch(b.lock('k'))
    await settle()
    store.holdWakeUps()
    await lock.release()
    store.wake(b.owner, { kind: 'look' })
    await settle()
    expect(store.sent('claim')).toHaveLength(2)
    // The reply says `queued`, which was true when it was sent.
    reply.release()
    await settle()
    expect(store.sent('claim')).toHaveLength(3)
    expect(waiting.state).toBe('resolved')
  })

  it('takes a pushed grant that overtakes the reply to its claim', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const reply = store.holdReply('claim')
    const waiting = watch(b.lock('k'))
    await settle()
    await lock.release()
    await settle()
    expect(waiting.state).toBe('resolved')
    // A release has to come after the claim that is still on its way, or that could bring the lock back.
    const released = watch(waiting.value!.release())
    await settle()
    expect(store.sent('release')).toHaveLength(1)
    reply.release()
    await settle()
    expect(released).toEqual({ state: 'resolved', value: true })
    expect(store.sent('release')).toHaveLength(2)
  })

  it('is found out by asking every retryMs where the store does not tell of grants', async () => {
    const { manager, store, clock } = manualWorld({ wakes: 'poll' })
    const [a, b] = [manager(), manager()]
    store.holdWakeUps()
    const lock = await a.lock('k', { ttlMs: 60_000 })
    const waiting = watch(b.lock('k', { retryMs: 70 }))
    await clock.advance(1_000)
    await lock.release()
    await clock.advance(70)
    expect(waiting.state).toBe('resolved')
    const asked = store.sent('claim').filter(({ owner }) => owner === b.owner).map(({ sentAt }) => sentAt)
    for (const [i, at] of asked.slice(1).entries()) expect(at - asked[i]!).toBeGreaterThanOrEqual(70)
  })

  it('looks every retryMs while an outsider holds the key, of whom nobody tells', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager({ retryMs: 50 })
    const outsider = { owner: undefined, heldForMs: undefined, expiresInMs: 60_000 }
    store.answer('claim', [{ status: 'queued', place: '1', holder: outsider, ahead: 0, waiting: 0 }], { times: 4 })
    const waiting = watch(locks.lock('k'))
    await clock.advance(200)
    expect(waiting.state).toBe('resolved')
    const start = store.sent('claim')[0]!.sentAt
    expect(store.sent('claim').map(({ sentAt }) => sentAt - start)).toEqual([0, 50, 100, 150, 200])
  })

  it('keeps its place alive with one heartbeat per process and key, by whoever is first there', async () => {
    const { manager, store, clock } = manualWorld({ heartbeatMs: 800 })
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 600_000 })
    const controller = new AbortController()
    const first = watch(b.lock('k', { signal: controller.signal, fairness: 'strict' }))
    await settle()
    const second = watch(b.lock('k', { fairness: 'strict' }))
    await settle()
    const [firstId, secondId] = store.sent('claim').slice(1).map(({ claimIds }) => claimIds[0])
    const askedIn = async (ms: number) => {
      const before = store.sent('claim').length
      await clock.advance(ms)
      return store.sent('claim').slice(before).map(({ claimIds }) => claimIds[0])
    }
    expect(await askedIn(2_400)).toEqual([firstId, firstId, firstId])
    controller.abort()
    await settle()
    expect(first.state).toBe('rejected')
    expect(await askedIn(2_400)).toEqual([secondId, secondId, secondId])
    await lock.release()
    await settle()
    expect(second.state).toBe('resolved')
    expect(await askedIn(2_400)).toEqual([])
  })

  it('says where it stood when it asks again', async () => {
    const { manager, store, clock } = manualWorld({ heartbeatMs: 800 })
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 600_000 })
    watch(b.lock('k'))
    await settle()
    store.answer('claim', [{ status: 'queued', place: 'place 7', holder: { owner: a.owner }, ahead: 0, waiting: 0 }])
    await clock.advance(800)
    let placeSent: unknown
    store.intercept('claim', (send) => {
      placeSent = store.sent('claim').at(-1)!.args[0][0].place
      return send()
    })
    await clock.advance(800)
    expect(placeSent).toBe('place 7')
  })
})

describe('a claim that was granted and revoked before its waiter knew', () => {
  async function revokedUnseen() {
    const world = manualWorld()
    const [a, b, c] = [world.manager(), world.manager(), world.manager()]
    const lock = await a.lock('k', { ttlMs: 5_000 })
    const waiting = watch(b.lock('k', { ttlMs: 600_000 }))
    await world.clock.advance(100)
    const wakeUps = world.store.holdWakeUps()
    await lock.release()
    expect(await c.forceRelease('k')).toBe(true)
    await settle()
    return { ...world, waiting, wakeUps, c }
  }

  it('does not end a wait without limit', async () => {
    const { waiting, wakeUps, clock } = await revokedUnseen()
    wakeUps.drop()
    await clock.advance(10_000)
    expect(waiting.state).not.toBe('rejected')
  })

  it('is let go, and not in the way of others for the rest of its TTL', async () => {
    const { waiting, wakeUps, clock, c } = await revokedUnseen()
    wakeUps.drop()
    await clock.advance(10_000)
    await waiting.value?.release()
    expect(await c.tryLock('k')).not.toBeNull()
  })

  it('starts afresh though a later request of it was not sent yet', async () => {
    const { manager, clock, store, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const held = await b.lock('k')
    const waiting = watch(a.lock('k'))
    await settle()
    const id = store.sent('claim').at(-1)!.claimIds[0]!
    const hung = store.hold('claim', { owner: a.owner })
    store.wake(a.owner, { kind: 'look' })
    await settle()
    // Granted, and revoked; neither is heard of.
    const pushes = store.holdWakeUps()
    await held.release()
    await b.forceRelease('k')
    pushes.drop()
    await clock.advance(4_990)
    // Keeps the lane busy when it is asked for again.
    const busy = store.hold('claim', { owner: a.owner })
    void a.lock('other')
    await clock.advance(15)
    expect(store.sent('claim').filter(({ claimIds }) => claimIds.includes(id))).toHaveLength(2)
    hung.release()
    await settle()
    busy.release()
    await clock.advance(100)
    expect(unheard).toEqual([])
    expect(waiting.state).toBe('resolved')
  })
})

describe('a store that fails', () => {
  it('is asked again under the same id: a grant whose reply was lost is found, not waited for', async () => {
    const { manager, store, clock } = manualWorld()
    store.failReply('claim')
    const waiting = watch(manager().lock('k'))
    await clock.advance(50)
    expect(waiting.state).toBe('resolved')
    const [first, second] = store.sent('claim')
    expect(second!.claimIds).toEqual(first!.claimIds)
  })

  it('is asked with pauses that grow, and not for longer than five seconds before its first answer', async () => {
    const { manager, store, clock } = manualWorld()
    const error = outage()
    store.fail('claim', error, { times: Infinity })
    const start = clock.now()
    const waiting = watch(manager().lock('k', { retryMs: 50 }))
    await clock.advance(4_000)
    expect(waiting.state).toBe('pending')
    await clock.advance(3_000)
    expect(waiting).toEqual({ state: 'rejected', error })
    const sent = store.sent('claim').map(({ sentAt }) => sentAt - start)
    const pauses = sent.slice(1).map((at, i) => at - sent[i]!)
    for (const [i, pause] of pauses.entries()) {
      const longest = Math.min(1_000, 50 * 2 ** i)
      expect(pause).toBeGreaterThanOrEqual(longest / 2)
      expect(pause).toBeLessThanOrEqual(longest)
    }
  })

  it('is waited out by a claim that has its place already', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 20_000, autoRenew: false })
    const waiting = watch(b.lock('k'))
    await settle()
    store.fail('claim', outage(), { times: Infinity })
    store.holdWakeUps()
    await clock.advance(60_000)
    expect(waiting.state).toBe('pending')
    store.heal()
    await clock.advance(1_000)
    expect(waiting.state).toBe('resolved')
    expect(await lock.release()).toBe(false)
  })

  it('is not asked again if that cannot help', async () => {
    const { manager, store, clock } = manualWorld()
    const error = new BackendError('NOAUTH', { transient: false })
    store.fail('claim', error)
    await expect(manager().lock('k')).rejects.toBe(error)
    await clock.advance(60_000)
    expect(store.requests).toHaveLength(1)
  })

  it('is given five seconds to answer, and what it grants later is given back', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const claim = store.hold('claim')
    const waiting = watch(a.lock('k'))
    await clock.advance(4_999)
    expect(waiting.state).toBe('pending')
    await clock.advance(1)
    expect(waiting.error).toBeInstanceOf(BackendError)
    expect(waiting.error.message).toMatch(/No answer from memory within 5000 ms/)
    claim.release()
    await settle()
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('has a grant given back that was on its way for longer than anybody waited for it', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await b.lock('k')
    watch(a.lock('k', { waitMs: 100 }))
    await settle()
    const wakeUps = store.holdWakeUps()
    // The withdrawal gets lost, and nobody knows.
    store.answer('release', [{ status: 'not-held' }], { owner: a.owner })
    await clock.advance(100)
    await lock.release()
    await settle()
    expect(await b.tryLock('k')).toBeNull()
    wakeUps.release()
    await settle()
    expect(await b.tryLock('k')).not.toBeNull()
  })
})

describe('waitMs', () => {
  it('is how long lock waits, to the millisecond', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const waiting = watch(b.lock('k', { waitMs: 1_500 }))
    await clock.advance(1_499)
    expect(waiting.state).toBe('pending')
    await clock.advance(1)
    expect(waiting.error).toBeInstanceOf(LockNotAcquiredError)
  })

  it('of 0 is one try, that leaves no trace', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    await expect(b.lock('k', { waitMs: 0 })).rejects.toThrow(LockNotAcquiredError)
    await expect(b.withLock('k', { waitMs: 0 }, () => expect.unreachable())).rejects.toThrow(LockNotAcquiredError)
    expect(store.sent('claim').slice(1).map(({ args }) => args[1])).toEqual(['leave', 'leave'])
    expect(clock.pending('awaited')).toBe(0)
    expect((await all(a.inspect()))[0]!.waiters).toEqual([])
    await clock.advance(60_000)
    expect(store.sent('release')).toEqual([])
  })

  it('is the call’s, else the manager’s', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager({ waitMs: 300 })]
    await a.lock('k')
    const byManager = watch(b.lock('k'))
    const byCall = watch(b.lock('k', { waitMs: 600 }))
    const callback = watch(b.withLock('k', () => expect.unreachable()))
    const unlimited = watch(b.lock('k', { waitMs: Infinity }))
    await clock.advance(300)
    expect([byManager.state, callback.state, byCall.state]).toEqual(['rejected', 'rejected', 'pending'])
    await clock.advance(300)
    expect(byCall.state).toBe('rejected')
    await clock.advance(3_600_000)
    expect(unlimited.state).toBe('pending')
  })

  it('is not overshot whatever the store does: it hangs, fails, or answers again and again', async () => {
    const { manager, store, clock } = manualWorld({ heartbeatMs: 40 })
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const started = clock.now()
    const endedAt: number[] = []
    const ask = () => void b.lock('k', { waitMs: 1_000 }).catch(() => endedAt.push(clock.now() - started))
    ask()
    await settle()
    store.hold('claim')
    ask()
    store.fail('claim', outage(), { times: 3 })
    ask()
    await clock.advance(999)
    expect(endedAt).toEqual([])
    await clock.advance(1)
    expect(endedAt).toEqual([1_000, 1_000, 1_000])
  })

  it('leaves nothing behind when it is over', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    watch(b.lock('k', { waitMs: 500 }))
    await clock.advance(500)
    expect(store.sent('release').map(({ owner }) => owner)).toEqual([b.owner])
    expect((await all(a.inspect()))[0]!.waiters).toEqual([])
    expect(clock.pending('awaited')).toBe(0)
    expect(await lock.release()).toBe(true)
    expect(await a.tryLock('k')).not.toBeNull()
  })

  it('is not needed by a lock that comes in time', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const waiting = b.lock('k', { waitMs: 1_000 })
    await clock.advance(999)
    await lock.release()
    const got = await waiting
    await clock.advance(60_000)
    got.assertHeld()
    expect(clock.pending('awaited')).toBe(0)
  })
})

describe('tryLock', () => {
  it('gives a lock, or null', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.tryLock('k')
    expect(lock!.key).toBe('k')
    expect(await b.tryLock('k')).toBeNull()
    await lock!.release()
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('does not wait by default, whatever the manager’s waitMs', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager({ waitMs: 5_000 })]
    await a.lock('k')
    expect(await b.tryLock('k')).toBeNull()
    expect(store.sent('claim').at(-1)!.args[1]).toBe('leave')
  })

  it('gives null also after a waitMs, and the lock if it comes within', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const first = watch(b.tryLock('k', { waitMs: 1_000 }))
    await clock.advance(999)
    expect(first.state).toBe('pending')
    await clock.advance(1)
    expect(first).toEqual({ state: 'resolved', value: null })
    const second = watch(b.tryLock('k', { waitMs: 1_000 }))
    await clock.advance(500)
    await lock.release()
    await settle()
    expect(second.value!.key).toBe('k')
  })

  it('does not hide a store that failed behind null', async () => {
    const { manager, store } = manualWorld()
    const error = new BackendError('NOAUTH', { transient: false })
    store.fail('claim', error)
    await expect(manager().tryLock('k')).rejects.toBe(error)
  })
})

describe('withLock', () => {
  it('returns what its function returns, be it a promise or not', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    expect(await locks.withLock('k', () => 42)).toBe(42)
    expect(await locks.withLock('k', async () => 'later')).toBe('later')
    expect(await locks.withLock('k', { ttlMs: 500 }, () => null)).toBeNull()
    expect(await locks.withLock('k', () => {})).toBeUndefined()
  })

  it('holds the lock while the function runs, and releases it before it returns', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.withLock('k', async (lock) => {
      lock.assertHeld()
      expect(await b.tryLock('k')).toBeNull()
    })
    expect(store.sent('release')).toHaveLength(1)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('passes errors through as they are, and releases all the same', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    for (const thrown of [new Error('no stock'), 'a string', undefined]) {
      await expect(locks.withLock('k', () => { throw thrown })).rejects.toBe(thrown)
      await expect(locks.withLock('k', async () => { throw thrown })).rejects.toBe(thrown)
    }
    expect(await locks.tryLock('k')).not.toBeNull()
  })

  it('does not reject because the release failed: the result comes, and the lock is freed behind it', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.fail('release', outage(), { times: 2 })
    expect(await a.withLock('k', () => 'charged')).toBe('charged')
    expect(await b.tryLock('k')).toBeNull()
    await clock.advance(100)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('does not hide the function’s own error behind a release that failed', async () => {
    const { manager, store } = manualWorld()
    store.fail('release', outage(), { times: Infinity })
    await expect(manager().withLock('k', () => { throw new Error('no stock') })).rejects.toThrow('no stock')
  })

  it('does not renew any more what it could not release', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.fail('release', outage(), { times: Infinity })
    await a.withLock('k', { ttlMs: 2_000 }, () => {})
    await clock.advance(2_000)
    expect(store.sent('renew')).toEqual([])
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('returns what the function returned even if the lock was lost meanwhile', async () => {
    const { manager, store, clock } = manualWorld()
    store.blackHole('renew')
    const running = manager().withLock('k', async (lock) => {
      await clock.advance(20_000)
      expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
      return 'charged'
    })
    expect(await running).toBe('charged')
  })

  it('does not mind that the function released the lock itself', async () => {
    const { manager, store } = manualWorld()
    const result = manager().withLock('k', async (lock) => {
      expect(await lock.release()).toBe(true)
      return 'done'
    })
    expect(await result).toBe('done')
    expect(store.sent('release')).toHaveLength(1)
  })

  it('tries again to release what the function itself could not', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.fail('release')
    await a.withLock('k', async (lock) => {
      await expect(lock.release()).rejects.toThrow('The connection broke.')
    })
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('does not start the function if the manager was closed before it could', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    let ran = false
    // The grant is there, and in the same moment the manager is closed: the lock is given back before anybody has seen it.
    const close = () => void locks.close()
    subscribe('holdfast:acquired', close)
    onTestFinished(() => void unsubscribe('holdfast:acquired', close))
    await expect(locks.withLock('k', () => (ran = true))).rejects.toHaveProperty('code', 'MANAGER_CLOSED')
    expect(ran).toBe(false)
  })
})

describe('after many locks', () => {
  it('nothing stays behind: no timer but two, no listener, no request', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const { signal } = new AbortController()
    for (let i = 0; i < 500; i++) {
      await a.withLock(`k${i}`, { signal }, async (lock) => {
        expect(lock.signal.aborted).toBe(false)
        expect(await b.tryLock(`k${i}`, { signal })).toBeNull()
        const waiting = b.lock(`k${i}`, { signal })
        await settle()
        await lock.release()
        await (await waiting).release()
      })
    }
    expect(clock.pending('awaited')).toBe(0)
    expect(clock.pending('background')).toBeLessThanOrEqual(4)
    expect(getEventListeners(signal, 'abort')).toEqual([])
    expect(await all(a.inspect())).toEqual([])
    const sent = store.requests.length
    await clock.advance(60_000)
    expect(store.requests.length).toBe(sent)
    expect(clock.pending()).toBe(0)
  })
})

describe('a wait that loses touch with the store', () => {
  it('ends as a failure of the store, not with what was known before', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 2_000 })
    const waiting = watch(b.lock('k', { waitMs: 7_000 }))
    await clock.advance(100)
    store.blackHole('claim', { times: Infinity })
    await clock.advance(6_900)
    expect(waiting.error).toBeInstanceOf(BackendError)
  })

  it('and finds it again in time ends as a refusal', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 2_000 })
    const waiting = watch(b.lock('k', { waitMs: 7_000 }))
    await clock.advance(100)
    store.fail('claim', outage(), { times: 2 })
    await clock.advance(6_900)
    expect(waiting.error).toBeInstanceOf(LockNotAcquiredError)
  })
})

it('withLock refuses options that come after the function: they would be ignored', async () => {
  const { manager, store } = manualWorld()
  const locks = manager() as unknown as { withLock(...args: unknown[]): Promise<unknown> }
  await expect(locks.withLock('k', () => {}, { ttlMs: 500 })).rejects.toThrow(/options come before the function/)
  expect(store.requests).toEqual([])
})

describe('unlock', () => {
  it('releases by name what this manager holds', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    expect(await a.unlock('k')).toBeUndefined()
    expect(await b.tryLock('k')).not.toBeNull()
    expect(await lock.release()).toBe(false)
    expect(() => lock.assertHeld()).toThrow(LockNotHeldError)
  })

  it('refuses a key that this manager does not hold, before any request', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const sent = store.requests.length
    await expect(b.unlock('k')).rejects.toThrow(LockNotHeldError)
    await expect(b.unlock('')).rejects.toHaveProperty('code', 'INVALID_KEY')
    expect(store.requests.length).toBe(sent)
    await a.unlock('k')
    await expect(a.unlock('k')).rejects.toMatchObject({ code: 'LOCK_NOT_HELD', key: 'k' })
  })

  it('says that the lock was lost, if it was', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    await locks.lock('expired', { autoRenew: false })
    await clock.advance(10_000)
    await expect(locks.unlock('expired')).rejects.toThrow(OwnershipLostError)
    // The same if it is the store that says so.
    await locks.lock('taken')
    store.answer('release', [{ status: 'not-held' }])
    await expect(locks.unlock('taken')).rejects.toThrow(OwnershipLostError)
  })

  it('finds the lock that is held now, not one that was lost before', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    await locks.lock('k', { autoRenew: false })
    await clock.advance(10_000)
    await locks.lock('k')
    await locks.unlock('k')
    expect(await locks.tryLock('k')).not.toBeNull()
  })

  it('forgets a lost lock when its holder has acknowledged it', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k', { autoRenew: false })
    await clock.advance(10_000)
    expect(await lock.release()).toBe(false)
    await expect(locks.unlock('k')).rejects.toThrow(LockNotHeldError)
  })

  it('rejects when the store failed, and can be tried again', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const error = outage()
    store.fail('release', error)
    await expect(a.unlock('k')).rejects.toBe(error)
    await a.unlock('k')
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('twice at the same time releases once', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    const results = await Promise.allSettled([locks.unlock('k'), locks.unlock('k')])
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected'])
    expect((results[1] as PromiseRejectedResult).reason).toBeInstanceOf(LockNotHeldError)
    expect(store.sent('release')).toHaveLength(1)
  })
})

describe('a handle', () => {
  it('has a token of 128 random bits, the epoch and the owner', async () => {
    const { manager } = manualWorld()
    const locks = manager({ owner: 'worker' })
    const lock = await locks.lock('k')
    const [, epoch] = /^[0-9a-f]{32}\.(\d+)\.worker#[0-9a-f]{8}$/.exec(lock.token)!
    expect(BigInt(epoch!) << 10n).toBe(lock.fence)
  })

  it('has a token that no other has', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const ids = new Set<string>()
    for (let i = 0; i < 1_000; i++) await locks.withLock('k', ({ token }) => ids.add(token.slice(0, 32)))
    expect(ids.size).toBe(1_000)
  })

  it('has a fence that grows with every holder of the key, a bigint', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    let last = 0n
    for (let i = 0; i < 20; i++) {
      const fence = await (i % 2 ? a : b).withLock('k', (lock) => lock.fence)
      expect(typeof fence).toBe('bigint')
      expect(fence).toBeGreaterThan(last)
      last = fence
    }
  })

  it('says how long the lock is certainly held', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 10_000, autoRenew: false })
    expect(lock.remainingMs).toBe(10_000 * 0.999 - 200)
    clock.jump(1_000)
    expect(lock.remainingMs).toBe(10_000 * 0.999 - 200 - 1_000)
    clock.jump(10_000)
    expect(lock.remainingMs).toBe(0)
  })

  it('says 0 when it was released', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    const held = store.hold('release')
    const releasing = lock.release()
    expect(lock.remainingMs).toBe(0)
    held.release()
    await releasing
    expect(lock.remainingMs).toBe(0)
  })

  it('becomes its key and fence in JSON', async () => {
    const { manager } = manualWorld()
    const lock = await manager().lock('order:42')
    expect(lock.toJSON()).toEqual({ key: 'order:42', fence: String(lock.fence) })
    expect(JSON.parse(JSON.stringify({ lock }))).toEqual({ lock: { key: 'order:42', fence: String(lock.fence) } })
  })

  it('never shows its token where it is printed, nor does its manager', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k')
    lock.signal.addEventListener('abort', () => {})
    const secret = lock.token.slice(0, 32)
    for (const shown of [lock, locks, { deep: [lock, locks] }, lock.signal]) {
      expect(JSON.stringify(shown)).not.toContain(secret)
      expect(inspect(shown, { depth: 20 })).not.toContain(secret)
      expect(inspect(shown, { depth: 20, showHidden: true })).not.toContain(secret)
      expect(inspect({ ...shown }, { depth: 20 })).not.toContain(secret)
    }
    expect(Object.keys(lock)).not.toContain('token')
  })

  it('keeps its signal, which is made on first use and is an AbortSignal', async () => {
    const { manager } = manualWorld()
    const lock = await manager().lock('k')
    expect(lock.signal).toBeInstanceOf(AbortSignal)
    expect(lock.signal).toBe(lock.signal)
    expect(lock.signal.aborted).toBe(false)
  })

  it('says in assertHeld what became of it', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const released = await locks.lock('a')
    released.assertHeld()
    const sent = store.requests.length
    released.assertHeld()
    expect(store.requests.length).toBe(sent)
    await released.release()
    expect(() => released.assertHeld()).toThrow(LockNotHeldError)
    expect(() => released.assertHeld()).toThrow('is not held any more: it was released')
    const transferred = await locks.lock('b')
    transferred.transfer()
    expect(() => transferred.assertHeld()).toThrow('it was transferred')
    const lost = await locks.lock('c', { autoRenew: false })
    clock.jump(20_000)
    expect(() => lost.assertHeld()).toThrow(OwnershipLostError)
  })
})

describe('await using', () => {
  it('releases the lock at the end of its block', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    let taken: DistributedLock
    {
      await using lock = await a.lock('k')
      taken = lock
      expect(await b.tryLock('k')).toBeNull()
    }
    expect(() => taken.assertHeld()).toThrow(LockNotHeldError)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('takes null from tryLock', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    {
      await using lock = await b.tryLock('k')
      expect(lock).toBeNull()
    }
  })

  it('closes a manager', async () => {
    const { manager, store } = manualWorld()
    {
      await using locks = manager()
      await locks.lock('k')
    }
    expect(store.requests.map(({ method }) => method)).toEqual(['claim', 'release', 'close'])
  })
})

describe('news of a grant that nobody waits for', () => {
  const granted = (claimId: string) =>
    ({ kind: 'granted', resource: 'k', claimId, epoch: 1n << 60n, since: 0, waiting: 0 }) as const

  it('is answered by a release: a failover may have brought the claim back', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await (await locks.lock('k')).release()
    const [claimId] = store.sent('claim')[0]!.claimIds
    const before = store.sent('release').length
    store.wake(locks.owner, granted(claimId!))
    await settle()
    expect(store.sent('release').slice(before).map(({ claimIds }) => claimIds)).toEqual([[claimId]])
  })

  it('is nothing if the lock is held, or was given away: whoever adopts it needs it as it is', async () => {
    const { manager, store } = manualWorld()
    const [locks, other] = [manager(), manager()]
    const lock = await locks.lock('k')
    const [claimId] = store.sent('claim')[0]!.claimIds
    store.wake(locks.owner, granted(claimId!))
    await settle()
    lock.assertHeld()
    const text = lock.transfer()
    store.wake(locks.owner, granted(claimId!))
    await settle()
    expect(store.sent('release')).toEqual([])
    expect(await (await other.adopt(text)).release()).toBe(true)
  })
})
