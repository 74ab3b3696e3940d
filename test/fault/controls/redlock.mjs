/** redlock with the surface that traffic/worker.mjs uses: `using` renews, and its signal is to tell of a loss. */
import { Redis } from 'ioredis'
import Redlock from 'redlock'

export function connect(url, { prefix }) {
  const client = new Redis(url)
  client.on('error', () => {})
  const redlock = new Redlock([client], { retryCount: -1, retryDelay: 5, retryJitter: 5 })
  redlock.on('error', () => {})

  function lock(key, { ttlMs }) {
    return new Promise((resolve, reject) => {
      let leave
      const left = new Promise((done) => (leave = done))
      const over = redlock.using([`${prefix}:lock:${key}`], ttlMs, async (signal) => {
        resolve({
          key,
          // The best that there could be: it has none.
          fence: process.hrtime.bigint(),
          remainingMs: 1,
          signal,
          assertHeld() {
            if (signal.aborted) throw signal.error
          },
          async release() {
            leave()
            await over
            return true
          },
        })
        await left
      })
      over.catch(reject)
    })
  }

  return { lock, close: () => client.quit() }
}
