/** Twenty callers miss the cache at once: one of them loads, on whatever instance it is, and the others take what it has loaded. */
import { setTimeout as sleep } from 'node:timers/promises'
import { connect, key, LockNotAcquiredError } from 'holdfast'

// Two instances of a service, and one cache for both.
const target = process.env.HOLDFAST_URL ?? (await import('holdfast/memory')).memoryBackend()
const instances = await Promise.all([connect(target), connect(target)])
const cache = new Map()
let loads = 0

async function load(id) {
  loads++
  await sleep(50)
  return `product ${id}`
}

async function product(locks, id) {
  if (cache.has(id)) return cache.get(id)
  try {
    return await locks.withLock(key`cachefill:${id}`, { waitMs: 5_000 }, async () => {
      // Whoever had it before has filled the cache.
      if (!cache.has(id)) cache.set(id, await load(id))
      return cache.get(id)
    })
  } catch (error) {
    // To load twice is a pity, and no mistake: better than to keep somebody waiting for ever.
    if (error instanceof LockNotAcquiredError) return load(id)
    throw error
  }
}

const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => product(instances[i % 2], 7)))
console.log(`answers: ${answers.length}, all the same: ${new Set(answers).size === 1}, loaded: ${loads}`)
await Promise.all(instances.map((locks) => locks.close()))
