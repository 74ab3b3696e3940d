import { inspect } from 'node:util'
import { describe, expect, it } from 'vitest'
import { BackendError, OwnershipLostError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('events on node:diagnostics_channel', () => {
  it('say who, where and on what', async () => {
    const { manager, events } = manualWorld()
    const locks = manager({ prefix: 'shop', owner: 'worker' })
    await locks.withLock('order:42', () => {})
    expect(events.map(({ name }) => name)).toEqual(['acquired', 'released'])
    const source = { owner: locks.owner, prefix: 'shop', backend: 'memory' }
    for (const event of events) expect(event).toMatchObject({ ...source, key: 'order:42' })
  })

  it('acquired and released come with the fence and the times', async () => {
    const { manager, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    expect(named('acquired')[0]).toMatchObject({ fence: lock.fence, ttlMs: 10_000, waitedMs: 0 })
    const waiting = b.lock('k', { ttlMs: 5_000 })
    await clock.advance(1_500)
    await lock.release()
    const next = await waiting
    expect(named('released')[0]).toMatchObject({ fence: lock.fence, heldMs: 1_500 })
    expect(named('acquired')[1]).toMatchObject({ owner: b.owner, fence: next.fence, ttlMs: 5_000, waitedMs: 1_500 })
  })

  it('waiting comes once, when a claim is queued, with what it waits for', async () => {
    const { manager, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    watch(b.lock('k'))
    await clock.advance(60_000)
    expect(named('waiting')).toHaveLength(1)
    const blocker = { holder: { owner: a.owner }, ahead: 0, waiting: 0 }
    expect(named('waiting')[0]).toMatchObject({ owner: b.owner, key: 'k', blocker })
  })

  it('refused comes when there is none within waitMs, for lock and tryLock', async () => {
    const { manager, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    await b.tryLock('k')
    watch(b.lock('k', { waitMs: 700 }))
    await clock.advance(700)
    expect(named('refused')).toHaveLength(2)
    expect(named('refused')[0]).toMatchObject({ waitedMs: 0, blocker: { holder: { owner: a.owner } } })
    expect(named('refused')[1]).toMatchObject({ waitedMs: 700, blocker: { holder: { owner: a.owner } } })
  })

  it('lost comes once, with the reason, and no released after it', async () => {
    const { manager, clock, named } = manualWorld()
    const lock = await manager().lock('k', { autoRenew: false })
    await clock.advance(10_000)
    expect(await lock.release()).toBe(false)
    expect(named('lost')).toHaveLength(1)
    expect(named('lost')[0]).toMatchObject({ fence: lock.fence, heldMs: 9_790 })
    expect(named('lost')[0]!.error).toBeInstanceOf(OwnershipLostError)
    expect(named('released')).toEqual([])
  })

  it('renew-failed comes for each failed renewal of each lock', async () => {
    const { manager, store, clock, named } = manualWorld()
    const locks = manager({ ttlMs: 9_000 })
    const start = clock.now()
    await locks.lock('a')
    await locks.lock('b')
    const error = outage()
    store.fail('renew', error)
    await clock.advance(3_000)
    expect(named('renew-failed').map(({ key }) => key)).toEqual(['a', 'b'])
    const [failed] = named('renew-failed')
    expect(failed).toMatchObject({ error, remainingMs: 9_000 * 0.999 - 180 - (failed!.at - start) })
  })

  it('cancelled comes when the caller or the manager ends a wait, and not when the store does', async () => {
    const { manager, store, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const controller = new AbortController()
    watch(b.lock('k', { signal: controller.signal }))
    await clock.advance(300)
    controller.abort('stop')
    watch(b.lock('k'))
    await clock.advance(100)
    await b.close()
    expect(named('cancelled')).toMatchObject([
      { owner: b.owner, key: 'k', waitedMs: 300, reason: 'stop' },
      { owner: b.owner, key: 'k', waitedMs: 100, reason: { code: 'MANAGER_CLOSED' } },
    ])
    store.fail('claim', new BackendError('NOAUTH', { transient: false }))
    await expect(a.lock('other')).rejects.toThrow('NOAUTH')
    expect(named('cancelled')).toHaveLength(2)
  })

  it('transferred comes when a lock is given away, and acquired when it is adopted', async () => {
    const { manager, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    await clock.advance(500)
    const adopted = await b.adopt(lock.transfer())
    expect(named('transferred')).toMatchObject([{ owner: a.owner, key: 'k', fence: lock.fence, heldMs: 500 }])
    expect(named('acquired')[1]).toMatchObject({ owner: b.owner, key: 'k', fence: adopted.fence })
    expect(named('released')).toEqual([])
  })

  it('revoked comes from whoever takes a lock away, if there was one', async () => {
    const { manager, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.forceRelease('k')
    expect(named('revoked')).toEqual([])
    await a.lock('k')
    await b.forceRelease('k')
    await b.forceRelease('k', { now: true })
    expect(named('revoked')[0]).toMatchObject({ owner: b.owner, key: 'k', when: 'told' })
  })

  it('claim-failed comes when a claim has to be asked for again', async () => {
    const { manager, store, clock, named } = manualWorld()
    const error = outage()
    store.fail('claim', error)
    const waiting = watch(manager().lock('k'))
    await clock.advance(1_000)
    expect(waiting.state).toBe('resolved')
    expect(named('claim-failed')).toHaveLength(1)
    expect(named('claim-failed')[0]).toMatchObject({ key: 'k', error })
  })

  it('release-failed comes when a callback form could not release', async () => {
    const { manager, store, named } = manualWorld()
    const error = new BackendError('gone', { transient: false })
    store.fail('release', error, { times: Infinity })
    expect(await manager().withLock('k', () => 'done')).toBe('done')
    await settle()
    expect(named('release-failed')[0]).toMatchObject({ key: 'k', error })
  })

  it('release-failed comes when closing could not release', async () => {
    const { manager, store, named } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    store.fail('release', outage(), { times: Infinity })
    await locks.close()
    expect(named('release-failed').map(({ key }) => key)).toContain('k')
  })

  it("warnings are the store's, about no key", async () => {
    const { manager, store, warnings } = manualWorld()
    const locks = manager({ prefix: 'shop' })
    store.warn(locks.owner, 'maxmemory-policy is allkeys-lru')
    expect(warnings).toEqual([{ owner: locks.owner, prefix: 'shop', backend: 'memory', warning: 'maxmemory-policy is allkeys-lru' }])
  })

  it('never carry a token', async () => {
    const { manager, store, clock, events } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { metadata: { visible: 1 } })
    watch(b.lock('k', { waitMs: 5_000 }))
    store.fail('renew')
    await clock.advance(8_000)
    store.fail('release')
    await lock[Symbol.asyncDispose]()
    const other = await b.lock('other', { autoRenew: false })
    await clock.advance(20_000)
    expect(new Set(events.map(({ name }) => name))).toEqual(
      new Set(['acquired', 'waiting', 'refused', 'renew-failed', 'release-failed', 'lost']),
    )
    const told = inspect(events, { depth: 20, showHidden: true })
    for (const { token } of [lock, other]) expect(told).not.toContain(token.slice(0, 32))
    for (const { claimIds } of store.requests) for (const id of claimIds) expect(told).not.toContain(id)
  })
})
