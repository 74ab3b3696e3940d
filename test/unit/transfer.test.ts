/** Giving a lock away, and taking it up elsewhere. */
import { describe, expect, it } from 'vitest'
import type { Claim } from '../../src/core/backend.js'
import { BackendError, ConfigurationError, HoldfastError, LockNotHeldError, OwnershipLostError } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { all, manualWorld, watch } from '../support/manual-world.js'

const MARK = 'holdfast-transfer-1.'
const decode = (text: string) => JSON.parse(Buffer.from(text.slice(MARK.length), 'base64url').toString()) as Record<string, unknown>
const encode = (value: unknown) => MARK + Buffer.from(JSON.stringify(value)).toString('base64url')

describe('transfer', () => {
  it('gives a string that includes the token and survives any channel', async () => {
    const { manager } = manualWorld()
    const lock = await manager({ prefix: 'shop' }).lock('order:42')
    const { token } = lock
    const transfer = lock.transfer()
    expect(transfer).toMatch(/^[\w.-]+$/)
    expect(decode(transfer)).toMatchObject({ prefix: 'shop', key: 'order:42', token, ttlMs: 10_000, autoRenew: true })
  })

  it('spends the handle: it is neither held nor renewed nor released by it any more', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const { signal } = lock
    lock.transfer()
    expect(() => lock.assertHeld()).toThrow(LockNotHeldError)
    expect(lock.remainingMs).toBe(0)
    expect(await lock.release()).toBe(false)
    await lock[Symbol.asyncDispose]()
    expect(() => lock.transfer()).toThrow(LockNotHeldError)
    await expect(lock.extend(5_000)).rejects.toThrow(LockNotHeldError)
    await expect(a.unlock('k')).rejects.toThrow(LockNotHeldError)
    await clock.advance(9_000)
    expect(store.requests.map(({ method }) => method)).toEqual(['claim'])
    expect(signal.aborted).toBe(false)
    // Nobody adopts it: it ends with its TTL.
    expect(await b.tryLock('k')).toBeNull()
    await clock.advance(1_000)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('and whoever has read the token may give it to somebody: the store is told', async () => {
    const { manager, store } = manualWorld()
    const locks = manager()
    const claimed = () => (store.sent('claim').at(-1)!.args[0] as readonly Claim[])[0]!
    const lock = await locks.lock('k')
    expect(claimed().isTold).toBeUndefined()
    expect(lock.toJSON()).toEqual({ key: 'k', fence: String(lock.fence) })
    expect(claimed().isTold).toBeUndefined()
    expect(lock.token).not.toBe('')
    expect(claimed().isTold).toBe(true)
    await lock.release()
    const given = await locks.lock('k')
    expect(claimed().isTold).toBeUndefined()
    given.transfer()
    expect(claimed().isTold).toBe(true)
  })

  it('is not undone by close()', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    await a.close()
    expect(store.sent('release')).toEqual([])
    const adopted = await b.adopt(transfer)
    adopted.assertHeld()
  })

  it('is not undone by a grant that is told a second time', async () => {
    const { manager, store } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const first = await c.lock('k')
    const waiting = a.lock('k')
    await settle()
    // The push is slow; the waiter learns of its grant by asking.
    const wakeUps = store.holdWakeUps()
    await first.release()
    await settle()
    store.wake(a.owner, { kind: 'look' })
    const adopted = await b.adopt((await waiting).transfer())
    wakeUps.release()
    await settle()
    expect(await c.tryLock('k')).toBeNull()
    expect(await adopted.release()).toBe(true)
  })

  it('inside a callback ends the chain’s hold', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    let transfer!: string
    const result = await a.withLock('k', async (lock) => {
      transfer = lock.transfer()
      expect(await a.tryLock('k', { reentrant: true })).toBeNull()
      return 'given'
    })
    expect(result).toBe('given')
    const adopted = await b.adopt(transfer)
    adopted.assertHeld()
  })

  it('is refused while others are inside', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    await locks.withLock('k', (outer) =>
      locks.withLock('k', { reentrant: true }, (inner) => {
        expect(() => outer.transfer()).toThrow(ConfigurationError)
        expect(() => inner.transfer()).toThrow('entered 2 times')
        inner.assertHeld()
      }),
    )
  })

  it('is refused when the lock is lost or released', async () => {
    const { manager, clock } = manualWorld()
    const locks = manager()
    const lost = await locks.lock('a', { autoRenew: false })
    const released = await locks.lock('b')
    await released.release()
    clock.jump(20_000)
    expect(() => lost.transfer()).toThrow(OwnershipLostError)
    expect(() => released.transfer()).toThrow(LockNotHeldError)
  })
})

