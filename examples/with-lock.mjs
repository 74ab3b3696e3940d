/** Ten callers read a number, think, and write it back plus one: alone they overwrite each other, under a lock they do not. */
import { setTimeout as sleep } from 'node:timers/promises'
import { connect } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')
let counter

async function increment() {
  const read = counter
  await sleep(5)
  counter = read + 1
}

counter = 0
await Promise.all(Array.from({ length: 10 }, increment))
console.log(`without a lock: ${counter}`)

counter = 0
await Promise.all(Array.from({ length: 10 }, () => locks.withLock('counter', increment)))
console.log(`with a lock: ${counter}`)

await locks.close()
