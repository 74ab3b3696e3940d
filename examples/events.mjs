/** Everything that happens is an event on node:diagnostics_channel; a logger gets a line for what matters most. */
import { subscribe } from 'node:diagnostics_channel'
import { connect } from 'holdfast'

for (const name of ['waiting', 'acquired', 'refused', 'released', 'lost']) {
  subscribe(`holdfast:${name}`, (event) => console.log(`event ${name}: ${event.key} on ${event.backend}`))
}

const logger = {
  info: (message, fields) => console.log(`info  ${message}: ${fields.key}`),
  warn: (message, fields) => console.log(`warn  ${message}: ${fields.key}`),
  error: (message, fields) => console.log(`error ${message}: ${fields.key}, ${fields.reason}`),
}
const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:', { logger })

await locks.withLock('a', () => {})

const queued = new Promise((resolve) => subscribe('holdfast:waiting', resolve))
const first = await locks.lock('b')
const second = locks.lock('b')
await queued
console.log('tryLock:', await locks.tryLock('b'))
await first.release()
await (await second).release()

await locks.lock('c', { ttlMs: 100, autoRenew: false })
await new Promise((resolve) => setTimeout(resolve, 150))

await locks.close()
