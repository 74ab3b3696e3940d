/**
 * What `npm start` shows: five processes take turns at one till and count the stock down. No server runs: their locks are in the file
 * that `connect()` uses where nobody says otherwise (HOLDFAST_URL does). Now and then
 *
 * - Dan is killed in the middle of a sale: the lock moves on within its TTL, and another process takes his place;
 * - Eve is stopped in the middle of a sale, for longer than her lock lives: the lock moves on, and when she goes on and writes all the
 *   same, her signal has aborted and the inventory refuses her fence.
 *
 *   npm start -- --seconds 30
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { connect } from 'holdfast'

const STOCK = 100
const TTL_MS = 1_200
const FREEZE_MS = 2_400
const AWAY_MS = 1_500
/** Between what happens to Dan and what happens to Eve. */
const CALM_MS = 1_500
const FRAME_MS = 80
const GOODBYE_MS = 2_000
/** Nobody else's till. */
const PREFIX = `workers-${process.pid}`
const SCRIPT = fileURLToPath(new URL('./workers/worker.mjs', import.meta.url))

const { values } = parseArgs({ options: { seconds: { type: 'string', default: '15' } } })
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

/** The file that is there for all processes of this user, unless told otherwise. */
const url = process.env.HOLDFAST_URL ?? 'sqlite:'
const inventory = new Inventory()
const stop = new AbortController()
const startedAt = performance.now()
const news = []
let handOvers = 0
let sold = 0
let mostAtOnce = 0
let calmUntil = performance.now() + CALM_MS
/** Who held when something happened to it: the next holder is news. */
let missing

class Worker {
  state = 'resting'
  fence
  until = 0n

  constructor(name, fate) {
    this.name = name
    this.fate = fate
    this.start()
  }

  start() {
    this.state = 'resting'
    this.child = fork(SCRIPT, [this.name, url, PREFIX, TTL_MS], { serialization: 'advanced' })
    this.child.on('message', (message) => this.heard(message))
  }

  /** By its own account, which ends before the lock can be another's. */
  get leftMs() {
    return Math.max(0, Number(this.until - process.hrtime.bigint()) / 1e6)
  }

  heard({ what, fence, until, stock, code }) {
    if (what === 'sells' || what === 'still sells') this.until = until
    if (what === 'sells') this.sells(fence)
    if (what === 'waits') this.state = 'waiting'
    if (what === 'rests') this.state = 'resting'
    if (what === 'lets go') this.until = 0n
    if (what === 'lost') tell(`${this.name} goes on, and the signal of the lock says that it is lost: ${code}`)
    if (what === 'read') this.child.send(inventory.read(fence) ?? inventory.stock)
    if (what === 'write') this.writes(fence, stock)
  }

  sells(fence) {
    this.state = 'selling'
    this.fence = fence
    handOvers++
    countHolders()
    if (missing) tell(`the lock moves on to ${this.name}, ${Math.round(performance.now() - missing.at)} ms later, with fence ${short(fence)}`)
    missing = undefined
    if (this.fate && performance.now() > calmUntil) void this.fate(this)
  }

  writes(fence, stock) {
    const fresh = inventory.write(fence, stock)
    if (fresh) sold++
    else tell(`${this.name} writes with fence ${short(fence)}: refused, the inventory has seen ${short(inventory.fence)}`)
    this.child.send(fresh)
    if (inventory.stock === 0) stop.abort()
  }
}

async function kill(worker) {
  if (!begins(worker)) return
  worker.child.kill('SIGKILL')
  worker.state = 'killed'
  tell(`${worker.name} is killed in the middle of a sale, with fence ${short(worker.fence)}`)
  await pause(AWAY_MS)
  calmUntil = performance.now() + CALM_MS
  if (!stop.signal.aborted) worker.start()
}

async function freeze(worker) {
  if (!begins(worker)) return
  worker.child.kill('SIGSTOP')
  worker.state = 'frozen'
  tell(`${worker.name} is stopped in the middle of a sale, with fence ${short(worker.fence)}`)
  await pause(FREEZE_MS)
  calmUntil = performance.now() + CALM_MS
  worker.child.kill('SIGCONT')
}

/** One thing at a time, and not the same one twice in a row. */
let last
function begins(worker) {
  if (stop.signal.aborted || last === worker || inventory.stock === 0) return false
  last = worker
  calmUntil = Infinity
  missing = { at: performance.now() }
  return true
}

const watcher = await connect(url, { prefix: PREFIX })
// Windows cannot stop a process.
const workers = [
  new Worker('Ada'), new Worker('Ben'), new Worker('Cleo'), new Worker('Dan', kill),
  new Worker('Eve', process.platform === 'win32' ? undefined : freeze),
]

/** Whoever still believes that it holds; that must never be two. */
function countHolders() {
  mostAtOnce = Math.max(mostAtOnce, workers.filter(({ leftMs }) => leftMs > 0).length)
}

async function ended(child) {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
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

function row({ name, state, fence, leftMs, child }, waiters) {
  const place = waiters.findIndex(({ owner }) => owner.startsWith(`${name}#`)) + 1
  const label = `${bold(name.padEnd(6))}${dim(`pid ${child.pid}`.padEnd(13))}`
  const ttl = `${bar(leftMs / TTL_MS, 20, leftMs > TTL_MS / 3 ? green : yellow)} ${(leftMs / 1_000).toFixed(1)} s`
  const trouble = (mark, what, outlook) =>
    leftMs > 0 ? `${yellow(mark)} ${label}${yellow(what.padEnd(24))}${ttl}` : `${red('✗')} ${label}${red(what.padEnd(24))}${red(outlook)}`
  switch (state) {
    case 'selling':
      return `${green('●')} ${label}${green(`selling, fence ${short(fence)}`.padEnd(24))}${ttl}`
    case 'frozen':
      return trouble('●', `stopped, fence ${short(fence)}`, 'lost, and does not know it yet')
    case 'killed':
      return trouble('✗', `killed, fence ${short(fence)}`, 'over')
    case 'waiting':
      return `${dim('○')} ${label}waiting${place > 0 ? `, place ${place}` : ''}`
    default:
      return `${dim('·')} ${label}${dim('resting')}`
  }
}

async function picture() {
  let waiters = []
  for await (const till of watcher.inspect('till')) waiters = till.waiters
  return [
    `${bold('holdfast')}  five processes, one till, a file${elapsed().padStart(34)}`,
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

while (!stop.signal.aborted) {
  await draw()
  await pause(FRAME_MS)
}
clearTimeout(end)
for (const { child } of workers) {
  child.kill('SIGCONT')
  if (child.connected) child.send('stop')
}
const goodbye = setTimeout(() => workers.forEach(({ child }) => child.kill('SIGKILL')), GOODBYE_MS)
await Promise.all(workers.map(({ child }) => ended(child)))
clearTimeout(goodbye)
await draw()
await watcher.close()

const exact = STOCK - inventory.stock === sold && mostAtOnce <= 1
console.log(
  `${exact ? green('✓') : red('✗')} sold ${exact ? 'exactly ' : ''}${sold}, stale writes refused: ${inventory.refused}, ` +
    (mostAtOnce <= 1 ? 'never two at once' : `${mostAtOnce} at once`),
)
if (!exact) process.exitCode = 1
