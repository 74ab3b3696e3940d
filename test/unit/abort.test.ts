/** Callers' signals: they cancel a wait, and in callback forms reach the lock's own. */
import { getEventListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import { onAbort, truthfulController } from '../../src/core/abort.js'
import { BackendError, LockNotAcquiredError, OwnershipLostError, type DistributedLock } from '../../src/index.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { all, manualWorld, watch } from '../support/manual-world.js'

const listenersOf = (signal: AbortSignal) => getEventListeners(signal, 'abort').length

describe('cancelling a wait', () => {
  it('rejects at once with the reason, whatever it is', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    for (const reason of [new Error('client went away'), 'enough', 42, null, { code: 499 }]) {
      const controller = new AbortController()
      const waiting = watch(b.lock('k', { signal: controller.signal }))
      await clock.advance(1_000)
      expect(waiting.state).toBe('pending')
      controller.abort(reason)
      await settle()
      expect(waiting).toEqual({ state: 'rejected', error: reason })
    }
  })

  it('rejects with an AbortError if no reason was given, and with a TimeoutError after AbortSignal.timeout', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const controller = new AbortController()
    const waiting = b.lock('k', { signal: controller.signal })
    controller.abort()
    await expect(waiting).rejects.toHaveProperty('name', 'AbortError')
    await expect(b.lock('k', { signal: AbortSignal.timeout(5) })).rejects.toHaveProperty('name', 'TimeoutError')
  })

  it('works for tryLock and withLock as well', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const controller = new AbortController()
    const { signal } = controller
    let ran = false
    const calls = [watch(b.tryLock('k', { waitMs: 5_000, signal })), watch(b.withLock('k', { signal }, () => (ran = true)))]
    await settle()
    controller.abort('stop')
    await settle()
    expect(calls).toEqual([{ state: 'rejected', error: 'stop' }, { state: 'rejected', error: 'stop' }])
    expect(ran).toBe(false)
  })

  it('sends nothing if the signal is aborted already', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const signal = AbortSignal.abort('too late')
    await expect(locks.lock('k', { signal })).rejects.toBe('too late')
    await expect(locks.tryLock('k', { signal })).rejects.toBe('too late')
    await expect(locks.withLock('k', { signal }, () => expect.unreachable())).rejects.toBe('too late')
    expect(store.requests).toEqual([])
    expect(clock.pending()).toBe(0)
  })

  it('withdraws the claim behind the caller, so that the next in line is served', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const lock = await a.lock('k')
    const controller = new AbortController()
    const cancelled = watch(b.lock('k', { signal: controller.signal }))
    await settle()
    const next = watch(c.lock('k'))
    await settle()
    controller.abort()
    await settle()
    expect(cancelled.state).toBe('rejected')
    expect(store.sent('release').map(({ owner }) => owner)).toEqual([b.owner])
    const sentBefore = store.requests.length
    await lock.release()
    await settle()
    expect(next.state).toBe('resolved')
    // One release, one grant: nobody had to find out about the cancelled claim.
    expect(store.requests.length).toBe(sentBefore + 1)
    expect(clock.pending('awaited')).toBe(0)
  })

  it('does not wait for the store: the withdrawal goes out after the claim that is still on its way', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const claim = store.hold('claim')
    const controller = new AbortController()
    const waiting = watch(a.lock('k', { signal: controller.signal }))
    await clock.advance(100)
    controller.abort('stop')
    await settle()
    expect(waiting).toEqual({ state: 'rejected', error: 'stop' })
    expect(store.sent('release')).toEqual([])
    // The claim arrives after all, and is granted to nobody.
    claim.release()
    await settle()
    expect(store.sent('release')[0]!.claimIds).toContain(store.sent('claim')[0]!.claimIds[0])
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('does not wait for ever for a claim that is never answered', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    store.holdReply('claim')
    const controller = new AbortController()
    watch(a.lock('k', { signal: controller.signal }))
    await settle()
    controller.abort()
    await clock.advance(4_999)
    expect(store.sent('release')).toEqual([])
    await clock.advance(1)
    expect(store.sent('release')).toHaveLength(1)
    expect(await b.tryLock('k')).not.toBeNull()
  })

  it('withdraws again a claim that reaches the store only after its withdrawal, whether it holds or waits there', async () => {
    for (const busy of [false, true]) {
      const { manager, store, clock } = manualWorld()
      const [a, b] = [manager(), manager()]
      const theirs = busy ? await b.lock('k', { ttlMs: 600_000 }) : undefined
      const claim = store.hold('claim')
      const controller = new AbortController()
      watch(a.lock('k', { ttlMs: 600_000, signal: controller.signal }))
      await settle()
      controller.abort()
      await clock.advance(5_000)
      expect(store.sent('release')).toHaveLength(1)
      claim.release()
      await settle()
      expect((await all(b.inspect()))[0]?.waiters ?? []).toEqual([])
      await theirs?.release()
      expect(await b.tryLock('k')).not.toBeNull()
    }
  })

  it('withdraws again and again while the store fails, for as long as the claim could be in the way', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k', { ttlMs: 60_000 })
    const controller = new AbortController()
    watch(b.lock('k', { ttlMs: 10_000, signal: controller.signal }))
    await settle()
    store.fail('release', outage(), { times: 5, owner: b.owner })
    controller.abort()
    await clock.advance(5_000)
    const tries = store.sent('release').map(({ sentAt }) => sentAt)
    expect(tries).toHaveLength(6)
    const pauses = tries.slice(1).map((at, i) => at - tries[i]!)
    expect(pauses).toEqual([50, 100, 200, 400, 800])
    await lock.release()
    expect(await a.tryLock('k')).not.toBeNull()
  })

  it('does not repeat a withdrawal that cannot succeed', async () => {
    const { manager, store, clock, named } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const controller = new AbortController()
    watch(b.lock('k', { signal: controller.signal }))
    await settle()
    store.fail('release', new BackendError('NOPERM', { transient: false }))
    controller.abort()
    await clock.advance(60_000)
    expect(store.sent('release')).toHaveLength(1)
    expect(named('release-failed')).toHaveLength(1)
  })

  it('leaves a claim alone that was granted before', async () => {
    const { manager, clock } = manualWorld()
    const controller = new AbortController()
    const lock = await manager().lock('k', { signal: controller.signal })
    controller.abort()
    await clock.advance(30_000)
    expect(lock.signal.aborted).toBe(false)
    lock.assertHeld()
    expect(await lock.release()).toBe(true)
  })

  it('gives back what was granted in the very moment of the abort', async () => {
    const { manager, store } = manualWorld()
    const [a, b, c] = [manager(), manager(), manager()]
    const lock = await a.lock('k')
    const controller = new AbortController()
    const waiting = watch(b.lock('k', { signal: controller.signal }))
    await settle()
    const wakeUps = store.holdWakeUps()
    await lock.release()
    await settle()
    expect(wakeUps.count).toBe(1)
    controller.abort('stop')
    wakeUps.release()
    await settle()
    expect(waiting.error).toBe('stop')
    expect(await c.tryLock('k')).not.toBeNull()
  })

  it("takes another lock's signal, and waits no longer once that lock is lost", async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.lock('second')
    const first = await a.lock('first', { maxHoldMs: 500 })
    const waiting = watch(a.lock('second', { signal: first.signal }))
    await clock.advance(500)
    expect(waiting.error).toBeInstanceOf(OwnershipLostError)
  })
})

