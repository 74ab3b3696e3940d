/**
 * The child process of traffic.ts: asks for locks without end, does guarded work under them, and tells of every step.
 *
 * It is plain JavaScript and runs the built package, so that what it tests is what users get. A step is told before it is taken if it
 * is ours to take, and after if it is something that we were given.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'

const setup = JSON.parse(process.env.HOLDFAST_FAULT_WORKER)
const { name, way, url, prefix, library, ttlMs, seed, keys, callers, managers: managerCount, thinkMs, workMs, options } = setup
const { connect, shared } = await import(library)

/** Several managers of one process stand for several processes where the store is in memory. */
const store = managerCount > 1 && shared ? await shared() : url
/** Of one that is replaced while the network is broken, too. */
const CONNECT_MS = 20_000
const managers = []
for (let i = 0; i < managerCount; i++) managers.push(await connect(store, { prefix, connectTimeoutMs: CONNECT_MS, ...options }))

/** How often one that works long looks whether it may go on. */
const LOOK_EVERY_MS = 100
/** How long it works at most, and so has to be renewed. */
const LONG_TTLS = 2.4
const TICK_MS = 50
const STALL_MS = 250

const now = () => process.hrtime.bigint()
const random = mulberry32(seed)
const between = (least, most) => least + random() * (most - least)

/** Of what is under way at the gate: the answer goes to whoever asked. */
const atTheGate = new Map()
let nextOp = 0
let nextVisit = 0
let isEnding = false
let isLeaving = false

function send(message) {
  if (process.connected) process.send(message)
}

function tell(type, fields) {
  send({ event: { type, at: now(), worker: name, ...fields } })
}

/** The gate is in the parent, and keeps the registers. */
function gate(what, fields) {
  return new Promise((resolve) => {
    const visit = nextVisit++
    atTheGate.set(visit, resolve)
    send({ event: { type: 'visit', what, visit, ...fields } })
  })
}

async function without(end, workload, key, manager, caller) {
  while (!end()) {
    await operate(workload, key, manager, caller)
    await sleep(between(0, 2 * thinkMs))
  }
}

/** What is held for long is for every second one only: else nobody would have it within the time that nobody may wait for more than. */
function callersOf(workload, which) {
  return workload === 'long' ? which % 2 : callers
}

async function operate(workload, key, manager, caller) {
  const op = `${name}/${nextOp++}`
  const about = { op, key }
  tell('asked', { ...about, workload, caller })
  let lock
  try {
    lock = await manager.lock(key, asking(workload))
  } catch (error) {
    tell('refused', { ...about, error: nameOf(error) })
    // A store that is away is asked again a little later.
    if (error.transient) await sleep(between(20, 60))
    return
  }
  const { fence } = lock
  const at = now()
  // Looked at after the clock: if it is still held, then it was at that time.
  const late = lock.remainingMs === 0
  tell('granted', { ...about, fence, at, ...(late && { late }) })
  const hold = { lock, about, isOver: false }
  lock.signal.addEventListener('abort', () => lost(hold, lock.signal.reason))
  await guarded(workload, hold)
  await release(hold)
}

function asking(workload) {
  const common = { ttlMs, fairness: workload === 'fifo' ? 'strict' : 'bounded' }
  if (workload !== 'cancelled') return common
  const how = random()
  // Of those who leave some give up by themselves, and some are told to.
  if (how < 0.35) return { ...common, waitMs: Math.round(between(1, 30)) }
  if (how < 0.7) return { ...common, signal: AbortSignal.timeout(Math.round(between(0, 30))) }
  return common
}

async function guarded(workload, hold) {
  const { about, lock } = hold
  const { fence } = lock
  if (workload === 'fenced' || workload === 'unfenced' || workload === 'long') {
    const { accepted, value } = await gate('read', { ...about, fence, workload })
    if (!accepted) return
    const endAt = performance.now() + between(0, workload === 'long' ? LONG_TTLS * ttlMs : workMs)
    for (let leftMs = endAt - performance.now(); leftMs > 0; leftMs = endAt - performance.now()) {
      await sleep(Math.min(leftMs, LOOK_EVERY_MS))
      confirm(hold)
    }
    confirm(hold)
    await gate('write', { ...about, fence, workload, base: value })
  } else {
    await sleep(between(0, workMs))
  }
  confirm(hold)
}

/** What the handle says of itself, in the very moment. */
function confirm(hold) {
  if (hold.isOver) return
  const since = now()
  try {
    hold.lock.assertHeld()
  } catch (error) {
    return lost(hold, error)
  }
  tell('confirmed', { ...hold.about, since })
}

function lost(hold, error) {
  if (hold.isOver) return
  hold.isOver = true
  tell('lost', { ...hold.about, error: nameOf(error) })
}

async function release(hold) {
  const wasOver = hold.isOver
  // A signal that aborts from here on is no loss.
  hold.isOver = true
  if (!wasOver) tell('releasing', hold.about)
  let ours
  try {
    ours = await hold.lock.release()
  } catch (error) {
    ours = nameOf(error)
  }
  if (!wasOver) tell('released', { ...hold.about, ours })
}

/** Programs print the errors that they get: what would be printed then must not have the password in it, either. */
const password = /:\/\/[^/@]*:([^/@]+)@/.exec(url)?.[1]

function nameOf(error) {
  const text = inspect(error, { depth: 6 })
  if (password !== undefined && text.includes(password)) console.error(text)
  return error?.name ?? String(error)
}

/** So that nobody is blamed for a machine that had something else to do. */
let tickedAt = now()
setInterval(() => {
  const since = tickedAt
  tickedAt = now()
  if (tickedAt - since > BigInt(STALL_MS * 1e6)) tell('stalled', { since })
}, TICK_MS).unref()

const methods = {
  /** Resolves when all callers have come to their end. */
  async run() {
    const all = keys.flatMap(({ key, workload }, k) =>
      managers.flatMap((manager, m) =>
        Array.from({ length: callersOf(workload, way + m + k) }, (_, i) => without(() => isEnding, workload, key, manager, `${m}.${i}`)),
      ),
    )
    await Promise.all(all)
  },

  end() {
    isEnding = true
  },

  gate(visit, answer) {
    atTheGate.get(visit)(answer)
    atTheGate.delete(visit)
  },

  /** Keeps the event loop busy. */
  block(ms) {
    const end = now() + BigInt(Math.round(ms * 1e6))
    while (now() < end);
  },

  async close() {
    for (const manager of managers) await manager.close()
    isLeaving = true
  },
}

async function answer({ call, method, args }) {
  try {
    send({ call, result: await methods[method](...args) })
  } catch (error) {
    send({ call, error: { name: error?.name, message: error?.message, code: error?.code, stack: error?.stack } })
  }
  // The parent cannot do it: a parent that disconnects never gets the child's 'close' event (Node 20).
  if (isLeaving && process.connected) process.disconnect()
}

process.on('message', (message) => void answer(message))

process.on('disconnect', () => {
  // After `close` nothing must be left that keeps this process alive, and the parent watches whether that is so.
  if (!isLeaving) process.exit(0)
})

function mulberry32(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}

send({ ready: true })
