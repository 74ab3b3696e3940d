import { setTimeout as sleep } from 'node:timers/promises'

const READY_MS = 30_000
const POLL_MS = 20

/**
 * Until servers have reached a state. To be unable to ask counts as not there yet: whoever changes a server's role has all its
 * connections cut, also the one over which a test asks.
 */
export async function until(what: string, reached: () => Promise<boolean>): Promise<void> {
  const giveUpAt = performance.now() + READY_MS
  for (let problem: unknown; ; ) {
    try {
      if (await reached()) return
      problem = undefined
    } catch (error) {
      problem = error
    }
    if (performance.now() > giveUpAt) throw new Error(`Waited ${READY_MS} ms in vain for ${what}`, { cause: problem })
    await sleep(POLL_MS)
  }
}
