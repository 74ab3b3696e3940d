/**
 * Several processes, of which one leads. The first leader is killed, the next resigns, the third is stopped for longer than it can
 * lead. Each time another takes over; and what the third writes when it goes on is refused.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { connect } from 'holdfast'

const TTL_MS = 1_000
const SCRIPT = fileURLToPath(new URL('./election-failover/candidate.mjs', import.meta.url))

// Processes need something that they share: a file, unless told otherwise.
const folder = mkdtempSync(join(tmpdir(), 'holdfast-'))
const url = process.env.HOLDFAST_URL ?? `sqlite:${join(folder, 'locks.db')}`
const topic = `example-${process.pid}`
const locks = await connect(url)

/** What the leader works on. It keeps the highest fence that it has seen, and refuses whoever comes with a lower one. */
let highest = 0n
function write(fence) {
  if (fence < highest) return 'refused'
  highest = fence
  return 'accepted'
}

const candidates = []
/** Who was told of last: what came when nobody waited for it yet is kept. */
const news = []
let tell = () => {}

function start(name) {
  const child = fork(SCRIPT, [name, url, topic, String(TTL_MS)], { serialization: 'advanced' })
  child.on('message', (message) => {
    news.push({ name, child, ...message })
    tell()
  })
  candidates.push(child)
}

async function next(what) {
  for (;;) {
    const found = news.findIndex((message) => message.what === what)
    if (found >= 0) return news.splice(found, 1)[0]
    await new Promise((resolve) => (tell = resolve))
  }
}

async function nextLeader(since) {
  const leader = await next('leads')
  const when = since === undefined ? '' : `, ${Math.round(performance.now() - since)} ms later`
  console.log(`${leader.name} leads${when}: her write is ${write(leader.fence)}`)
  return leader
}

// Whoever observes sees every leader, in order.
const stop = new AbortController()
const seen = []
const observing = (async () => {
  for await (const { value } of locks.election(topic).observe({ signal: stop.signal })) seen.push(value)
})()

for (const name of ['Ada', 'Bea', 'Cleo']) start(name)
const first = await nextLeader()

first.child.kill('SIGKILL')
console.log(`${first.name} is killed`)
const second = await nextLeader(performance.now())

second.child.send('resign')
console.log(`${second.name} resigns`)
const third = await nextLeader(performance.now())

start('Dora')
// Windows cannot stop a process: there, she goes.
third.child.kill('SIGSTOP')
console.log(`${third.name} is stopped`)
await nextLeader(performance.now())

if (process.platform !== 'win32') {
  third.child.kill('SIGCONT')
  const late = await next('has lost')
  console.log(`${third.name} goes on, and her signal has aborted: her late write is ${write(late.fence)}`)
}

const expected = [first, second, third].map(({ name }) => name).concat('Dora')
for (let waits = 0; seen.length < expected.length && waits < 100; waits++) await sleep(50)
stop.abort()
await observing
console.log(`as observed: ${seen.join(', ')}; in order: ${seen.join() === expected.join()}`)

for (const child of candidates) if (child.connected) child.send('stop')
await Promise.all(candidates.filter(({ exitCode, signalCode }) => exitCode === null && signalCode === null).map((child) => once(child, 'exit')))
await locks.close()
rmSync(folder, { recursive: true, force: true })
