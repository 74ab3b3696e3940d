/** Closing a manager, and looking at and taking away what others hold. */
import { describe, expect, it } from 'vitest'
import {
  ConfigurationError, LockNotHeldError, ManagerClosedError, OwnershipLostError, type BackendFactory,
} from '../../src/index.js'
import { LockManager } from '../../src/lock-manager.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { all, manualWorld, watch } from '../support/manual-world.js'

describe('close', () => {
  it('aborts the signals of all locks before it sends any release', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const held = await Promise.all(['x', 'y', 'z'].map((key) => a.lock(key)))
    await b.lock('other')
    watch(a.lock('other'))
    await settle()
    const log: string[] = []
    for (const lock of held) {
      lock.signal.addEventListener('abort', () => {
        log.push(`aborted after ${store.sent('release').length} releases`)
        expect(lock.signal.reason).toBeInstanceOf(ManagerClosedError)
      })
    }
    await a.close()
    expect(log).toEqual(Array(3).fill('aborted after 0 releases'))
    expect(store.sent('release').flatMap(({ keys }) => keys).sort()).toEqual(['other', 'x', 'y', 'z'])
  })

  it('tells of it also those who look at their signal only then', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.withLock('k', async (lock) => {
      const closing = locks.close()
      expect(lock.signal.aborted).toBe(true)
      expect(lock.signal.reason).toBeInstanceOf(ManagerClosedError)
      await closing
    })
  })

  it('aborts no signal of a lock whose release is on its way: the guarded work is over', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k')
    const { signal } = lock
    const reply = store.holdReply('release')
    const released = watch(lock.release())
    await settle()
    const closing = locks.close()
    reply.release()
    await closing
    expect(signal.aborted).toBe(false)
    expect(released.value).toBe(true)
  })

  it('releases everything that is held, and withdraws everything that waits', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('held')
    const theirs = await b.lock('awaited')
    const waiting = [watch(a.lock('awaited')), watch(a.tryLock('awaited', { waitMs: 5_000 })), watch(a.withLock('awaited', () => {}))]
    await settle()
    await a.close()
    for (const { error } of waiting) expect(error).toBeInstanceOf(ManagerClosedError)
    expect(await b.tryLock('held')).not.toBeNull()
    await theirs.release()
    expect(await b.tryLock('awaited')).not.toBeNull()
    expect(() => lock.assertHeld()).toThrow()
    expect(await lock.release()).toBe(false)
    expect(clock.pending('awaited')).toBe(0)
  })

  it('gives back what is granted to a claim that is still on its way', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const claim = store.hold('claim')
    const waiting = watch(a.lock('k'))
    await settle()
    const closing = a.close()
    await settle()
    expect(waiting.error).toBeInstanceOf(ManagerClosedError)
    claim.release()
    await closing
    expect(await b.tryLock('k')).not.toBeNull()
    const methods = store.requests.filter(({ owner }) => owner === a.owner).map(({ method }) => method)
    expect(new Set(methods)).toEqual(new Set(['claim', 'release', 'close']))
    expect(methods.at(-1)).toBe('close')
  })

  it('has later calls rejected before any request', async () => {
    const { manager, store } = manualWorld()
    const [locks, other] = [manager(), manager()]
    const lock = await other.lock('k')
    await locks.close()
    const sent = store.requests.length
    const calls = [
      locks.lock('k'), locks.tryLock('k'), locks.withLock('k', () => {}), locks.forceRelease('k'), locks.adopt(lock.transfer()),
      all(locks.inspect()),
    ]
    for (const call of calls) await expect(call).rejects.toThrow(ManagerClosedError)
    expect(store.requests.length).toBe(sent)
  })

  it('has calls rejected that come while it is under way', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    const release = store.hold('release')
    const closing = watch(locks.close())
    await expect(locks.lock('other')).rejects.toThrow(ManagerClosedError)
    expect(closing.state).toBe('pending')
    release.release()
    await settle()
    expect(closing.state).toBe('resolved')
  })

  it('gives back a lock that is being adopted', async () => {
    const { manager, store } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const transfer = (await a.lock('k', { ttlMs: 60_000 })).transfer()
    const reply = store.holdReply('renew')
    const adopting = watch(b.adopt(transfer))
    await settle()
    const closing = b.close()
    reply.release()
    await closing
    await settle()
    expect(adopting.error).toBeInstanceOf(ManagerClosedError)
    expect(await c.tryLock('k')).not.toBeNull()
  })

  it('called twice closes once', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await Promise.all([locks.close(), locks.close(), locks[Symbol.asyncDispose]()])
    await locks.close()
    expect(store.sent('close')).toHaveLength(1)
  })

  it('closes the backend last, after what it had to release', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    await locks.close()
    expect(store.requests.map(({ method }) => method)).toEqual(['claim', 'release', 'close'])
  })

  it('does not wait for a store that hangs for longer than it must, and leaves no rejection', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    store.blackHole('claim')
    watch(locks.lock('other'))
    store.blackHole('release')
    const closing = watch(locks.close())
    await clock.advance(4_999)
    expect(closing.state).toBe('pending')
    await clock.advance(1)
    expect(closing.state).toBe('resolved')
    await clock.advance(60_000)
    expect(unheard).toEqual([])
  })

  it('does not fail because a release failed', async () => {
    const { manager, store, unheard } = manualWorld()
    const locks = manager()
    await locks.lock('k')
    store.fail('release', outage(), { times: Infinity })
    await locks.close()
    expect(store.sent('close')).toHaveLength(1)
    expect(unheard).toEqual([])
  })

  it('leaves a running callback to itself, and returns what it returns', async () => {
    const { manager, unheard } = manualWorld()
    const locks = manager()
    const running = locks.withLock('k', async (lock) => {
      await locks.close()
      return lock.signal.aborted
    })
    expect(await running).toBe(true)
    expect(unheard).toEqual([])
  })

  it('renews nothing any more, and leaves no timer behind', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    await locks.lock('a')
    await locks.lock('b')
    await clock.advance(1_000)
    await locks.close()
    await clock.advance(60_000)
    expect(store.sent('renew')).toEqual([])
    expect(clock.pending()).toBe(0)
  })
})

