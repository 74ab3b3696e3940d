/**
 * The child process of candidates.ts: campaigns until it leads, and then says so again and again, until it is killed or has lost.
 * Plain JavaScript on the built package, as worker.mjs is.
 */
import { setTimeout as sleep } from 'node:timers/promises'

const { url, prefix, library, name, ttlMs, everyMs } = JSON.parse(process.env.HOLDFAST_CANDIDATE)
const { connect, Election } = await import(library)
const locks = await connect(url, { prefix, ttlMs })

const tell = (event) => process.connected && process.send({ event: { pid: process.pid, at: process.hrtime.bigint(), ...event } })

process.on('disconnect', () => process.exit(0))
process.send({ ready: true })

for (;;) {
  try {
    const session = await locks.session({ ttlMs })
    const election = new Election(session, name)
    tell({ type: 'candidate' })
    await election.campaign(String(process.pid))
    const { rev, fence, signal } = election
    tell({ type: 'elected', rev, fence })
    for (;;) {
      // In one turn: whoever reads `aborted` knows it at that very moment.
      if (signal.aborted) break
      tell({ type: 'tick', rev, fence })
      await sleep(everyMs)
    }
    tell({ type: 'lost', rev, fence })
    await session.close()
  } catch (error) {
    // The store is away, or the session was: a candidate tries again.
    tell({ type: 'failed', error: String(error) })
    await sleep(50)
  }
}
