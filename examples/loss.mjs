/** A lock ends before the work does. `signal` says so in time to stop; whoever does not listen is caught by the fence. */
import { setTimeout as sleep } from 'node:timers/promises'
import { connect } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')

/** The data remembers the highest fence that it has seen. In SQL: UPDATE … SET fence = $1 WHERE id = $2 AND fence <= $1 */
const report = { text: 'empty', fence: 0n }
function write(text, fence) {
  if (fence < report.fence) return console.log(`${text}: refused, its fence is too low`)
  Object.assign(report, { text, fence })
  console.log(`${text}: written`)
}

// Without renewal the lock ends with its TTL.
const slow = await locks.lock('report', { ttlMs: 300, autoRenew: false })

// Work that listens stops by itself: most functions that wait take a signal.
await sleep(10_000, undefined, { signal: slow.signal }).catch(() => console.log(`slow: stopped, ${slow.signal.reason.code}`))

const quick = await locks.lock('report')
write('quick', quick.fence)

// Work that does not listen goes on, and comes too late.
write('slow', slow.fence)
console.log(`the report is from: ${report.text}`)
console.log(`released: slow ${await slow.release()}, quick ${await quick.release()}`)

await locks.close()