describe('adopt', () => {
  it('takes the lock up, with a higher fence and its own owner, by one request', async () => {
    const { manager, store } = manualWorld()
    const [a, b, c] = [manager({ owner: 'a' }), manager({ owner: 'b' }), manager()]
    const lock = await a.lock('k')
    const { fence, token } = lock
    const adopted = await b.adopt(lock.transfer())
    expect(adopted.key).toBe('k')
    expect(adopted.fence).toBe(fence + 1n)
    expect(adopted.token.slice(0, 32)).not.toBe(token.slice(0, 32))
    expect(adopted.token.endsWith(b.owner)).toBe(true)
    expect(store.requests.map(({ method }) => method)).toEqual(['claim', 'renew'])
    adopted.assertHeld()
    expect(await c.tryLock('k')).toBeNull()
    expect((await all(c.inspect()))[0]!.holders[0]!.owner).toBe(b.owner)
  })

  it('may be by the same manager, and fences grow on with every hand', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    let lock = await a.lock('k')
    let last = lock.fence
    for (let i = 0; i < 10; i++) {
      lock = await (i % 2 ? a : b).adopt(lock.transfer())
      expect(lock.fence).toBeGreaterThan(last)
      last = lock.fence
    }
    await lock.release()
    expect((await a.lock('k')).fence).toBeGreaterThan(last)
  })

  it('works as often as a fence can tell, and is refused then, with the lock still held', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    let lock = await locks.lock('k')
    const epochFence = lock.fence
    for (let i = 0; i < 1_023; i++) lock = await locks.adopt(lock.transfer())
    expect(lock.fence).toBe(epochFence + 1_023n)
    expect(() => lock.transfer()).toThrow(ConfigurationError)
    lock.assertHeld()
    await lock.release()
    expect((await locks.lock('k')).fence).toBeGreaterThan(epochFence + 1_023n)
  })

  it('renews it from then on, and releases it', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const adopted = await b.adopt((await a.lock('k', { ttlMs: 9_000 })).transfer())
    await clock.advance(60_000)
    adopted.assertHeld()
    expect(store.sent('renew').every(({ owner }) => owner === b.owner)).toBe(true)
    expect(await adopted.release()).toBe(true)
    expect(await c.tryLock('k')).not.toBeNull()
  })

  it('can be unlocked by name, and is told when it is revoked', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.adopt((await a.lock('k')).transfer())
    await b.unlock('k')
    const adopted = await b.adopt((await a.lock('k')).transfer())
    await a.forceRelease('k')
    await settle()
    expect(adopted.signal.reason).toBeInstanceOf(OwnershipLostError)
  })

  it('keeps the terms of the lock', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 8_000, renewEveryMs: 1_000, maxHoldMs: 10_000, type: 'report', metadata: { job: 1 } })
    await clock.advance(4_500)
    const adopted = await b.adopt(lock.transfer())
    const before = store.sent('renew').length
    await clock.advance(3_000)
    expect(store.sent('renew').length - before).toBe(3)
    expect((await all(a.inspect()))[0]!.holders[0]).toMatchObject({ type: 'report', metadata: { job: 1 } })
    await clock.advance(2_499)
    adopted.assertHeld()
    await clock.advance(1)
    expect(() => adopted.assertHeld()).toThrow('maxHoldMs')
  })

  it('keeps the TTL that extend() has set', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    await lock.extend(30_000)
    const adopted = await b.adopt(lock.transfer())
    expect(adopted.remainingMs).toBe(30_000 * 0.999 - 250)
    expect(store.sent('renew').at(-1)!.args[0]).toMatchObject([{ ttlMs: 30_000 }])
  })

  it('does not renew what was not renewed before', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const adopted = await b.adopt((await a.lock('k', { autoRenew: false })).transfer())
    await clock.advance(20_000)
    expect(store.sent('renew')).toHaveLength(1)
    expect(() => adopted.assertHeld()).toThrow(OwnershipLostError)
  })

  it('counts what is left from before it asked', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    store.delayReply('renew', 3_000)
    const adopting = b.adopt(transfer)
    await clock.advance(3_000)
    expect((await adopting).remainingMs).toBe(9_790 - 3_000)
  })

  it('is renewed in time even if its first answer took long', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k', { ttlMs: 6_000 })).transfer()
    store.delayReply('renew', 4_200)
    const adopting = watch(b.adopt(transfer))
    await clock.advance(4_200)
    expect(adopting.state).toBe('resolved')
    await clock.advance(30_000)
    adopting.value!.assertHeld()
  })

  it('happens once: a string that is delivered twice does not give two holders', async () => {
    const { manager } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    const outcomes = await Promise.allSettled([b.adopt(transfer), c.adopt(transfer)])
    expect(outcomes.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
  })

  it('happens once, also in one manager', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    const adopted = await b.adopt(transfer)
    await expect(b.adopt(transfer)).rejects.toThrow(HoldfastError)
    adopted.assertHeld()
  })

  it('says that the lock was lost, if it was, and leaves alone whoever holds it now', async () => {
    const { manager, clock } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    await clock.advance(10_000)
    await expect(b.adopt(transfer)).rejects.toThrow(OwnershipLostError)
    const theirs = await c.lock('k')
    await expect(b.adopt(transfer)).rejects.toThrow(OwnershipLostError)
    theirs.assertHeld()
    expect(await theirs.release()).toBe(true)
  })

  it('says that the lock was lost, if it was revoked on the way, and lets the next in', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    await b.forceRelease('k')
    await expect(b.adopt(transfer)).rejects.toThrow(OwnershipLostError)
    await settle()
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('does not hand out a lock whose time was over when the answer came', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k', { ttlMs: 1_000 })).transfer()
    store.delayReply('renew', 1_000)
    const adopting = watch(b.adopt(transfer))
    await clock.advance(1_000)
    expect(adopting.error).toBeInstanceOf(OwnershipLostError)
  })

  it('rejects when the store failed, and can be tried again', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k', { ttlMs: 60_000 })).transfer()
    store.fail('renew', outage())
    await expect(b.adopt(transfer)).rejects.toThrow('The connection broke.')
    store.answer('renew', [{ status: 'failed', error: outage('LOADING') }])
    await expect(b.adopt(transfer)).rejects.toThrow('LOADING')
    const hung = store.hold('renew')
    const second = watch(b.adopt(transfer))
    await clock.advance(5_000)
    expect(second.error).toBeInstanceOf(BackendError)
    hung.fail()
    const adopted = await b.adopt(transfer)
    adopted.assertHeld()
  })

  it('refuses a lock of another prefix, before any request', async () => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager({ prefix: 'shop' }), manager({ prefix: 'depot' })]
    const transfer = (await a.lock('k')).transfer()
    await expect(b.adopt(transfer)).rejects.toThrow(ConfigurationError)
    await expect(b.adopt(transfer)).rejects.toThrow('under the prefix "shop"; this manager has "depot"')
    expect(store.sent('renew')).toEqual([])
  })

  it.each([
    ['nothing', ''],
    ['undefined', undefined],
    ['a number', 7],
    ['an object', {}],
    ['another text', 'order:42'],
    ['the mark alone', MARK],
    ['a later version', 'holdfast-transfer-2.e30'],
    ['no base64', `${MARK}%%%`],
    ['no JSON', MARK + Buffer.from('{"key":').toString('base64url')],
    ['JSON null', encode(null)],
    ['a JSON number', encode(7)],
    ['a JSON array', encode([])],
    ['an empty object', encode({})],
  ])('refuses %s, before any request', async (_, bad) => {
    const { manager, store } = manualWorld()
    await expect(manager().adopt(bad as string)).rejects.toThrow(HoldfastError)
    expect(store.requests).toEqual([])
  })

  it.each([
    ['the key', { key: '' }],
    ['the key', { key: 7 }],
    ['the token', { token: 'secret' }],
    ['the token', { token: undefined }],
    ['the token', { token: `~${'a'.repeat(32)}.5.me` }],
    ['the turn', { turn: 0 }],
    ['the turn', { turn: 1_024 }],
    ['the turn', { turn: 1.5 }],
    ['the TTL', { ttlMs: 5 }],
    ['the TTL', { ttlMs: '10000' }],
    ['autoRenew', { autoRenew: 'yes' }],
    ['renewEveryMs', { renewEveryMs: 0 }],
    ['renewEveryMs', { renewEveryMs: -5 }],
    ['maxHoldMs', { maxHoldMs: 'x' }],
    ['maxHoldMs', { maxHoldMs: -1 }],
    ['the type', { type: 7 }],
    ['the metadata', { metadata: { job: 1 } }],
    ['the metadata', { metadata: 'not JSON' }],
  ])('refuses one in which %s was changed: %j', async (_, change) => {
    const { manager, store } = manualWorld()
    const [a, b] = [manager(), manager()]
    const transfer = (await a.lock('k')).transfer()
    await expect(b.adopt(encode({ ...decode(transfer), ...change }))).rejects.toThrow(HoldfastError)
    expect(store.sent('renew')).toEqual([])
  })

  it('never repeats the string in a refusal', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager({ prefix: 'other' })]
    const lock = await a.lock('k')
    const { token } = lock
    const transfer = lock.transfer()
    for (const bad of [transfer, `${transfer.slice(0, -9)}x`, token]) {
      const error = (await b.adopt(bad).catch((thrown: unknown) => thrown)) as Error
      expect(error.message).not.toContain(token.slice(0, 32))
      expect(error.message).not.toContain(transfer.slice(30, 60))
    }
  })
})
