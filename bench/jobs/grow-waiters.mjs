/**
 * More and more waiters of one process for one key, which is held until all of them wait. Then each has it and lets go
 * at once: how fast do they get through, compared with the 64 of a hot key?
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Capped } from '../lib/crew.mjs'
import { heapUsed } from '../lib/heap.mjs'

const HOT_WORKERS = 64
const QUIET_CPU_SHARE = 0.1
const QUIET_MS = 8_000
const LOOK_EVERY_MS = 100
const GRACE_MS = 30_000

/** In the process that measures. */
export async function start(locks, { durationMs, drainMs }) {
  return { hot, drain }

  async function hot() {
    let count = 0
    const from = performance.now()
    const until = from + durationMs
    const work = async () => {
      while (performance.now() < until) {
        await lockAndUnlock(locks, 'hot')
        count++
      }
    }
    await Promise.all(Array.from({ length: HOT_WORKERS }, work))
    return { perS: (1000 * count) / (performance.now() - from) }
  }

  async function drain({ size }) {
    const key = `drain:${size}`
    const blocker = await locks.acquire(key)
    const ownBytes = heapOfWaiters(size)
    const heapBefore = heapUsed()
    let drained = 0
    const waiters = Array.from({ length: size }, () => lockAndUnlock(locks, key).then(() => drained++))
    await quiet()
    const heapPerWaiterBytes = (heapUsed() - heapBefore - ownBytes) / size
    const from = performance.now()
    const released = locks.release(blocker)
    if (released) await released
    await Promise.race([Promise.all(waiters), sleep(drainMs)])
    return { heapPerWaiterBytes, perS: (1000 * drained) / (performance.now() - from), finished: drained === size }
  }

  /** Until all have been sent to wherever they wait. Who polls is never quiet, and not waited for any longer. */
  async function quiet() {
    const giveUpAt = performance.now() + QUIET_MS
    for (;;) {
      const [before, since] = [process.cpuUsage(), performance.now()]
      await sleep(LOOK_EVERY_MS)
      const { user, system } = process.cpuUsage(before)
      const now = performance.now()
      if ((user + system) / 1000 < QUIET_CPU_SHARE * (now - since) || now > giveUpAt) return
    }
  }
}

async function lockAndUnlock(locks, key) {
  let hold
  // Who gives up comes again.
  while (hold === undefined) hold = await locks.acquire(key).catch(() => undefined)
  const released = locks.release(hold)
  if (released) await released
}

/** What the benchmark itself needs for them: the same code, waiting for a promise that was not made for anybody. */
function heapOfWaiters(size) {
  const never = new Promise(() => {})
  const before = heapUsed()
  const waiters = Array.from({ length: size }, () => lockAndUnlock({ acquire: () => never }, 'none').then(() => size))
  const bytes = heapUsed() - before
  // Mentioned here, so that they are alive until here.
  return waiters.length === size ? bytes : 0
}

/** In the parent. Who is not through with one size in its time is not asked for a larger one. */
export async function conduct(crew, { sizes, durationMs, drainMs }) {
  const [hot] = await crew.ask('hot', durationMs + GRACE_MS)
  const metrics = { hotPerS: hot.perS }
  for (const size of sizes) {
    const drained = await drain(crew, size, QUIET_MS + drainMs + GRACE_MS)
    if (drained.finished) metrics[`drainPerSAt${size}`] = drained.perS
    if (drained.heapPerWaiterBytes) metrics.heapPerWaiterBytes = drained.heapPerWaiterBytes
    if (!drained.finished) {
      return { ...metrics, note: `${size.toLocaleString('en')} are not through within ${drainMs / 1000} s` }
    }
  }
  metrics.drainToHot = metrics[`drainPerSAt${sizes.at(-1)}`] / metrics.hotPerS
  return metrics
}

async function drain(crew, size, capMs) {
  try {
    const [drained] = await crew.ask('drain', capMs, () => ({ size }))
    return drained
  } catch (error) {
    // So busy that not even its own timer ran.
    if (error instanceof Capped) return { finished: false }
    throw error
  }
}
