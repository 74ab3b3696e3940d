/** Letting go of a lock, and setting what is left of it. */
import { describe, expect, it } from 'vitest'
import { BackendError, InvalidTtlError, LockNotHeldError, OwnershipLostError, type HoldfastError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

/** The deadline of a hold: D = s + 0.999 ttl − clamp(2 %, 5, 250). */
const left = (ttlMs: number) => ttlMs * 0.999 - Math.min(250, Math.max(5, ttlMs * 0.02))

describe('release', () => {
  it('says true if the lock was ours, and false the second time, without a request', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    expect(await lock.release()).toBe(true)
    expect(await lock.release()).toBe(false)
    expect(store.sent('release')).toHaveLength(1)
  })

  it('called twice at the same time says true once', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    expect(await Promise.all([lock.release(), lock.release(), lock.release()])).toEqual([true, false, false])
    expect(store.sent('release')).toHaveLength(1)
  })

  it('never aborts the signal', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k')
    const { signal } = lock
    await lock.release()
    await clock.advance(60_000)
    expect(signal.aborted).toBe(false)
    expect(lock.signal.aborted).toBe(false)
  })

  it('ends the renewals, and leaves no timer that a caller could wait for', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k')
    await lock.release()
    await clock.advance(60_000)
    expect(store.sent('renew')).toEqual([])
    expect(clock.pending()).toBe(0)
  })

  it('says false if the lock was lost, without a request for it', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { autoRenew: false })
    clock.jump(20_000)
    const before = store.requests.length
    expect(await lock.release()).toBe(false)
    await settle()
    // The loss itself frees what the store may still count as ours.
    expect(store.requests.slice(before).map(({ method }) => method)).toEqual(['release'])
    expect(await lock.release()).toBe(false)
    expect(store.requests.length).toBe(before + 1)
  })

  it('says false if the store says that it was not ours any more, and tells of the loss', async () => {
    const { manager, store, named } = manualWorld()
    const lock = await manager().lock('k')
    const { signal } = lock
    store.answer('release', [{ status: 'not-held' }])
    expect(await lock.release()).toBe(false)
    expect(signal.reason).toBeInstanceOf(OwnershipLostError)
    expect(named('lost')).toHaveLength(1)
    expect(named('released')).toEqual([])
  })

  it('says true if the client may have sent it twice', async () => {
    const { manager, store, named } = manualWorld()
    const lock = await manager().lock('k')
    store.answer('release', [{ status: 'unknown' }])
    expect(await lock.release()).toBe(true)
    expect(named('released')).toHaveLength(1)
  })

  it('rejects when the store failed, and can be tried again', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const { signal } = lock
    const errors: HoldfastError[] = [outage(), new BackendError('READONLY', { transient: false })]
    for (const error of errors) {
      store.fail('release', error)
      await expect(lock.release()).rejects.toBe(error)
      expect(signal.aborted).toBe(false)
    }
    store.answer('release', [{ status: 'failed', error: errors[1] }])
    await expect(lock.release()).rejects.toBe(errors[1])
    expect(await b.tryLock('k')).toBeNull()
    expect(await lock.release()).toBe(true)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('says true when it is tried again after a reply that was lost', async () => {
    const { manager, store, named } = manualWorld()
    const lock = await manager().lock('k')
    store.failReply('release')
    await expect(lock.release()).rejects.toThrow('The connection broke.')
    expect(await lock.release()).toBe(true)
    expect(named('lost')).toEqual([])
    expect(named('released')).toHaveLength(1)
  })

  it('that failed may have been carried out: from then on the lock does not pass for held', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const waiting = b.lock('k')
    await settle()
    store.failReply('release')
    await expect(lock.release()).rejects.toThrow('The connection broke.')
    const theirs = await waiting
    theirs.assertHeld()
    expect(() => lock.assertHeld()).toThrow()
    expect(lock.remainingMs).toBe(0)
    expect(() => lock.transfer()).toThrow()
    expect(await lock.release()).toBe(true)
    theirs.assertHeld()
  })

  it('that failed cannot be taken back: the lock cannot be extended or given away, only released', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    store.fail('release')
    await expect(lock.release()).rejects.toThrow('The connection broke.')
    await expect(lock.extend(10_000)).rejects.toThrow(LockNotHeldError)
    expect(() => lock.transfer()).toThrow(LockNotHeldError)
    expect(() => lock.assertHeld()).toThrow('its release failed')
    expect(await lock.release()).toBe(true)
  })

  it('rejects when the store does not answer within five seconds, and can be tried again', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 60_000 })
    const hung = store.hold('release')
    const first = watch(lock.release())
    await clock.advance(4_999)
    expect(first.state).toBe('pending')
    await clock.advance(1)
    expect(first.error).toBeInstanceOf(BackendError)
    expect(await lock.release()).toBe(true)
    hung.release()
    await settle()
  })

  it('called twice at the same time, and the first fails: the second tries itself', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    store.fail('release')
    const [first, second, third] = await Promise.allSettled([lock.release(), lock.release(), lock.release()])
    expect(first.status).toBe('rejected')
    expect([second, third]).toEqual([{ status: 'fulfilled', value: true }, { status: 'fulfilled', value: false }])
    expect(store.sent('release')).toHaveLength(2)
  })

  it.each([
    ['failed', 'fail'],
    ['hung', 'hold'],
  ] as const)('that %s leaves a lock that is not renewed any more and ends by itself, without a word of loss', async (_, fault) => {
    const { manager, store, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 9_000 })
    const { signal } = lock
    await clock.advance(2_000)
    store[fault]('release')
    const release = watch(lock.release())
    // One that hangs is given up after five seconds; the keeper's next beat comes before that.
    await clock.advance(5_000)
    expect(release.state).toBe('rejected')
    await clock.advance(2_000)
    expect(store.sent('renew')).toEqual([])
    expect(await b.tryLock('k')).not.toBeNull()
    expect(signal.aborted).toBe(false)
    expect(named('lost')).toEqual([])
    const sent = store.requests.length
    expect(await lock.release()).toBe(false)
    expect(store.requests.length).toBe(sent)
    await expect(a.unlock('k')).rejects.toThrow(LockNotHeldError)
  })

  it('is not undone by a renewal that was on its way', async () => {
    const { manager, store, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 9_000 })
    const renewal = store.hold('renew')
    await clock.advance(3_000)
    expect(renewal.count).toBe(1)
    expect(await lock.release()).toBe(true)
    renewal.release()
    await clock.advance(1)
    expect(await b.tryLock('k')).not.toBeNull()
    expect(named('lost')).toEqual([])
    expect(lock.signal.aborted).toBe(false)
  })

  it('is not undone by a claim of it that was on its way all the time: what that brings is given back', async () => {
    const { manager, store, clock } = manualWorld({ heartbeatMs: 800 })
    const [a, b, c] = [manager(), manager(), manager()]
    const first = await b.lock('k', { ttlMs: 600_000 })
    const waiting = watch(a.lock('k', { ttlMs: 600_000 }))
    await settle()
    // A heartbeat hangs, and is given up; the next gets through.
    const hung = store.hold('claim')
    await clock.advance(6_000)
    await first.release()
    await settle()
    expect(await waiting.value!.release()).toBe(true)
    hung.release()
    await settle()
    expect(await c.tryLock('k')).not.toBeNull()
  })

  it('sent twice over the network frees the lock of nobody else', async () => {
    const { manager, store } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const lock = await a.lock('k')
    const next = b.lock('k')
    await settle()
    store.duplicate('release')
    await lock.release()
    const got = await next
    got.assertHeld()
    expect(await c.tryLock('k')).toBeNull()
  })

  it('counts as one that lets go at once: guarded work is over, and is not told of a loss any more', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { autoRenew: false })
    const { signal } = lock
    const reply = store.holdReply('release')
    const released = watch(lock.release())
    clock.jump(9_900)
    expect(signal.aborted).toBe(false)
    expect(() => lock.assertHeld()).toThrow(LockNotHeldError)
    expect(lock.remainingMs).toBe(0)
    reply.release()
    await settle()
    expect(released.value).toBe(true)
  })
})

