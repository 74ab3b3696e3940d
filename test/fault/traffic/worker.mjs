/**
 * The child process of traffic.ts: asks for locks without end, does guarded work under them, and tells of every step.
 *
 * It is plain JavaScript and runs the built package, so that what it tests is what users get. A step is told before it is taken if it
 * is ours to take, and after if it is something that we were given.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import { observe, Tenant } from './sessions.mjs'
import { transact } from './transactions.mjs'

const setup = JSON.parse(process.env.HOLDFAST_FAULT_WORKER)
const { name, way, url, prefix, library, ttlMs, seed, keys, dealings, callers, managers: managerCount, thinkMs, workMs, options } = setup
const { connect, shared, Mutex, Election } = await import(library)

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
/** Of those who lead, how many say something more; and of those who have a mutex, how many commit something. */
const SPEAKS = 0.5
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
let end
const ended = new Promise((resolve) => (end = resolve))
let isClosing = false
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

const around = { random, between, tell, visit: gate, nameOf, ttlMs, prefix, Mutex, Election, isClosing: () => isClosing, pause: () => sleep(between(20, 60)) }

async function without(end, workload, key, manager, caller) {
  const tenant = new Tenant(manager, key, around)
  while (!end()) {
    await operate(workload, key, manager, tenant, caller)
    await sleep(between(0, 2 * thinkMs))
  }
}

/** What is held for long is for every second one only: else nobody would have it within the time that nobody may wait for more than. */
function callersOf(workload, which) {
  return workload === 'long' ? which % 2 : workload === 'reign' ? 1 : callers
}

/** And in the end each looks at what has come of it all. */
async function deal(dealing, manager) {
  if (dealing === 'owned') await ended
  while (!isEnding) {
    const error = await transact(manager, dealing, `${name}/${nextOp++}`, around)
    if (error?.transient) await around.pause()
    await sleep(between(0, 2 * thinkMs))
  }
  await transact(manager, dealing, `${name}/${nextOp++}`, around, { isLast: true })
}

function asks(workload, about, manager, tenant) {
  if (workload === 'mutex') return tenant.mutex(about)
  if (workload === 'election' || workload === 'reign') return tenant.election(about)
  return manager.lock(about.key, asking(workload))
}

async function operate(workload, key, manager, tenant, caller) {
  const op = `${name}/${nextOp++}`
  const about = { op, key }
  tell('asked', { ...about, workload, caller })
  let lock
  try {
    lock = await asks(workload, about, manager, tenant)
  } catch (error) {
    tell('refused', { ...about, error: nameOf(error) })
    // A store that is away is asked again a little later.
    if (error.transient) await around.pause()
    return
  }
  const { fence } = lock
  const at = now()
  // Looked at after the clock: if it is still held, then it was at that time.
  const late = lock.remainingMs === 0
  tell('granted', { ...about, fence, at, ...(late && { late }), ...lock.granted })
  if (lock.words?.first) tell('said', lock.words.first)
  const hold = { lock, about, isOver: false }
  lock.signal.addEventListener('abort', () => lost(hold, lock.signal.reason))
  await guarded(workload, hold, manager)
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

async function guarded(workload, hold, manager) {
  const { about, lock } = hold
  const { fence } = lock
  if (workload === 'reign') return reign(hold)
  if (workload !== 'fifo' && workload !== 'cancelled') {
    const { accepted, value } = await gate('read', { ...about, fence, workload })
    if (!accepted) return
    const endAt = performance.now() + between(0, workload === 'long' ? LONG_TTLS * ttlMs : workMs)
    for (let leftMs = endAt - performance.now(); leftMs > 0; leftMs = endAt - performance.now()) {
      await sleep(Math.min(leftMs, LOOK_EVERY_MS))
      confirm(hold)
    }
    await speak(hold)
    if (workload === 'mutex') await sign(hold, manager)
    confirm(hold)
    await gate('write', { ...about, fence, workload, base: value })
  } else {
    await sleep(between(0, workMs))
  }
  confirm(hold)
}

/** Until it is over: nobody resigns, unless all is about to end. */
async function reign(hold) {
  const { about, lock } = hold
  const { fence } = lock
  while (!isEnding && !hold.isOver) {
    const { accepted, value } = await gate('read', { ...about, fence, workload: 'reign' })
    if (!accepted) return
    await sleep(between(0, 2 * thinkMs))
    await speak(hold)
    confirm(hold)
    await gate('write', { ...about, fence, workload: 'reign', base: value })
  }
}

/** A leader that cannot say anything, since the store cannot be asked or it does not lead any more, goes on as if it had not tried. */
async function speak({ lock }) {
  if (lock.words && random() < SPEAKS) await lock.words.proclaim().catch(nameOf)
}

async function sign({ lock }, manager) {
  if (dealings.includes('owned') && random() < SPEAKS) await transact(manager, 'owned', `${name}/${nextOp++}`, around, { owner: lock })
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
  if (!wasOver && (await left(hold))) return
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

/** Some leave it to their session, which is orphaned. A handle that says after that that it holds has not been told. */
async function left(hold) {
  const { lock, about } = hold
  if (!lock.leave) return false
  // What its signal says from here on is no loss.
  hold.isOver = true
  const isLeft = await lock.leave(about)
  hold.isOver = isLeft
  const since = now()
  if (isLeft && lock.remainingMs > 0) tell('confirmed', { ...about, since })
  return isLeft
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

const isElection = ({ workload }) => workload === 'election' || workload === 'reign'

const methods = {
  /** Resolves when all callers have come to their end. */
  async run() {
    const all = keys.flatMap(({ key, workload }, k) =>
      managers.flatMap((manager, m) =>
        Array.from({ length: callersOf(workload, way + m + k) }, (_, i) => without(() => isEnding, workload, key, manager, `${m}.${i}`)),
      ),
    )
    const hasSessions = managers[0].session !== undefined
    if (hasSessions) managers.forEach((manager, m) => keys.filter(isElection).forEach(({ key }) => void observe(manager, key, `${name}/${m}`, around)))
    const dealing = hasSessions ? managers.flatMap((manager) => dealings.map((one) => deal(one, manager))) : []
    await Promise.all([...all, ...dealing])
  },

  end() {
    isEnding = true
    end()
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
    isClosing = true
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
