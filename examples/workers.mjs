/**
 * What `npm start` shows: five workers take turns at one till and count the stock down. Each has a manager of its own, all on
 * one store in memory. Now and then Eve freezes in the middle of a sale, for longer than her lock lives: the lock moves on,
 * her signal aborts, and when she wakes up and writes all the same, the inventory refuses her fence.
 *
 *   npm start -- --seconds 30
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { createLocks } from 'holdfast'
import { memoryBackend } from 'holdfast/memory'

const STOCK = 100
const TTL_MS = 1_200
const FREEZE_MS = 2_400
const FRAME_MS = 80

const { values } = parseArgs({ options: { seconds: { type: 'string', default: '12' } } })
const seconds = Number(values.seconds)
if (!(seconds > 0)) throw new Error(`--seconds takes a number above 0, not ${values.seconds}`)

/** Fences are long; their last digits tell them apart here. */
const short = (fence) => `…${String(fence / 1024n).slice(-4)}`

/** What the lock guards. It keeps the highest fence it has seen, in reads too, and refuses whoever comes with a lower one. */
class Inventory {
  stock = STOCK
  fence = 0n
  refused = 0

  read(fence) {
    if (fence < this.fence) return undefined
    this.fence = fence
    return this.stock
  }

  write(fence, stock) {
    const fresh = this.read(fence) !== undefined
    if (fresh) this.stock = stock
    else this.refused++
    return fresh
  }
}

const store = memoryBackend()
const inventory = new Inventory()
const stop = new AbortController()
const startedAt = performance.now()
const news = []
let handOvers = 0
let sold = 0
let mostAtOnce = 0

class Worker {
  state = 'resting'
  lock
  turns = 0

  constructor(name, freezesEvery = Infinity) {
    this.name = name
    this.freezesEvery = freezesEvery
    this.locks = createLocks(store, { owner: name, ttlMs: TTL_MS })
  }

  async run() {
    while (!stop.signal.aborted) {
      await pause(200 + Math.random() * 900)
      const freezes = ++this.turns % this.freezesEvery === 0
      this.state = 'waiting'
      try {
        await this.locks.withLock('till', { autoRenew: !freezes, signal: stop.signal }, (lock) => this.sell(lock, freezes))
      } catch (error) {
        if (error !== stop.signal.reason) throw error
      }
      this.state = 'resting'
      this.lock = undefined
    }
  }

  async sell(lock, freezes) {
    this.lock = lock
    this.state = freezes ? 'frozen' : 'selling'
    handOvers++
    countHolders()
    if (freezes) {
      tell(`${this.name} freezes in the middle of a sale, with fence ${short(lock.fence)}`)
      lock.signal.addEventListener('abort', () => {
        if (!stop.signal.aborted) tell(`the lock moves on, and ${this.name}'s signal aborts: ${lock.signal.reason.code}`)
      })
    }
    const stock = inventory.read(lock.fence)
    await pause(freezes ? FREEZE_MS : 150 + Math.random() * 450)
    if (inventory.write(lock.fence, stock - 1)) sold++
    else tell(`${this.name} wakes up and writes with fence ${short(lock.fence)}: refused, the inventory has seen ${short(inventory.fence)}`)
    if (inventory.stock === 0) stop.abort()
  }
}

const workers = [new Worker('Ada'), new Worker('Ben'), new Worker('Cleo'), new Worker('Dan'), new Worker('Eve', 2)]

/** Whoever still believes that it holds; that must never be two. */
function countHolders() {
  const holders = workers.filter(({ lock }) => lock && lock.remainingMs > 0)
  mostAtOnce = Math.max(mostAtOnce, holders.length)
}

/** Ends early when the demo does. */
async function pause(ms) {
  await sleep(ms, undefined, { signal: stop.signal }).catch(() => {})
}

function tell(what) {
  const line = `${elapsed()}  ${what}`
  news.push(line)
  if (!live) console.log(line)
}