describe('disposing', () => {
  it('releases, and may come after a release', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    await lock[Symbol.asyncDispose]()
    await lock[Symbol.asyncDispose]()
    expect(await lock.release()).toBe(false)
    expect(store.sent('release')).toHaveLength(1)
  })

  it('never rejects: what failed is an event, and the lock is freed behind it', async () => {
    const { manager, store, clock, named, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const error = outage()
    store.fail('release', error, { times: 3 })
    await lock[Symbol.asyncDispose]()
    expect(named('release-failed')[0]).toMatchObject({ key: 'k', owner: a.owner, error })
    expect(() => lock.assertHeld()).toThrow(LockNotHeldError)
    await clock.advance(200)
    expect(await b.tryLock('k')).not.toBeNull()
    expect(unheard).toEqual([])
  })

  it('never rejects when the lock was lost', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { autoRenew: false })
    await clock.advance(20_000)
    await lock[Symbol.asyncDispose]()
  })

  it('frees what it could not release for as long as the lock lives, also if that was extended', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 1_000 })
    await lock.extend(60_000)
    store.fail('release', outage(), { times: Infinity, owner: a.owner })
    await lock[Symbol.asyncDispose]()
    await clock.advance(5_000)
    store.heal()
    await clock.advance(1_000)
    // Else the key stays taken for another 54 seconds, by nobody.
    expect(await b.tryLock('k')).not.toBeNull()
  })
})

