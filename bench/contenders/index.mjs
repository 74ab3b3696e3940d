/**
 * Everybody who takes part. Adding one is a line here, and a file beside this one if it is another library.
 *
 * A file exports `open(url, settings)`, which resolves with
 *
 *   acquire(key)     resolves with a hold, rejects if it gave up
 *   release(hold)
 *   close()
 *   hold(key)        like acquire, for libraries that renew only what is held in another way; gives a function that lets go
 *
 * so that no wrapper stands between the loop and the library. All get the same `ttlMs`.
 *
 *   direct    the commands that it sends itself besides scripts: that is how requests are told from what scripts call
 *   roles     'raw': what the client alone can do · 'local': no store at all · 'peer' · 'ours'
 *   tuned     the same library, set up in its own favour; in every other respect the defaults
 *   contended only takes part where there is somebody to wait for; its settings make no other difference
 *   renews    whether it keeps alive what it holds
 */
const SEND_TOGETHER = { enableAutoPipelining: true }

const ALL = [
  { id: 'holdfast', role: 'ours', file: 'holdfast', renews: true },
  { id: 'holdfast strict', role: 'ours', file: 'holdfast', contended: true, settings: { lock: { fairness: 'strict' } } },

  { id: 'ioredis', role: 'raw', file: 'ioredis', direct: ['set'] },
  { id: 'ioredis tuned', role: 'raw', file: 'ioredis', direct: ['set'], tuned: true, settings: { client: SEND_TOGETHER } },
  { id: 'node-redis', role: 'raw', file: 'node-redis', direct: ['set'] },

  { id: 'redlock', role: 'peer', file: 'redlock', renews: true },
  {
    id: 'redlock tuned', role: 'peer', file: 'redlock', tuned: true,
    settings: { client: SEND_TOGETHER, redlock: { retryCount: -1, retryDelay: 5, retryJitter: 4 } }
  },
  { id: 'sesamecare', role: 'peer', file: 'sesamecare-redlock', renews: true },
  {
    id: 'sesamecare tuned', role: 'peer', file: 'sesamecare-redlock', tuned: true,
    settings: { client: SEND_TOGETHER, redlock: { retryCount: -1, retryDelay: 5, retryJitter: 4 } }
  },
  { id: 'redlock-universal', role: 'peer', file: 'redlock-universal', direct: ['set', 'ping'], renews: true },
  {
    id: 'redlock-universal tuned', role: 'peer', file: 'redlock-universal', direct: ['set'], tuned: true,
    settings: { client: SEND_TOGETHER, lock: { retryAttempts: 1e9, retryDelay: 5, performance: 'lean' } }
  },
  { id: 'redis-semaphore', role: 'peer', file: 'redis-semaphore', direct: ['set'], renews: true },
  {
    id: 'redis-semaphore tuned', role: 'peer', file: 'redis-semaphore', direct: ['set'], tuned: true,
    settings: { client: SEND_TOGETHER, mutex: { retryInterval: 3, acquireTimeout: Infinity } }
  },
  { id: 'verrou', role: 'peer', file: 'verrou', direct: ['set'] },
  {
    id: 'verrou tuned', role: 'peer', file: 'verrou', direct: ['set'], tuned: true,
    settings: { client: SEND_TOGETHER, verrou: { retry: { delay: 5 } } }
  },

  { id: 'async-mutex', role: 'local', file: 'async-mutex' }
]

export const CONTENDERS = ALL.map((contender) => ({
  settings: {}, direct: [], tuned: false, contended: false, renews: false, ...contender
}))

export function contenderOf(id) {
  const found = CONTENDERS.find((contender) => contender.id === id)
  if (!found) throw new Error(`There is no contender "${id}". There are: ${CONTENDERS.map(({ id }) => id).join(', ')}`)
  return found
}

export async function openContender(id, url, common) {
  const { file, settings } = contenderOf(id)
  const { open } = await import(`./${file}.mjs`)
  return open(url, { ...common, ...settings })
}
