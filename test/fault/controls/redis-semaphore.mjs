/** redis-semaphore's Mutex with the surface that traffic/worker.mjs uses: it renews, and `onLockLost` is to tell of a loss. */
import { Redis } from 'ioredis'
import { Mutex } from 'redis-semaphore'

export function connect(url, { prefix }) {
  // Without a timeout of its own a command waits for ever in a black hole, and the mutex with it.
  const client = new Redis(url, { commandTimeout: 500 })
  client.on('error', () => {})

  async function lock(key, { ttlMs }) {
    const controller = new AbortController()
    const mutex = new Mutex(client, `${prefix}:${key}`, {
      lockTimeout: ttlMs,
      acquireTimeout: Infinity,
      retryInterval: 5,
      onLockLost: (error) => controller.abort(error),
    })
    await mutex.acquire()
    return {
      key,
      // The best that there could be: it has none.
      fence: process.hrtime.bigint(),
      remainingMs: 1,
      signal: controller.signal,
      assertHeld() {
        if (!mutex.isAcquired) throw new Error('it was lost')
      },
      release: () => mutex.release().then(() => true),
    }
  }

  return { lock, close: () => client.quit() }
}