describe('extend', () => {
  it('sets what is left, to more', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 2_000, autoRenew: false })
    clock.jump(1_000)
    await lock.extend(30_000)
    expect(lock.remainingMs).toBe(left(30_000))
    expect(store.sent('renew')[0]!.args[0]).toMatchObject([{ ttlMs: 30_000, exact: true }])
    await clock.advance(29_000)
    lock.assertHeld()
    expect(await b.tryLock('k')).toBeNull()
    await clock.advance(1_000)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('sets what is left, to less, here and on the store', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 60_000, autoRenew: false })
    await lock.extend(1_000)
    expect(lock.remainingMs).toBe(left(1_000))
    clock.jump(1_000)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('to less counts from before it is sent', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 60_000, autoRenew: false })
    const reply = store.holdReply('renew')
    const extending = watch(lock.extend(1_000))
    await settle()
    expect(lock.remainingMs).toBe(left(1_000))
    await clock.advance(400)
    expect(lock.remainingMs).toBe(left(1_000) - 400)
    reply.release()
    await settle()
    expect(extending.state).toBe('resolved')
    expect(lock.remainingMs).toBe(left(1_000) - 400)
  })

  it('to more counts only when the store has said so, and from before it was sent', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 5_000, autoRenew: false })
    const reply = store.holdReply('renew')
    const extending = lock.extend(60_000)
    await clock.advance(1_000)
    expect(lock.remainingMs).toBe(left(5_000) - 1_000)
    reply.release()
    await extending
    expect(lock.remainingMs).toBe(left(60_000) - 1_000)
  })

  it('sets the TTL of later renewals', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 3_000 })
    await lock.extend(30_000)
    await clock.advance(9_999)
    expect(store.sent('renew')).toHaveLength(1)
    await clock.advance(1)
    expect(store.sent('renew')[1]!.args[0]).toMatchObject([{ ttlMs: 30_000, exact: false }])
    await lock.extend(3_000)
    const before = store.sent('renew').length
    await clock.advance(10_000)
    const renewals = store.sent('renew').slice(before)
    expect(renewals).toHaveLength(10)
    for (const { args } of renewals) expect(args[0]).toMatchObject([{ ttlMs: 3_000, exact: false }])
    lock.assertHeld()
  })

  it('is not undone by a renewal under earlier terms that is answered later', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 60_000 })
    const renewal = store.holdReply('renew')
    await clock.advance(20_000)
    expect(renewal.count).toBe(1)
    await lock.extend(1_000)
    renewal.release()
    await settle()
    expect(lock.remainingMs).toBe(left(1_000))
  })

  it('to more is not believed because of a renewal under earlier terms that is answered later', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const renewal = store.holdReply('renew')
    await clock.advance(3_000)
    expect(renewal.count).toBe(1)
    // This one never gets to the store, which gives the lock nine seconds from the renewal on.
    store.blackHole('renew')
    watch(lock.extend(60_000))
    await settle()
    renewal.release()
    await settle()
    expect(lock.remainingMs).toBeLessThanOrEqual(left(9_000))
    await clock.advance(9_000)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
  })

  it('leaves a lock that is kept on under its new TTL, also if the store could not be told', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 60_000 })
    store.fail('renew')
    await expect(lock.extend(1_000)).rejects.toThrow('The connection broke.')
    // One request failed; the store is well, and a lock that renews itself must not end of that.
    await clock.advance(5_000)
    lock.assertHeld()
  })

  it('twice at the same time happens one after the other, and the last counts', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    const reply = store.holdReply('renew')
    const first = watch(lock.extend(60_000))
    const second = watch(lock.extend(2_000))
    await settle()
    expect(store.sent('renew')).toHaveLength(1)
    reply.release()
    await settle()
    expect([first.state, second.state]).toEqual(['resolved', 'resolved'])
    expect(lock.remainingMs).toBe(left(2_000))
  })

  it('goes on after one that failed', async () => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    store.fail('renew')
    const [first, second] = await Promise.allSettled([lock.extend(60_000), lock.extend(30_000)])
    expect([first.status, second.status]).toEqual(['rejected', 'fulfilled'])
    expect(lock.remainingMs).toBe(left(30_000))
  })

  it.each(['lost', 'revoked'])('ends the hold at once if the store says %s', async (status) => {
    const { manager, store, named } = manualWorld()
    const lock = await manager().lock('k')
    store.answer('renew', [{ status }])
    await expect(lock.extend(5_000)).rejects.toThrow(OwnershipLostError)
    expect(lock.signal.aborted).toBe(true)
    expect(named('lost')).toHaveLength(1)
  })

  it('rejects if the store does not answer, and the lock ends on time', async () => {
    const { manager, store, clock } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 60_000, autoRenew: false })
    store.blackHole('renew')
    const extending = watch(lock.extend(20_000))
    await clock.advance(5_000)
    expect(extending.error).toBeInstanceOf(BackendError)
    await clock.advance(left(20_000) - 5_000)
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
  })

  it('rejects when the lock is not held any more, without a request', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const released = await locks.lock('a')
    await released.release()
    await expect(released.extend(5_000)).rejects.toThrow(LockNotHeldError)
    const lost = await locks.lock('b', { autoRenew: false })
    clock.jump(20_000)
    await expect(lost.extend(5_000)).rejects.toThrow(OwnershipLostError)
    expect(store.sent('renew')).toEqual([])
  })

  it.each([99, 0, -1, Number.NaN, Infinity, '5000', 100.5, 2 ** 31])('rejects a TTL of %s, without a request', async (ttlMs) => {
    const { manager, store } = manualWorld()
    const lock = await manager().lock('k')
    await expect((async () => lock.extend(ttlMs as number))()).rejects.toThrow(InvalidTtlError)
    expect(store.sent('renew')).toEqual([])
  })

  it('rejects a bad TTL and does not throw: a `.catch()` on what it gives has to see the error', async () => {
    const { manager } = manualWorld()
    const lock = await manager().lock('k')
    let extending: Promise<void> | undefined
    expect(() => (extending = lock.extend(99))).not.toThrow()
    await expect(extending).rejects.toThrow(InvalidTtlError)
  })

  it('does not bring back what maxHoldMs ends', async () => {
    const { manager, clock } = manualWorld()
    const lock = await manager().lock('k', { maxHoldMs: 5_000 })
    await lock.extend(60_000)
    expect(lock.remainingMs).toBe(5_000)
    clock.jump(5_000)
    expect(() => lock.assertHeld()).toThrow('maxHoldMs (5000) is over')
  })

  it('does not outlive a release that overtakes it', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const request = store.hold('renew')
    const extending = watch(lock.extend(60_000))
    await settle()
    expect(await lock.release()).toBe(true)
    request.release()
    await settle()
    expect(extending.error).toBeInstanceOf(LockNotHeldError)
    expect(await b.tryLock('k')).not.toBeNull()
  })
})