describe('inspect', () => {
  it('shows holders and waiters', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager({ owner: 'a' }), manager({ owner: 'b' })]
    const lock = await a.lock('order:1', { ttlMs: 30_000, type: 'report', metadata: { job: 7 } })
    watch(b.lock('order:1'))
    await clock.advance(2_000)
    expect(await all(b.inspect())).toEqual([
      {
        key: 'order:1',
        limit: 1,
        holders: [
          { owner: a.owner, fence: lock.fence, take: 1, heldForMs: 2_000, expiresInMs: 28_000, type: 'report', metadata: { job: 7 } },
        ],
        waiters: [{ owner: b.owner, take: 1 }],
      },
    ])
  })

  it('takes the beginning of a key', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    for (const key of ['order:1', 'order:2', 'user:1', 'orde', 'order%']) await locks.lock(key)
    const keys = async (prefix?: string) => (await all(locks.inspect(prefix))).map(({ key }) => key).sort()
    expect(await keys('order:')).toEqual(['order:1', 'order:2'])
    expect(await keys('order%')).toEqual(['order%'])
    expect(await keys('nothing')).toEqual([])
    expect(await keys()).toHaveLength(5)
  })

  it('never shows a token', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const lock = await locks.lock('k')
    watch(locks.lock('k'))
    await settle()
    const printable = (_: string, value: unknown) => (typeof value === 'bigint' ? String(value) : value)
    const shown = JSON.stringify(await all(locks.inspect()), printable)
    expect(shown).toContain('"k"')
    expect(shown).not.toContain(lock.token.slice(0, 32))
  })

  it('ends what it has begun on the store, when nobody wants to see more', async () => {
    const { store, clock } = manualWorld()
    let open = 0
    const backend: BackendFactory = (scope) => ({
      ...store.factory(scope),
      async *inspect() {
        open++
        try {
          for (let i = 0; ; i++) yield { key: `k${i}`, limit: 1, holders: [], waiters: [] }
        } finally {
          open--
        }
      },
    })
    const locks = new LockManager(backend, {}, clock)
    for await (const { key } of locks.inspect()) if (key === 'k3') break
    expect(open).toBe(0)
  })

  it('shows what it can even if somebody has put something else than JSON where metadata should be', async () => {
    const { store, clock } = manualWorld()
    const holder = { owner: 'x', epoch: 1n, heldForMs: 1, expiresInMs: 1, take: 1 }
    const backend: BackendFactory = (scope) => ({
      ...store.factory(scope),
      async *inspect() {
        yield { key: 'odd', limit: 1, holders: [{ ...holder, metadata: '{oops' }], waiters: [] }
        yield { key: 'even', limit: 1, holders: [{ ...holder, metadata: '{"a":1}' }], waiters: [] }
      },
    })
    const locks = new LockManager(backend, {}, clock)
    expect((await all(locks.inspect())).map(({ key }) => key)).toEqual(['odd', 'even'])
  })

  it('gives up on a store that does not answer', async () => {
    const { store, clock } = manualWorld()
    const backend: BackendFactory = (scope) => ({
      ...store.factory(scope),
      async *inspect() {
        yield await new Promise<never>(() => {})
      },
    })
    const listing = watch(all(new LockManager(backend, {}, clock).inspect()))
    await clock.advance(5_000)
    expect(listing.error).toHaveProperty('code', 'BACKEND')
  })

  it('refuses what is no text', async () => {
    const { manager, store } = manualWorld()
    await expect(all(manager().inspect(7 as never))).rejects.toThrow(ConfigurationError)
    expect(store.requests).toEqual([])
  })
})

