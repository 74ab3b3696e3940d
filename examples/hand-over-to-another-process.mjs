/** One process takes the lock and starts the work, another ends it. In between nobody else can get the lock. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'holdfast'
import { memoryBackend } from 'holdfast/memory'

// A store in memory cannot be seen by another process: there, two managers have to do.
const store = process.env.HOLDFAST_URL ?? memoryBackend()

async function takeUp(transfer) {
  const locks = await connect(store, { owner: 'taker' })
  const lock = await locks.adopt(transfer)
  console.log(`taker holds ${lock.key}, fence …${lock.fence % 1024n}`)
  console.log(`taker released it: ${await lock.release()}`)
  await locks.close()
}

async function give() {
  const locks = await connect(store, { owner: 'giver' })
  const lock = await locks.lock('upload:9')
  console.log(`giver holds ${lock.key}, fence …${lock.fence % 1024n}`)
  // Whoever has this string can take the lock up: keep it as secret as a password, and give it to one only.
  const transfer = lock.transfer()
  console.log(`giver released it: ${await lock.release()}`)
  if (typeof store !== 'string') await takeUp(transfer)
  else {
    const child = fork(import.meta.filename)
    child.send(transfer)
    await once(child, 'exit')
  }
  await locks.close()
}

if (process.send) process.once('message', (transfer) => void takeUp(transfer).then(() => process.disconnect()))
else await give()
