/** Renewals and a store of several parts, and renewals that are answered when their lock is being released. */
import { describe, expect, it } from 'vitest'
import type { BackendFactory } from '../../src/core/backend.js'
import { LockManager } from '../../src/lock-manager.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('renewals', () => {
  it('of locks in different parts of a store travel apart, so that a part that hangs costs the others nothing', async () => {
    const { store, clock } = manualWorld()
    const inParts: BackendFactory = (scope) => ({ ...store.factory(scope), partOf: (resource) => resource[0] })
    const locks = new LockManager(inParts, { ttlMs: 9_000 }, clock)
    const [a1, b1, b2, a2] = await Promise.all(['a1', 'b1', 'b2', 'a2'].map((key) => locks.lock(key)))
    store.intercept('renew', () => new Promise(() => {}))
    await clock.advance(3_000)
    expect(store.sent('renew').map(({ keys }) => keys)).toEqual([['a1', 'a2'], ['b1', 'b2']])
    for (const hung of [a1!, a2!]) expect(hung.remainingMs).toBeLessThan(6_000)
    for (const renewed of [b1!, b2!]) expect(renewed.remainingMs).toBeGreaterThan(8_000)
    await locks.close()
  })

  it('that fail while their lock is being released are not told of any more', async () => {
    const { manager, store, clock, named } = manualWorld()
    const lock = await manager().lock('k', { ttlMs: 9_000 })
    const renewal = store.hold('renew')
    await clock.advance(3_000)
    expect(renewal.count).toBe(1)
    const release = store.hold('release')
    const released = watch(lock.release())
    await settle()
    renewal.fail(outage())
    await settle()
    expect(named('renew-failed')).toEqual([])
    release.release()
    await settle()
    expect(released.value).toBe(true)
  })
})
