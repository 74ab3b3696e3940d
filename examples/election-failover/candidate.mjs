/** One of the processes of election-failover.mjs: a candidate, until it is told to stop. */
import { once } from 'node:events'
import { connect } from 'holdfast'

const [name, url, topic, ttlMs] = process.argv.slice(2)
const stop = new AbortController()
const locks = await connect(url, { owner: name })

process.on('message', (message) => message === 'stop' && stop.abort())
process.on('disconnect', () => process.exit())

try {
  await locks.election(topic, { ttlMs: Number(ttlMs) }).onElected(lead, { value: name, signal: stop.signal })
} catch (error) {
  if (!stop.signal.aborted) throw error
}
await locks.close()
process.disconnect()

/** To return is to resign. */
async function lead({ signal, fence }) {
  process.send({ what: 'leads', fence })
  try {
    // Work that listens to the signal ends when leadership does.
    while ((await once(process, 'message', { signal }))[0] !== 'resign');
  } catch {
    if (!stop.signal.aborted) process.send({ what: 'has lost', fence })
    // To throw the signal's reason is to be a candidate again.
    signal.throwIfAborted()
  }
}
