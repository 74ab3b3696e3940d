/**
 * The child process of workers.ts: holds locks on behalf of a test that stops, blocks or kills it.
 *
 * It is plain JavaScript and runs the built package, so that what it tests is what users get. All times are
 * process.hrtime.bigint(): one clock for the whole machine. A hold counts from when `lock` has resolved until just before
 * `release` is called: in between it must be alone, whatever happens on the way to and from the server.
 */
import { setTimeout as sleep } from 'node:timers/promises'

const { url, prefix, library, options } = JSON.parse(process.env.HOLDFAST_WORKER)
const { connect } = await import(library)
const manager = await connect(url, { prefix, ...options })

const now = () => process.hrtime.bigint()

/** id → { lock, ended }: a handle stays known after its end, since a test may well ask a dead one. */
const holds = new Map()
let nextId = 0

function tell(type, fields) {
  send({ event: { type, at: now(), ...fields } })
}

function send(message) {
  if (process.connected) process.send(message)
}

function keep(lock, waiter, askedAt, grantedAt) {
  const id = nextId++
  const hold = { lock, ended: false }
  holds.set(id, hold)
  const { key, fence, token } = lock
  tell('acquired', { id, key, waiter, askedAt, at: grantedAt, fence })
  lock.signal.addEventListener('abort', () => {
    if (hold.ended) return
    hold.ended = true
    tell('lost', { id, key, waiter, fence, error: lock.signal.reason?.name })
  })
  return { id, key, fence, token }
}

async function letGo(id, waiter, release = (lock) => lock.release()) {
  const { lock } = handle(id)
  const hold = holds.get(id)
  const releasedAt = now()
  // A signal that aborts from here on is no loss.
  const wasHeld = !hold.ended
  hold.ended = true
  if (wasHeld) tell('released', { id, key: lock.key, waiter, fence: lock.fence, at: releasedAt })
  const result = await release(lock)
  return { releasedAt, result }
}

/** What failed for a moment can be tried again; some clients do that by themselves. */
async function inTheEnd(step) {
  for (;;) {
    try {
      return await step()
    } catch (error) {
      if (!error.transient) throw error
      await sleep(20)
    }
  }
}

const releaseInTheEnd = (lock) => inTheEnd(() => lock.release())

function handle(id) {
  const hold = holds.get(id)
  if (!hold) throw new Error(`There is no hold ${id}`)
  return hold
}

/** Synchronous: right after a block of the event loop nothing else gets a turn before it. */
function look({ lock }) {
  const aborted = lock.signal.aborted
  let assertHeld = 'ok'
  try {
    lock.assertHeld()
  } catch (error) {
    assertHeld = error.name
  }
  return { aborted, assertHeld, remainingMs: lock.remainingMs, at: now() }
}

function busyLoop(ms) {
  const end = now() + BigInt(Math.round(ms * 1e6))
  while (now() < end);
}

const methods = {
  async lock(key, options) {
    const askedAt = now()
    const lock = await manager.lock(key, options)
    return keep(lock, 0, askedAt, now())
  },

  async tryLock(key, options) {
    const askedAt = now()
    const lock = await manager.tryLock(key, options)
    return lock && keep(lock, 0, askedAt, now())
  },

  async release(id) {
    return (await letGo(id, 0)).result
  },

  async releaseInTheEnd(id) {
    return (await letGo(id, 0, releaseInTheEnd)).result
  },

  async hold(key, options, ms) {
    const held = await methods.lock(key, options)
    await sleep(ms)
    await letGo(held.id, 0)
    holds.delete(held.id)
    return held
  },

  async convoy(key, waiters, rounds, holdMs, options) {
    const log = []
    const one = async (waiter) => {
      for (let round = 0; round < rounds; round++) {
        const askedAt = now()
        const lock = await manager.lock(key, options)
        const grantedAt = now()
        const { id } = keep(lock, waiter, askedAt, grantedAt)
        if (holdMs > 0) await sleep(holdMs)
        const { releasedAt } = await letGo(id, waiter, releaseInTheEnd)
        holds.delete(id)
        log.push([waiter, askedAt, grantedAt, releasedAt, lock.fence])
      }
    }
    await Promise.all(Array.from({ length: waiters }, (_, waiter) => one(waiter)))
    return log
  },

  async lists(keys, rounds, options) {
    for (let round = 0; round < rounds; round++) {
      const some = keys.filter(() => Math.random() < 0.5).sort(() => Math.random() - 0.5)
      const one = async (key) => {
        const askedAt = now()
        const lock = await manager.tryLock(key, { ...options, waitMs: round % 5 === 0 ? 1_000 : 0 })
        return lock && keep(lock, 0, askedAt, now())
      }
      const held = (await Promise.all(some.map(one))).filter((lock) => lock !== null)
      await sleep(Math.random() * 5)
      await Promise.all(held.map(({ id }) => letGo(id, 0)))
      for (const { id } of held) holds.delete(id)
    }
  },

  async contend(key, waiters, holdMs, options) {
    isContending = true
    const one = async (waiter) => {
      while (isContending) {
        const askedAt = now()
        const lock = await inTheEnd(() => manager.lock(key, options))
        const { id } = keep(lock, waiter, askedAt, now())
        await sleep(holdMs)
        await letGo(id, waiter, releaseInTheEnd)
        holds.delete(id)
      }
    }
    await Promise.all(Array.from({ length: waiters }, (_, waiter) => one(waiter)))
  },

  endContention() {
    isContending = false
  },

  probe(id) {
    return look(handle(id))
  },

  block(ms) {
    busyLoop(ms)
  },

  blockThenProbe(id, ms) {
    const hold = handle(id)
    busyLoop(ms)
    return look(hold)
  },

  /** For leak tests: what keeps this process busy, and how much memory it has after a collection (with --expose-gc). */
  resources() {
    globalThis.gc?.()
    return { active: process.getActiveResourcesInfo(), heapUsed: process.memoryUsage().heapUsed }
  },

  async close() {
    await manager.close()
    leaving = true
  },
}

let leaving = false
let isContending = false

async function answer({ call, method, args }) {
  try {
    send({ call, result: await methods[method](...args) })
  } catch (error) {
    send({ call, error: { name: error?.name, message: error?.message, code: error?.code, stack: error?.stack } })
  }
  // The parent cannot do it: a parent that disconnects never gets the child's 'close' event (Node 20).
  if (leaving && process.connected) process.disconnect()
}

process.on('message', (message) => void answer(message))

process.on('disconnect', () => {
  // After `close` nothing must be left that keeps this process alive, and the parent watches whether that is so.
  // Otherwise the parent is gone.
  if (!leaving) process.exit(0)
})

send({ ready: true })