describe("a caller's signal", () => {
  it('carries one listener however many locks share it, and none when they are done', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    const holders = await Promise.all(Array.from({ length: 100 }, (_, i) => a.lock(`k${i}`)))
    const { signal } = new AbortController()
    const waiting = holders.map(({ key }) => b.lock(key, { signal }))
    await settle()
    expect(listenersOf(signal)).toBe(1)
    await Promise.all(holders.map((lock) => lock.release()))
    const locks = await Promise.all(waiting)
    expect(listenersOf(signal)).toBe(0)
    await Promise.all(locks.map((lock) => lock.release()))
  })

  it('carries one listener for 100 callbacks that look at their signal, and none when they are done', async () => {
    const { manager } = manualWorld()
    const locks = manager()
    const { signal } = new AbortController()
    let go!: () => void
    const gate = new Promise<void>((resolve) => (go = resolve))
    const running = Array.from({ length: 100 }, (_, i) =>
      locks.withLock(`k${i}`, { signal }, async (lock) => {
        expect(lock.signal.aborted).toBe(false)
        await gate
      }),
    )
    await settle()
    expect(listenersOf(signal)).toBe(1)
    go()
    await Promise.all(running)
    expect(listenersOf(signal)).toBe(0)
  })

  it('is left without a listener by waits that end in any way', async () => {
    const { manager, store, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const { signal } = new AbortController()
    expect(await b.tryLock('k', { signal })).toBeNull()
    expect(listenersOf(signal)).toBe(0)
    const timedOut = watch(b.lock('k', { signal, waitMs: 100 }))
    await clock.advance(100)
    expect(timedOut.error).toBeInstanceOf(LockNotAcquiredError)
    expect(listenersOf(signal)).toBe(0)
    store.fail('claim', new BackendError('NOPERM', { transient: false }))
    await expect(b.lock('k', { signal })).rejects.toThrow('NOPERM')
    expect(listenersOf(signal)).toBe(0)
    const closed = watch(b.lock('k', { signal }))
    await settle()
    await b.close()
    expect(closed.state).toBe('rejected')
    expect(listenersOf(signal)).toBe(0)
  })

  it('ends all its waits at once when it aborts, and no other', async () => {
    const { manager } = manualWorld()
    const [a, b] = [manager(), manager()]
    await a.lock('k')
    const [one, two] = [new AbortController(), new AbortController()]
    const first = [1, 2, 3].map(() => watch(b.lock('k', { signal: one.signal })))
    const second = watch(b.lock('k', { signal: two.signal }))
    await settle()
    one.abort('one')
    await settle()
    expect(first.map(({ error }) => error)).toEqual(['one', 'one', 'one'])
    expect(second.state).toBe('pending')
    two.abort('two')
    await settle()
    expect(second.error).toBe('two')
  })
})

