/** Those who hear of an event, or of an abort, act in the very moment of it, in the middle of a step. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, it, onTestFinished } from 'vitest'
import { BackendError, ManagerClosedError } from '../../src/index.js'
import type { EventName } from '../../src/core/events.js'
import { settle } from '../support/manual-clock.js'
import { all, manualWorld, watch } from '../support/manual-world.js'

function hear(name: EventName, listener: () => void): void {
  subscribe(`holdfast:${name}`, listener)
  onTestFinished(() => void unsubscribe(`holdfast:${name}`, listener))
}

describe('whoever hears that a claim waits', () => {
  it('may abort the wait: nothing goes on, and neighbours are answered', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    const controller = new AbortController()
    hear('waiting', () => controller.abort())
    const waiting = watch(a.lock('k', { signal: controller.signal }))
    const neighbour = watch(a.lock('other'))
    await settle()
    await settle()
    expect(unheard).toEqual([])
    expect(waiting.state).toBe('rejected')
    expect(neighbour.state).toBe('resolved')
    const sent = store.sent('claim').length
    await clock.advance(60_000)
    expect(store.sent('claim')).toHaveLength(sent)
  })

  it('may close the manager', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    await b.lock('k')
    hear('waiting', () => void a.close())
    const waiting = watch(a.lock('k'))
    await settle()
    expect(waiting.error).toBeInstanceOf(ManagerClosedError)
    expect(unheard).toEqual([])
    const sent = store.sent('claim').length
    await clock.advance(60_000)
    expect(store.sent('claim')).toHaveLength(sent)
  })

  it('may abort one of two strict waits', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const held = await b.lock('k')
    const controller = new AbortController()
    const first = watch(a.lock('k', { fairness: 'strict' }))
    await settle()
    hear('waiting', () => controller.abort())
    const second = watch(a.lock('k', { fairness: 'strict', signal: controller.signal }))
    await settle()
    expect(second.state).toBe('rejected')
    await clock.advance(60_000)
    await held.release()
    await settle()
    expect(first.state).toBe('resolved')
    await first.value!.release()
    await clock.advance(60_000)
    expect(unheard).toEqual([])
    expect(store.sent('claim').at(-1)!.sentAt).toBeLessThan(clock.now() - 60_000)
  })
})

describe('whoever hears that a claim failed', () => {
  it('may abort the wait when the store fails', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const a = manager()
    const controller = new AbortController()
    store.fail('claim')
    hear('claim-failed', () => controller.abort())
    const waiting = watch(a.lock('k', { signal: controller.signal }))
    await clock.advance(60_000)
    expect(waiting.state).toBe('rejected')
    expect(unheard).toEqual([])
    expect(store.sent('claim')).toHaveLength(1)
    expect(await all(a.inspect())).toEqual([])
  })

  it('may abort the wait when the store does not answer', async () => {
    const { manager, store, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const held = await b.lock('k')
    const controller = new AbortController()
    const waiting = watch(a.lock('k', { signal: controller.signal }))
    await settle()
    store.hold('claim', { owner: a.owner })
    store.wake(a.owner, { kind: 'look' })
    hear('claim-failed', () => controller.abort())
    await clock.advance(60_000)
    expect(waiting.state).toBe('rejected')
    expect(unheard).toEqual([])
    expect(store.sent('claim').filter(({ owner }) => owner === a.owner)).toHaveLength(2)
    await held.release()
    expect(await all(a.inspect())).toEqual([])
  })
})

describe('close() in the middle of a step', () => {
  it('by one who hears of a loss sends those away who are in line', async () => {
    const { manager, clock, store, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const next = watch(a.lock('k'))
    lock.signal.addEventListener('abort', () => void a.close())
    await b.forceRelease('k')
    await clock.advance(1_000)
    expect(next.error).toBeInstanceOf(ManagerClosedError)
    expect(await all(b.inspect())).toEqual([])
    await clock.advance(120_000)
    expect(store.sent('renew')).toEqual([])
    expect(unheard).toEqual([])
  })

  it('by one who hears of a transfer', async () => {
    const { manager, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const next = watch(a.lock('k'))
    hear('transferred', () => void a.close())
    const adopted = await b.adopt(lock.transfer())
    await adopted.release()
    await clock.advance(1_000)
    expect(next.error).toBeInstanceOf(ManagerClosedError)
    expect(await all(b.inspect())).toEqual([])
    expect(unheard).toEqual([])
  })

  it('frees what is handed over because of it', async () => {
    const { manager, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const next = watch(a.lock('k'))
    lock.signal.addEventListener('abort', () => void lock.release())
    await a.close()
    await clock.advance(1_000)
    expect(next.error).toBeInstanceOf(ManagerClosedError)
    expect(await all(b.inspect())).toEqual([])
    expect(unheard).toEqual([])
  })

  it('frees what is handed over while others are sent away', async () => {
    const { manager, clock, unheard } = manualWorld()
    const [a, b] = [manager(), manager()]
    const lock = await a.lock('k')
    const waiting = [watch(a.lock('k')), watch(a.lock('k')), watch(a.lock('k'))]
    hear('cancelled', () => void lock.release())
    await a.close()
    await clock.advance(1_000)
    expect(waiting.map(({ error }) => error instanceof ManagerClosedError)).toEqual([true, true, true])
    expect(await all(b.inspect())).toEqual([])
    expect(unheard).toEqual([])
  })
})

describe('a store that hangs', () => {
  it('does not keep waiting those for ever who asked before close()', async () => {
    const { manager, clock, store } = manualWorld()
    const a = manager()
    store.blackHole('revoke')
    const revoking = watch(a.forceRelease('k'))
    await settle()
    await a.close()
    await clock.advance(10_000)
    expect(revoking.error).toBeInstanceOf(BackendError)
  })

  it('is told of in time to each, though the first who hears of it asks for more', async () => {
    const { manager, clock, store } = manualWorld()
    const a = manager()
    store.blackHole('claim')
    store.blackHole('revoke')
    const first = watch(a.tryLock('k'))
    await clock.advance(1_000)
    const second = watch(a.forceRelease('k'))
    let more = true
    hear('claim-failed', () => {
      if (more) void a.lock('more').catch(() => {})
      more = false
    })
    await clock.advance(4_000)
    expect(first.state).toBe('rejected')
    await clock.advance(1_000)
    expect(second.state).toBe('rejected')
  })
})

describe('a hold that is released by one who hears of a bad renewal', () => {
  it('makes no busy loop if that fails, too', async () => {
    const { manager, clock, store } = manualWorld()
    const a = manager()
    const lock = await a.lock('k', { ttlMs: 30_000 })
    store.fail('renew')
    store.fail('release')
    hear('renew-failed', () => void lock.release().catch(() => {}))
    await clock.advance(60_000)
  })
})
