/** Locks and unlocks, 64 in flight, while the same process holds more and more other locks. */
import { heapUsed } from '../lib/heap.mjs'
import { many } from '../lib/many.mjs'

const IN_FLIGHT = 64
const SLICES = 5

/** In the process that measures. */
export async function start(locks) {
  const held = []
  let heldBytes = 0
  const lockAndUnlock = async (index) => {
    const released = locks.release(await locks.acquire(`other:${index % 1024}`))
    if (released) await released
  }
  return {
    async hold({ size }) {
      const before = heapUsed()
      const missing = size - held.length
      const first = held.length
      await many(missing, IN_FLIGHT, async (index) => held.push(await locks.acquire(`held:${first + index}`)))
      heldBytes += heapUsed() - before
      return { heapPerHeldBytes: heldBytes / held.length }
    },
    async cost({ operations }) {
      const cpuBefore = process.cpuUsage()
      const slices = []
      for (let slice = 0; slice < SLICES; slice++) {
        const startedAt = performance.now()
        await many(operations, IN_FLIGHT, lockAndUnlock)
        slices.push((1000 * (performance.now() - startedAt)) / operations)
      }
      const { user, system } = process.cpuUsage(cpuBefore)
      // What else the machine does only ever adds to it.
      return { costUs: Math.min(...slices), cpuMs: (user + system) / 1000 }
    }
  }
}

/** In the parent. */
export async function conduct(crew, { sizes, operations, capMs }, { watch }) {
  const metrics = {}
  // Compiled and optimised before the first size, not in it.
  await crew.ask('cost', capMs, () => ({ operations }))
  for (const size of sizes) {
    const [{ heapPerHeldBytes }] = await crew.ask('hold', capMs, () => ({ size }))
    const server = await watch(() => crew.ask('cost', capMs, () => ({ operations })))
    const [{ costUs, cpuMs }] = server.result
    metrics[`costUsAt${size}`] = costUs
    metrics[`cpuUsAt${size}`] = (1000 * (cpuMs + server.cpuMs)) / (SLICES * operations)
    metrics.heapPerHeldBytes = heapPerHeldBytes
  }
  const [smallest] = sizes
  metrics.growth = Math.max(...sizes.map((size) => metrics[`costUsAt${size}`])) / metrics[`costUsAt${smallest}`]
  return metrics
}
