/** Twenty transfers at once between five accounts, as transactions: no lock, no money made or lost, and none below zero. */
import { connect, jsonKey } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')
const accounts = Array.from({ length: 5 }, (_, i) => jsonKey(`example/account/${i}`))
const keys = accounts.map(({ key }) => key)

await locks.stm((tx) => accounts.forEach((account) => account.put(tx, { cents: 100 })))

/** It may be applied more than once, so it does nothing but read and write. */
async function transfer(tx, from, to, cents) {
  const [giver, taker] = [await from.get(tx), await to.get(tx)]
  if (giver.cents < cents) return false
  from.put(tx, { cents: giver.cents - cents })
  to.put(tx, { cents: taker.cents + cents })
  return true
}

let tries = 0
const transfers = Array.from({ length: 20 }, (_, i) => {
  const [from, to] = [accounts[i % 5], accounts[(i + 1 + (i % 4)) % 5]]
  return locks.stm((tx) => transfer(tx, from, to, 40), { prefetch: [from.key, to.key], onCommit: (commit) => (tries += commit.tries) })
})
await Promise.all(transfers)

const balances = await locks.stm((tx) => Promise.all(accounts.map((account) => account.get(tx))), { prefetch: keys })
console.log(`in all: ${balances.reduce((sum, { cents }) => sum + cents, 0)}`)
console.log(`below zero: ${balances.filter(({ cents }) => cents < 0).length}`)
console.log(`some had to be applied again: ${tries > 20}`)

await locks.stm((tx) => keys.forEach((key) => tx.del(key)))
await locks.close()
