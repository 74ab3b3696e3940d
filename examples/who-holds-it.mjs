/** A refusal says who is in the way; `inspect` shows everybody; `forceRelease` takes a lock away. */
import { subscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect } from 'holdfast'
import { memoryBackend } from 'holdfast/memory'

const store = process.env.HOLDFAST_URL ?? memoryBackend()
const ada = await connect(store, { owner: 'ada' })
const ben = await connect(store, { owner: 'ben', ttlMs: 2_000 })

const lock = await ada.lock('deploy', { type: 'release', metadata: { version: '1.2.3' }, ttlMs: 1_000 })
await ben.lock('deploy', { waitMs: 0 }).catch((error) => console.log(error.message))

const queued = new Promise((resolve) => subscribe('holdfast:waiting', resolve))
const waiting = ben.lock('deploy')
await queued

for await (const { key, holders, waiters } of ada.inspect('dep')) {
  const [holder] = holders
  console.log(`${key} is held by ${holder.owner} for ${holder.type} ${holder.metadata.version}`)
  console.log(`it is waited for by ${waiters.map(({ owner }) => owner)}`)
}

// Ada is told to let go, and Ben is next.
const lost = once(lock.signal, 'abort')
console.log(`was held: ${await ben.forceRelease('deploy')}`)
await lost
console.log(`ada: ${lock.signal.reason.message}`)
await (await waiting).release()
console.log('ben has had it')

await Promise.all([ada.close(), ben.close()])
