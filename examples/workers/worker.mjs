/** One of the processes of workers.mjs: sells one piece after the other, each under the lock of the till. */
import { setTimeout as sleep } from 'node:timers/promises'
import { connect } from 'holdfast'

const [owner, url, prefix, ttlMs] = process.argv.slice(2)
const stop = new AbortController()
/** What was asked of the inventory, and is not answered yet. */
const asked = []
const locks = await connect(url, { owner, prefix, ttlMs: Number(ttlMs) })

const tell = (what, fields) => process.connected && process.send({ what, ...fields })
const ask = (what, fields) => new Promise((resolve) => void (asked.push(resolve), tell(what, fields)))
const pause = (ms) => sleep(ms, undefined, { signal: stop.signal }).catch(() => {})
/** Until when it may believe that it holds, on the clock of the machine. */
const until = (lock) => process.hrtime.bigint() + BigInt(Math.round(lock.remainingMs * 1e6))

process.on('message', (message) => (message === 'stop' ? stop.abort() : asked.shift()?.(message)))
process.on('disconnect', () => process.exit())
// From the terminal it comes to everybody; it is for the demo to say when this one ends.
process.on('SIGINT', () => {})

while (!stop.signal.aborted) {
  await pause(200 + Math.random() * 900)
  tell('waits')
  await locks.withLock('till', { signal: stop.signal }, sell).catch((error) => {
    if (error !== stop.signal.reason && error.code !== 'OWNERSHIP_LOST') throw error
  })
  tell('rests')
}
await locks.close()
process.disconnect()

async function sell(lock) {
  tell('sells', { fence: lock.fence, until: until(lock) })
  const renewals = setInterval(() => tell('still sells', { until: until(lock) }), 50)
  const stock = await ask('read', { fence: lock.fence })
  await pause(150 + Math.random() * 450)
  // Whoever looks stops here. This one writes all the same, as one would that was stopped a line further on.
  if (lock.signal.aborted && !stop.signal.aborted) tell('lost', { code: lock.signal.reason.code })
  await ask('write', { fence: lock.fence, stock: stock - 1 })
  clearInterval(renewals)
  tell('lets go')
}
