/** Whether others wait is asked for while a lock is handed over in memory: soon enough, and not for each who has it. */
import { describe, expect, it } from 'vitest'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch } from '../support/manual-world.js'

describe('a lock that is handed over in memory', () => {
  it('is asked about at once, if the store was last heard of a while ago', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const first = await locks.lock('k')
    for (let i = 0; i < 2; i++) watch(locks.lock('k'))
    await clock.advance(1_000)
    expect(store.sent('renew')).toEqual([])
    expect(await first.release()).toBe(true)
    await clock.advance(1)
    expect(store.sent('renew')).toHaveLength(1)
  })

  it('is asked about every 100 ms also while the store fails, and not for each who has it', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const line = Array.from({ length: 101 }, () => watch(locks.lock('k')))
    await settle()
    store.fail('renew', outage(), { times: Infinity })
    for (const caller of line.slice(0, 100)) {
      await settle()
      await clock.advance(10)
      expect(await caller.value!.release()).toBe(true)
    }
    expect(store.sent('renew').length).toBeGreaterThanOrEqual(8)
    expect(store.sent('renew').length).toBeLessThanOrEqual(12)
  })

  it('stays in memory if a renewal does not say whether others wait', async () => {
    const { manager, store, clock } = manualWorld()
    const locks = manager()
    const first = await locks.lock('k')
    const second = watch(locks.lock('k'))
    store.answer('renew', [{ status: 'held', waiting: undefined }])
    await clock.advance(5_000)
    expect(store.sent('renew')).toHaveLength(1)
    expect(await first.release()).toBe(true)
    await settle()
    second.value!.assertHeld()
    expect(store.sent('release')).toEqual([])
  })
})
