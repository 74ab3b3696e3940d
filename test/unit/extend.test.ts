/**
 * Extensions one after another. A store takes an order to shorten for two seconds after it was given, since a client may send it
 * twice: so nothing longer is promised within that time.
 */
import { describe, expect, it } from 'vitest'
import { BackendError } from '../../src/core/errors.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

/** A lock, with the moments at which it was asked for more or less. */
async function held(ttlMs = 10_000) {
  const the = manualWorld()
  const start = the.clock.now()
  const lock = await the.manager().lock('k', { ttlMs })
  const sent = () => the.store.sent('renew').map(({ sentAt, args }) => [sentAt - start, args[0][0].ttlMs])
  return { ...the, lock, sent }
}

describe('extend', () => {
  it('to more waits until a shortening from before can no longer come a second time', async () => {
    const { lock, sent, clock } = await held()
    await lock.extend(8_000)
    await clock.advance(500)
    const longer = watch(lock.extend(30_000))
    await clock.advance(1_499)
    expect(longer.state).toBe('pending')
    // The caller waits for it.
    expect(clock.pending('awaited')).toBe(1)
    expect(sent()).toEqual([[0, 8_000]])
    await clock.advance(1)
    expect(longer.state).toBe('resolved')
    expect(sent()).toEqual([[0, 8_000], [2_000, 30_000]])
    expect(lock.remainingMs).toBeGreaterThan(29_000)
  })

  it('to more is sent at once when that time is over', async () => {
    const { lock, sent, clock } = await held()
    await lock.extend(8_000)
    await clock.advance(2_000)
    await lock.extend(30_000)
    expect(sent()).toEqual([[0, 8_000], [2_000, 30_000]])
  })

  it('to less, or to the same, is sent at once', async () => {
    const { lock, sent } = await held()
    for (const ttlMs of [8_000, 8_000, 7_000]) await lock.extend(ttlMs)
    expect(sent()).toEqual([[0, 8_000], [0, 8_000], [0, 7_000]])
  })

  it('to more is sent at once after one to the same, or to more', async () => {
    const { lock, sent } = await held()
    for (const ttlMs of [10_000, 20_000, 30_000]) await lock.extend(ttlMs)
    expect(sent()).toEqual([[0, 10_000], [0, 20_000], [0, 30_000]])
  })

  it('to more ends with the lock, if that ends while it waits', async () => {
    const { lock, sent, clock } = await held()
    await lock.extend(1_000)
    const longer = watch(lock.extend(30_000))
    expect(await lock.release()).toBe(true)
    await clock.advance(5_000)
    expect(longer.error.code).toBe('LOCK_NOT_HELD')
    expect(sent()).toEqual([[0, 1_000]])
  })

  it('is not followed by a renewal before a third of the new TTL is over, even if its answer takes a while', async () => {
    const { lock, store, sent, clock } = await held()
    const reply = store.holdReply('renew')
    const extended = watch(lock.extend(30_000))
    await clock.advance(1_000)
    expect(sent()).toEqual([[0, 30_000]])
    reply.release()
    await settle()
    expect(extended.state).toBe('resolved')
    await clock.advance(6_000)
    expect(sent()).toEqual([[0, 30_000]])
  })

  it('that the store could not carry out rejects with its reason, and the lock is kept', async () => {
    const { lock, store } = await held()
    const error = outage('LOADING')
    store.answer('renew', [{ status: 'failed', error }])
    await expect(lock.extend(30_000)).rejects.toBe(error)
    lock.assertHeld()
  })

  it('to more that was refused is not asked for by renewals: they go on as before, and the lock is kept', async () => {
    const { lock, store, sent, clock } = await held()
    await clock.advance(3_000)
    store.answer('renew', [{ status: 'failed', error: new BackendError('no space left', { transient: false }) }])
    await expect(lock.extend(60_000)).rejects.toThrow('no space left')
    await clock.advance(30_000)
    lock.assertHeld()
    const ttls = sent().map(([, ttlMs]) => ttlMs)
    expect(ttls.slice(0, 2)).toEqual([60_000, 10_000])
    expect(new Set(ttls.slice(1))).toEqual(new Set([10_000]))
  })

  it.each([
    ['lost', 'it expired or was taken away'],
    ['revoked', 'it was revoked'],
  ])('of what is %s says so', async (status, why) => {
    const { lock, store } = await held()
    store.answer('renew', [{ status }])
    await expect(lock.extend(30_000)).rejects.toThrow(why)
  })
})
