/** What a wait costs while it lasts, and what others are told of it. */
import { describe, expect, it } from 'vitest'
import { BackendError, LockNotAcquiredError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('a try', () => {
  it('waits for its answer, however long that takes, as long as the store is given time to', async () => {
    const { manager, store, clock } = manualWorld()
    const claim = store.hold('claim')
    const trying = watch(manager().tryLock('k'))
    await clock.advance(4_000)
    expect(trying.state).toBe('pending')
    claim.release()
    await settle()
    trying.value!.assertHeld()
  })
})

describe('a wait', () => {
  it('without limit has no timer of its own, and one with a limit has one that keeps the process alive', async () => {
    const { manager, store, clock } = manualWorld({ heartbeatMs: Infinity })
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    watch(a.lock('k'))
    await settle()
    // The other's TTL is watched.
    expect(clock.pending('awaited')).toBe(1)
    watch(a.lock('k', { waitMs: 60_000 }))
    await settle()
    expect(clock.pending('awaited')).toBe(2)
    expect(store.sent('claim').filter(({ owner }) => owner === a.owner)).toHaveLength(1)
  })

  it('behind a caller of the same process is told what that one is: neither more nor less', async () => {
    const { manager, named } = manualWorld()
    const locks = manager()
    await locks.lock('plain')
    await locks.lock('told', { type: 'job', metadata: { m: 1 } })
    watch(locks.lock('plain'))
    watch(locks.lock('told', { type: 'job', metadata: { m: 1 } }))
    await settle()
    const [plain, told] = named('waiting').map(({ blocker }) => blocker.holder!)
    expect(Object.keys(plain!).sort()).toEqual(['epoch', 'expiresInMs', 'heldForMs', 'owner'])
    expect(told).toMatchObject({ owner: locks.owner, type: 'job', metadata: '{"m":1}' })
  })
})

describe('callers in line behind one of their process', () => {
  it('whose hold was lost are told that others are first, until the store has answered', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { maxHoldMs: 500 })
    watch(b.lock('k'))
    const next = watch(a.lock('k', { waitMs: 800 }))
    await settle()
    store.blackHole('claim', { owner: a.owner })
    await clock.advance(800)
    expect(next.error).toBeInstanceOf(LockNotAcquiredError)
    expect(next.error.blocker).toEqual({ holder: undefined, ahead: 1, waiting: 1 })
  })

  it('ask once, also if the release before them failed and is tried again', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k')
    // One that was extended is not handed over in memory.
    await lock.extend(20_000)
    const next = watch(locks.lock('k'))
    store.fail('release', outage())
    await expect(lock.release()).rejects.toThrow(BackendError)
    await settle()
    expect(await lock.release()).toBe(true)
    await clock.advance(1_000)
    next.value!.assertHeld()
    expect(new Set(store.sent('claim').flatMap(({ claimIds }) => claimIds)).size).toBe(2)
  })
})
