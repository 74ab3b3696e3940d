/** A function that locks, called from one that holds the same key already. */
import { connect } from 'holdfast'

const locks = await connect(process.env.HOLDFAST_URL ?? 'memory:')

async function charge(amount) {
  return locks.withLock('account:7', { reentrant: true }, ({ fence }) => {
    console.log(`charged ${amount}`)
    return fence
  })
}

await locks.withLock('account:7', async ({ fence }) => {
  await charge(5)
  console.log(`the same hold, the same fence: ${(await charge(3)) === fence}`)

  // Without `reentrant` this would wait for itself for ever, so it is an error at once.
  await locks.lock('account:7').catch((error) => console.log(error.name))
  console.log('tryLock:', await locks.tryLock('account:7'))
})

await locks.close()