describe('in a callback form', () => {
  it("the lock's signal aborts with the caller's, and with its reason", async () => {
    const { manager } = manualWorld()
    const controller = new AbortController()
    const reason = new Error('request was cancelled')
    const seen: unknown[] = []
    const result = await manager().withLock('k', { signal: controller.signal }, (lock) => {
      lock.signal.addEventListener('abort', () => seen.push(lock.signal.reason))
      controller.abort(reason)
      // The hold itself is not lost by that.
      lock.assertHeld()
      expect(lock.remainingMs).toBeGreaterThan(0)
      return lock.signal.aborted
    })
    expect(result).toBe(true)
    expect(seen).toEqual([reason])
  })

  it("the lock's signal aborts when the lock is lost, and the caller's does not", async () => {
    const { manager, store, clock } = manualWorld()
    const { signal } = new AbortController()
    store.blackHole('renew')
    const running = manager().withLock('k', { signal }, async (lock) => {
      await new Promise((resolve) => lock.signal.addEventListener('abort', resolve))
      return lock.signal.reason as unknown
    })
    await clock.advance(10_000)
    expect(await running).toBeInstanceOf(OwnershipLostError)
    expect(signal.aborted).toBe(false)
  })

  it("tells of a caller's abort also if the signal is looked at only later", async () => {
    const { manager } = manualWorld()
    const controller = new AbortController()
    await manager().withLock('k', { signal: controller.signal }, async (lock) => {
      controller.abort('stop')
      await settle()
      expect(lock.signal.aborted).toBe(true)
      expect(lock.signal.reason).toBe('stop')
    })
  })

  it('keeps the first of two reasons', async () => {
    const { manager, clock } = manualWorld()
    const controller = new AbortController()
    await manager().withLock('k', { signal: controller.signal, autoRenew: false }, async (lock) => {
      const { signal } = lock
      controller.abort('first')
      await clock.advance(20_000)
      expect(signal.reason).toBe('first')
      expect(() => lock.assertHeld()).toThrow(OwnershipLostError)
    })
  })

  it("no longer follows the caller's signal when the callback is over", async () => {
    const { manager } = manualWorld()
    const controller = new AbortController()
    let kept!: AbortSignal
    await manager().withLock('k', { signal: controller.signal }, (lock) => void (kept = lock.signal))
    controller.abort()
    expect(kept.aborted).toBe(false)
  })

  it('returns what the callback returns even though the caller aborted', async () => {
    const { manager } = manualWorld()
    const controller = new AbortController()
    const result = manager().withLock('k', { signal: controller.signal }, async () => {
      controller.abort()
      return 'charged'
    })
    expect(await result).toBe('charged')
  })
})

