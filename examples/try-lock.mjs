/** Does something only if nobody else is at it: `tryLock` gives the lock, or null. */
import { connect } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')

async function sendNewsletter(name) {
  const lock = await locks.tryLock('newsletter')
  if (!lock) return console.log(`${name}: somebody else is at it`)
  try {
    console.log(`${name}: sending`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  } finally {
    await lock.release()
  }
}

await Promise.all([sendNewsletter('first'), sendNewsletter('second')])
await sendNewsletter('third')

// With waitMs it waits, but not for longer than that.
const held = await locks.lock('newsletter')
console.log('waited in vain:', await locks.tryLock('newsletter', { waitMs: 100 }))
await held.release()

await locks.close()
