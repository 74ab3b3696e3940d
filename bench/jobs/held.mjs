/** One process holds many locks and does nothing else: what it costs to keep them alive. */
import { setTimeout as sleep } from 'node:timers/promises'
import { heapUsed } from '../lib/heap.mjs'
import { many } from '../lib/many.mjs'

const IN_FLIGHT = 64
const TAKE_MS = 60_000
const GRACE_MS = 10_000

/** In the process that measures. */
export async function start(locks, { count, durationMs }) {
  const take = locks.hold ?? locks.acquire
  const held = []
  await take('warm-up')
  return {
    async take() {
      const before = heapUsed()
      await many(count, IN_FLIGHT, async (index) => held.push(await take(`held:${index}`)))
      return { heapPerHeldBytes: (heapUsed() - before) / count }
    },
    async rest() {
      const before = process.cpuUsage()
      await sleep(durationMs)
      const { user, system } = process.cpuUsage(before)
      return { cpuMs: (user + system) / 1000, held: held.length }
    }
  }
}

/** In the parent. */
export async function conduct(crew, { count, durationMs }, { watch, countKeys }) {
  const [{ heapPerHeldBytes }] = await crew.ask('take', TAKE_MS)
  const server = await watch(() => crew.ask('rest', durationMs + GRACE_MS))
  const [{ cpuMs }] = server.result
  const keys = await countKeys()
  // Whoever lost them has little to do.
  if (keys < count) throw new Error(`only ${keys} of ${count} locks are still there`)
  return {
    renewalRequests: server.requests,
    renewalCommands: server.commands,
    clientCpuMs: cpuMs,
    serverCpuMs: server.cpuMs,
    heapPerHeldBytes,
    othersCpu: server.othersCpu(cpuMs)
  }
}