describe('outside of callback forms', () => {
  it("the lock's signal is its own: the caller's cancels the wait only", async () => {
    const { manager } = manualWorld()
    const controller = new AbortController()
    const locks = manager()
    const taken = [await locks.lock('a', { signal: controller.signal }), await locks.tryLock('b', { signal: controller.signal })]
    controller.abort()
    for (const lock of taken as DistributedLock[]) expect(lock.signal.aborted).toBe(false)
  })
})

describe('onAbort', () => {
  it('tells everybody once, except those who took it back', () => {
    const controller = new AbortController()
    const told: string[] = []
    onAbort(controller.signal, () => told.push('a'))
    const takeBack = onAbort(controller.signal, () => told.push('b'))
    onAbort(controller.signal, () => told.push('c'))
    takeBack()
    takeBack()
    expect(listenersOf(controller.signal)).toBe(1)
    controller.abort()
    expect(told).toEqual(['a', 'c'])
    expect(listenersOf(controller.signal)).toBe(0)
  })

  it('can be used again after everybody has left', () => {
    const controller = new AbortController()
    const told: string[] = []
    onAbort(controller.signal, () => told.push('a'))()
    expect(listenersOf(controller.signal)).toBe(0)
    onAbort(controller.signal, () => told.push('b'))
    controller.abort()
    expect(told).toEqual(['b'])
  })

  it('does not tell one that leaves because of another', () => {
    const controller = new AbortController()
    const told: string[] = []
    const leave: (() => void)[] = []
    onAbort(controller.signal, () => {
      told.push('a')
      leave[0]!()
    })
    leave.push(onAbort(controller.signal, () => told.push('b')))
    controller.abort()
    expect(told).toEqual(['a'])
  })
})

describe('a truthful signal', () => {
  it('looks before it answers', () => {
    let late = false
    const controller: AbortController = truthfulController(() => {
      if (late) controller.abort('late')
    })
    const { signal } = controller
    expect(signal).toBeInstanceOf(AbortSignal)
    expect(signal.aborted).toBe(false)
    signal.throwIfAborted()
    late = true
    expect(() => signal.throwIfAborted()).toThrow('late')
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toBe('late')
  })

  it('is understood by AbortSignal.any, fetch and timers', async () => {
    let late = false
    const controller: AbortController = truthfulController(() => {
      if (late) controller.abort(new Error('lost'))
    })
    const before = AbortSignal.any([controller.signal])
    late = true
    expect(AbortSignal.any([controller.signal]).aborted).toBe(true)
    // One that was made before learns of it as soon as anybody looks.
    expect(before.aborted).toBe(true)
    await expect(fetch('http://127.0.0.1:9/', { signal: controller.signal })).rejects.toThrow('lost')
    const { setTimeout: sleep } = await import('node:timers/promises')
    await expect(sleep(60_000, undefined, { signal: controller.signal })).rejects.toHaveProperty('name', 'AbortError')
  })

  it('dispatches one abort event', () => {
    const controller = truthfulController(() => {})
    let events = 0
    controller.signal.addEventListener('abort', () => events++)
    controller.abort('a')
    controller.abort('b')
    expect(events).toBe(1)
    expect(controller.signal.reason).toBe('a')
  })
})
