import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { createLocks } from '../../src/index.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

it('tests of users can run locks on fake time', async () => {
  const store = memoryBackend()
  const a = createLocks(store, { ttlMs: 10_000 })
  const b = createLocks(store)
  const held = await a.lock('k')
  await vi.advanceTimersByTimeAsync(60_000)
  expect(held.signal.aborted).toBe(false)

  const ended = await a.lock('other', { autoRenew: false })
  const next = b.lock('other')
  await vi.advanceTimersByTimeAsync(9_000)
  expect(ended.signal.aborted).toBe(false)
  await vi.advanceTimersByTimeAsync(1_100)
  expect(ended.signal.aborted).toBe(true)
  expect((await next).fence).toBeGreaterThan(ended.fence)
})