describe('forceRelease', () => {
  it('says whether anybody held the key', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    expect(await b.forceRelease('k')).toBe(false)
    expect(await b.forceRelease('k', { now: true })).toBe(false)
    await a.lock('k')
    expect(await b.forceRelease('k')).toBe(true)
    await a.lock('k2')
    expect(await b.forceRelease('k2', { now: true })).toBe(true)
  })

  it('tells the holder, whose hold ends at once, and who lets the next in', async () => {
    const { manager } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const lock = await a.lock('k')
    const { signal } = lock
    const waiting = watch(c.lock('k'))
    await settle()
    await b.forceRelease('k')
    await settle()
    expect(signal.reason).toBeInstanceOf(OwnershipLostError)
    expect((signal.reason as Error).message).toContain('it was revoked')
    expect(waiting.state).toBe('resolved')
    expect(waiting.value!.fence).toBeGreaterThan(lock.fence)
    expect(await lock.release()).toBe(false)
  })

  it('frees nothing before the holder has let go, or its TTL is over', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k', { ttlMs: 9_000 })
    store.holdWakeUps()
    store.blackHole('release', { owner: a.owner })
    store.blackHole('renew', { owner: a.owner })
    await b.forceRelease('k')
    expect(await b.tryLock('k')).toBeNull()
    await clock.advance(8_999)
    expect(await b.tryLock('k')).toBeNull()
    await clock.advance(1)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('is learned from the next renewal, if the holder could not be told', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 9_000 })
    store.holdWakeUps()
    await b.forceRelease('k')
    await clock.advance(2_700)
    lock.assertHeld()
    await clock.advance(300)
    expect(() => lock.assertHeld()).toThrow('it was revoked')
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('with `now` frees the key at once, while the holder may still be at work', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const wakeUps = store.holdWakeUps()
    await b.forceRelease('k', { now: true })
    lock.assertHeld()
    const next = await b.tryLock('k')
    expect(next!.fence).toBeGreaterThan(lock.fence)
    wakeUps.release()
    expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
    await settle()
    next!.assertHeld()
    expect(await a.tryLock('k')).toBeNull()
  })

  it('refuses a bad key before any request, and cannot tell a client that is not holdfast', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    await expect(locks.forceRelease('')).rejects.toHaveProperty('code', 'INVALID_KEY')
    expect(store.requests).toEqual([])
    store.answer('revoke', 'outsider')
    await expect(locks.forceRelease('k')).rejects.toThrow(LockNotHeldError)
    store.answer('revoke', 'outsider')
    await expect(locks.forceRelease('k')).rejects.toThrow('Pass now: true to free it')
  })

  it('rejects when the store does not answer', async () => {
    const { manager, store, clock } = manualWorld()
    store.blackHole('revoke')
    const call = watch(manager().forceRelease('k'))
    await clock.advance(5_000)
    expect(call.error).toHaveProperty('code', 'BACKEND')
  })
})
