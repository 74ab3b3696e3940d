/**
 * A mutex belongs to a session, not to a call: it can be tried, waited for and asked about, and when the process is started anew it
 * goes on with what its session has.
 */
import { connect, Mutex } from 'holdfast'
import { memoryBackend } from 'holdfast/memory'

// Two managers are two processes, as far as the store can tell.
const store = process.env.HOLDFAST_URL ?? memoryBackend()
const [here, there] = [await connect(store, { owner: 'here' }), await connect(store, { owner: 'there' })]

const session = await here.session({ ttlMs: 10_000 })
const ours = new Mutex(session, 'example/stock')
const theirs = new Mutex(await there.session(), 'example/stock')

await ours.lock()
console.log(`here: has it, and the store says so, too: ${await ours.isOwner().check()}`)
await theirs.tryLock().catch((error) => console.log(`there: ${error.name}`))

const waiting = theirs.lock()
const { fence } = ours
await ours.unlock()
await waiting
console.log(`there: has it, with a higher fence: ${theirs.fence > fence}`)
await ours.unlock().catch((error) => console.log(`here: ${error.name}`))
await theirs.unlock()

// A process ends without letting go. Its successor has been told the lease, and finds what the session holds.
await ours.lock()
const { lease } = session
const { rev } = ours
await session.orphan()
console.log(`here: ${ours.signal.reason.name}`)

const again = new Mutex(await there.session({ lease }), 'example/stock')
await again.lock()
console.log(`there: has taken up the session, and what it had: ${again.rev === rev}`)

await again.session.close()
await here.close()
await there.close()