function elapsed() {
  return `${((performance.now() - startedAt) / 1_000).toFixed(1).padStart(4)} s`
}

// The picture. On a terminal it is drawn over itself; elsewhere only the news are printed, and the summary.

const live = process.stdout.isTTY === true
const paint = (code) => (text) => (live && !process.env.NO_COLOR ? `\x1b[${code}m${text}\x1b[0m` : text)
const [bold, dim, red, green, yellow] = [1, 2, 31, 32, 33].map(paint)

function bar(part, width, tint) {
  const full = Math.round(Math.min(1, Math.max(0, part)) * width)
  return tint('█'.repeat(full)) + dim('░'.repeat(width - full))
}

function row({ name, state, lock, locks }, waiters) {
  const left = lock?.remainingMs ?? 0
  const place = waiters.findIndex(({ owner }) => owner === locks.owner) + 1
  const ttl = `${bar(left / TTL_MS, 20, left > TTL_MS / 3 ? green : yellow)} ${(left / 1_000).toFixed(1)} s`
  const label = bold(name.padEnd(6))
  switch (state) {
    case 'selling':
      return `${green('●')} ${label}${green(`selling, fence ${short(lock.fence)}`.padEnd(24))}${ttl}`
    case 'frozen':
      return left > 0
        ? `${yellow('●')} ${label}${yellow(`frozen, fence ${short(lock.fence)}`.padEnd(24))}${ttl}`
        : `${red('✗')} ${label}${red(`frozen, fence ${short(lock.fence)}`.padEnd(24))}${red('lost, and does not know it yet')}`
    case 'waiting':
      return `${dim('○')} ${label}waiting${place > 0 ? `, place ${place}` : ''}`
    default:
      return dim(`· ${name.padEnd(6)}resting`)
  }
}

async function picture() {
  let waiters = []
  for await (const till of workers[0].locks.inspect('till')) waiters = till.waiters
  return [
    `${bold('holdfast')}  five workers, one till${elapsed().padStart(31)}`,
    '',
    ...workers.map((worker) => row(worker, waiters)),
    '',
    `stock ${bar(inventory.stock / STOCK, 40, (text) => text)} ${inventory.stock} of ${STOCK}`,
    `hand-overs ${bold(handOvers)}   sold ${bold(sold)}   stale writes refused ${bold(inventory.refused)}   most at once ${bold(mostAtOnce)}`,
    '',
    ...Array.from({ length: 6 }, (_, i) => dim(news.slice(-6)[i] ?? '')),
  ]
}

let drawn = 0
async function draw() {
  countHolders()
  if (!live) return
  const lines = await picture()
  // Lines that are too long are cut by the terminal, so that going up by their number comes out right.
  process.stdout.write(`\r\x1b[?25l\x1b[?7l${drawn ? `\x1b[${drawn}A` : ''}${lines.map((line) => `${line}\x1b[K\n`).join('')}\x1b[?7h\x1b[?25h`)
  drawn = lines.length
}

// Ctrl-C comes twice: from the terminal, and from the script that started this.
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => {
    process.exitCode = 130
    stop.abort()
  })
}
const end = setTimeout(() => stop.abort(), seconds * 1_000)

const done = Promise.all(workers.map((worker) => worker.run()))
while (!stop.signal.aborted) {
  await draw()
  await pause(FRAME_MS)
}
clearTimeout(end)
await done
await draw()
await Promise.all(workers.map(({ locks }) => locks.close()))

const exact = STOCK - inventory.stock === sold && mostAtOnce <= 1
console.log(
  `${exact ? green('✓') : red('✗')} sold ${exact ? 'exactly ' : ''}${sold}, stale writes refused: ${inventory.refused}, ` +
    (mostAtOnce <= 1 ? 'never two at once' : `${mostAtOnce} at once`),
)
if (!exact) process.exitCode = 1
