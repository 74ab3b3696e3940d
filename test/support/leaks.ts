/** What many locks and unlocks leave behind in this process. */
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect } from 'vitest'
import type { LockManager } from '../../src/index.js'

const PER_BATCH = 1_000
const MOST_BYTES = 3_000_000

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

function heapUsed(): number {
  collectGarbage()
  return process.memoryUsage().heapUsed
}

/** Timers, sockets and the like, as the process sees them. */
const resources = () => process.getActiveResourcesInfo().sort()

const listeners = () => {
  const names = ['exit', 'uncaughtException', 'unhandledRejection', 'SIGINT', 'SIGTERM', 'warning'] as const
  return names.map((name) => process.listenerCount(name))
}

/** So many thousands, each of a key of its own. */
export async function expectNoLeak(locks: LockManager, batches: number): Promise<void> {
  const caller = new AbortController()
  const cycle = async (i: number) => {
    const lock = await locks.lock(`key ${i}`, { signal: caller.signal, waitMs: 60_000 })
    if (i % 10 === 0) lock.signal.addEventListener('abort', () => {})
    await lock.release()
  }
  const batch = async (first: number) => Promise.all(Array.from({ length: PER_BATCH }, (_, i) => cycle(first + i)))
  await batch(0)
  // Until there are all connections that there will be: some are opened a while after the first lock.
  await sleep(1_500)
  const before = { resources: resources(), listeners: listeners() }
  const heapBefore = heapUsed()
  let heapAfter = Infinity
  for (let i = 1; i <= batches; i++) {
    await batch(i * PER_BATCH)
    // The least of several: buffers of a client come and go, and a leak stays.
    if (i > batches - 10) heapAfter = Math.min(heapAfter, heapUsed())
  }
  expect(resources()).toEqual(before.resources)
  expect(listeners()).toEqual(before.listeners)
  expect(heapAfter - heapBefore).toBeLessThan(MOST_BYTES)
}
