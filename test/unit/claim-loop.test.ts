/** One claim on its way to the resource: when it asks, when it asks again, and what it leaves behind. */
import { describe, expect, it } from 'vitest'
import { BackendError } from '../../src/index.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('a claim that waits', () => {
  it('is not asked about twice at a time: what it is told meanwhile makes it ask when the answer is there', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    const reply = store.holdReply('claim')
    watch(a.lock('k'))
    await settle()
    store.wake(a.owner, { kind: 'look' })
    store.wake(a.owner, { kind: 'look' })
    await settle()
    // What is asked for meanwhile would travel in one request.
    const asked = () => store.sent('claim').filter(({ owner }) => owner === a.owner).flatMap(({ claimIds }) => claimIds).length
    expect(asked()).toBe(1)
    reply.release()
    await settle()
    expect(asked()).toBe(2)
  })

  it('does not hold because of news of a grant that was over when a later holder was seen', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const holder = { owner: 'another', epoch: 8n, heldForMs: 0, expiresInMs: 10_000 }
    const queued = { status: 'queued', place: '1', holder, ahead: 0, waiting: 0 }
    store.answer('claim', [queued], { times: Infinity })
    const waiting = watch(locks.lock('k'))
    await settle()
    const [claimId] = store.sent('claim')[0]!.claimIds
    store.wake(locks.owner, { kind: 'granted', resource: 'k', claimId: claimId!, epoch: 7n, since: clock.now(), waiting: 0 })
    await settle()
    expect(waiting.state).toBe('pending')
    expect(store.sent('claim')).toHaveLength(2)
  })

  it('that was revoked while the answer was on its way does not hold, and waits behind whoever has it now', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const reply = store.holdReply('claim')
    const waiting = watch(a.lock('k'))
    await settle()
    await b.forceRelease('k', { now: true })
    const theirs = (await b.tryLock('k'))!
    reply.release()
    await settle()
    expect(waiting.state).toBe('pending')
    await theirs.release()
    await settle()
    waiting.value!.assertHeld()
  })

  it('is not ended by the failure of a request that was given up, and asked again, long before', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await b.lock('k')
    const waiting = watch(a.lock('k'))
    await settle()
    const hung = store.hold('claim')
    store.wake(a.owner, { kind: 'look' })
    await clock.advance(5_000)
    hung.fail(new BackendError('ECONNRESET', { transient: false }))
    await clock.advance(100)
    expect(waiting.state).toBe('pending')
    await lock.release()
    await settle()
    waiting.value!.assertHeld()
  })

  it('and was not answered in time is taken back, in case the store has carried it out', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.holdReply('claim')
    const waiting = watch(a.tryLock('k', { ttlMs: 60_000 }))
    await clock.advance(5_000)
    expect(waiting.error).toBeInstanceOf(BackendError)
    await clock.advance(5_000)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('with nobody but waiters in its way looks every retryMs', async () => {
    const { manager, store, clock } = manualWorld()
    store.answer('claim', [{ status: 'queued', place: '1', holder: undefined, ahead: 1, waiting: 1 }])
    const waiting = watch(manager().lock('k', { retryMs: 70 }))
    await clock.advance(69)
    expect(store.sent('claim')).toHaveLength(1)
    await clock.advance(1)
    waiting.value!.assertHeld()
  })

  it('behind an outsider looks only if it is the first: the others are told by whoever comes before them', async () => {
    const { manager, store, clock } = manualWorld()
    const outsider = { owner: undefined, epoch: undefined, heldForMs: undefined, expiresInMs: undefined }
    store.answer('claim', [{ status: 'queued', place: '2', holder: outsider, ahead: 1, waiting: 1 }])
    watch(manager().lock('k'))
    await clock.advance(10_000)
    expect(store.sent('claim')).toHaveLength(1)
  })

  it('looks when its blocker has expired, those further back a little later: one request, and not a herd', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, ...others] = [manager(), manager(), manager(), manager()]
    const start = clock.now()
    await a.lock('k', { ttlMs: 1_000, autoRenew: false })
    store.holdWakeUps()
    for (const other of others) {
      watch(other.lock('k', { ttlMs: 60_000 }))
      await settle()
    }
    const before = store.sent('claim').length
    await clock.advance(1_100)
    const asked = store.sent('claim').slice(before).map(({ owner, sentAt }) => [others.findIndex((one) => one.owner === owner), sentAt - start])
    expect(asked).toEqual([[0, 1_003], [1, 1_023], [2, 1_043]])
  })

  it('and cannot be asked about any more gives up its place', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await b.lock('k')
    const waiting = watch(a.lock('k'))
    await settle()
    const error = new BackendError('WRONGTYPE', { transient: false })
    store.fail('claim', error)
    store.wake(a.owner, { kind: 'look' })
    await settle()
    expect(waiting.error).toBe(error)
    await lock.release()
    await clock.advance(10)
    // Else it would have been granted to a claim that nobody wants.
    expect(await b.tryLock('k')).not.toBeNull()
    expect(store.sent('release').filter(({ owner }) => owner === a.owner)).toHaveLength(1)
  })

  it('whose answers always take longer than most of its TTL fails, may be tried again, and leaves nothing behind', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.delayReply('claim', 900, { times: 3 })
    const waiting = watch(a.lock('k', { ttlMs: 1_000 }))
    await clock.advance(2_700)
    expect(store.sent('claim')).toHaveLength(3)
    expect(waiting.error).toBeInstanceOf(BackendError)
    expect(waiting.error.transient).toBe(true)
    await settle()
    expect(await b.tryLock('k')).not.toBeNull()
  })
})
