/** What a manager does about its claims: where callers meet, what is withdrawn, and what it forgets. */
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { Registry } from '../../src/core/registry.js'
import { BackendError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('callers who share a place', () => {
  it('still do after others, with places of their own, have come and gone', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k')
    expect(await locks.tryLock('k')).toBeNull()
    const next = watch(locks.lock('k'))
    await settle()
    const sent = store.requests.length
    expect(await lock.release()).toBe(true)
    await settle()
    next.value!.assertHeld()
    // In memory.
    expect(store.requests).toHaveLength(sent)
    expect(sent).toBe(2)
  })
})

describe('the heartbeat of those who wait', () => {
  it('is not left to one that came before and has no place yet, because its request hangs', async () => {
    const { manager, store, clock } = manualWorld({ heartbeatMs: 1_000 })
    const [a, b] = [manager(), manager()]
    await b.lock('k', { ttlMs: 60_000 })
    store.hold('claim')
    watch(a.lock('k', { fairness: 'strict' }))
    await settle()
    watch(a.lock('k', { fairness: 'strict' }))
    await clock.advance(100)
    const before = store.sent('claim').length
    await clock.advance(2_000)
    expect(store.sent('claim').length - before).toBe(2)
  })
})

describe('a try whose answer was lost', () => {
  it('leaves no lock behind that nobody knows of', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.failReply('claim')
    await expect(a.tryLock('k')).rejects.toThrow(BackendError)
    await settle()
    expect(await b.tryLock('k')).not.toBeNull()
  })
})

describe('a wait', () => {
  it('that ends while the store fails is a failure, and no refusal by what was known before', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    const waiting = watch(a.lock('k', { waitMs: 500 }))
    await clock.advance(450)
    const error = outage('LOADING')
    store.fail('claim', error, { times: Infinity })
    store.wake(a.owner, { kind: 'look' })
    await clock.advance(50)
    expect(waiting.error).toBe(error)
  })

  it('asks a store that hangs less and less often', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.lock('k', { ttlMs: 600_000 })
    watch(a.lock('k'))
    await clock.advance(100)
    const start = clock.now()
    store.blackHole('claim')
    store.wake(a.owner, { kind: 'look' })
    await clock.advance(200_000)
    const asked = store.sent('claim').filter(({ sentAt }) => sentAt >= start)
    expect(asked.map(({ sentAt }) => sentAt - start)).toEqual([0, 5_000, 15_000, 35_000, 75_000, 135_000, 195_000])
  })
})

describe('forceRelease', () => {
  it('tells of itself, both ways', async () => {
    const { manager, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('told')
    await a.lock('now')
    expect(await b.forceRelease('told')).toBe(true)
    expect(await b.forceRelease('now', { now: true })).toBe(true)
    expect(await b.forceRelease('free')).toBe(false)
    expect(named('revoked').map(({ key, when }) => [key, when])).toEqual([['told', 'told'], ['now', 'now']])
  })
})

describe('a resource', () => {
  it('is forgotten when this process has nothing more to do with it', async () => {
    const adding = vi.spyOn(Registry.prototype, 'add')
    onTestFinished(() => adding.mockRestore())
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const inVain = watch(b.lock('k', { waitMs: 10 }))
    await clock.advance(10)
    expect(inVain.state).toBe('rejected')
    await lock.release()
    const lost = await a.lock('lost', { maxHoldMs: 100 })
    const given = await a.lock('given')
    await (await b.adopt(given.transfer())).release()
    expect(await b.tryLock('lost')).toBeNull()
    await clock.advance(1_000)
    expect(lost.signal.aborted).toBe(true)
    const registries = new Set(adding.mock.contexts) as Set<Registry<any>>
    expect(registries.size).toBe(2)
    for (const registry of registries) expect(registry.size).toBe(0)
  })
})
