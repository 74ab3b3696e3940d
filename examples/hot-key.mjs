/**
 * One key that everybody wants: the callers of this process are served one after the other in memory, with almost no
 * request to the store, and in the order in which they came.
 */
import { connect } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')

let balance = 0
const fences = []

/** Reads, thinks, writes: without the lock, updates would get lost. */
async function deposit(amount) {
  await locks.withLock('account:7', async ({ fence }) => {
    fences.push(fence)
    const read = balance
    await Promise.resolve()
    balance = read + amount
  })
}

const startedAt = performance.now()
await Promise.all(Array.from({ length: 10_000 }, () => deposit(1)))
const ms = performance.now() - startedAt

console.log(`balance: ${balance}`)
console.log(`fences only grow: ${fences.every((fence, i) => i === 0 || fence > fences[i - 1])}`)
console.log(`10,000 holders in ${Math.round(ms)} ms`)
await locks.close()
