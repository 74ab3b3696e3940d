/**
 * One process holds many locks and does nothing else: what it costs to keep them alive, once everybody has renewed them.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { heapUsed } from '../lib/heap.mjs'
import { many } from '../lib/many.mjs'

const IN_FLIGHT = 64
const TAKE_MS = 60_000
const GRACE_MS = 10_000

/** In the process that measures. */
export async function start(locks, { count }) {
  const take = locks.hold ?? locks.acquire
  const held = []
  await take('warm-up')
  const heapBefore = heapUsed()
  return {
    take: () => many(count, IN_FLIGHT, async (index) => held.push(await take(`held:${index}`))),
    async rest({ ms }) {
      const before = process.cpuUsage()
      await sleep(ms)
      const { user, system } = process.cpuUsage(before)
      return { cpuMs: (user + system) / 1000, held: held.length }
    },
    // At last: what collects the garbage also leaves little room for the next.
    heap: async () => ({ perHeldBytes: (heapUsed() - heapBefore) / count })
  }
}

/** In the parent. */
export async function conduct(crew, { count, warmUpMs, durationMs }, { watch, countKeys }) {
  const rest = (ms) => crew.ask('rest', ms + GRACE_MS, () => ({ ms }))
  await crew.ask('take', TAKE_MS)
  await rest(warmUpMs)
  const server = await watch(() => rest(durationMs))
  const [{ cpuMs }] = server.result
  const [heap] = await crew.ask('heap', GRACE_MS)
  const keys = await countKeys()
  // Whoever lost them has little to do.
  if (keys < count) throw new Error(`only ${keys} of ${count} locks are still there`)
  return {
    renewalRequests: server.requests,
    renewalCommands: server.commands,
    clientCpuMs: cpuMs,
    serverCpuMs: server.cpuMs,
    heapPerHeldBytes: heap.perHeldBytes,
    othersCpu: server.othersCpu(cpuMs)
  }
}
