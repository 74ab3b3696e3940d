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
 *   role      'raw': what the client alone can do · 'local': no store at all · 'peer' · 'ours'
 *   tuned     the same library, set up in its own favour for 'sending' many requests at once, or for 'waiting'; where the
 *             other matters, it would make no difference or a bad one, so there it does not take part
 *   quick     false: not in a quick run, since somebody much like it is
 *   renews    whether it keeps alive what it holds
 */
/** The client gathers the requests of a tick. It costs a lone request some microseconds, and helps when there are many. */
const PIPELINED = { tuned: 'sending', settings: { client: { enableAutoPipelining: true } } }
/** Of 1, 2, 5 and 10 ms the one that gives most of them the best results where 16 wait. */
const POLL_MS = 2
const PATIENT = { retryCount: -1, retryDelay: POLL_MS, retryJitter: POLL_MS - 1 }

const ALL = [
  { id: 'holdfast', role: 'ours', file: 'holdfast', renews: true },
  { id: 'holdfast strict', role: 'ours', file: 'holdfast', quick: false, tuned: 'waiting', settings: { lock: { fairness: 'strict' } } },

  { id: 'ioredis', role: 'raw', file: 'ioredis', direct: ['set'] },
  { id: 'ioredis pipelined', role: 'raw', file: 'ioredis', direct: ['set'], ...PIPELINED },
  { id: 'node-redis', role: 'raw', file: 'node-redis', direct: ['set'] },

  { id: 'redlock', role: 'peer', file: 'redlock', renews: true },
  { id: 'redlock pipelined', role: 'peer', file: 'redlock', ...PIPELINED },
  { id: 'redlock tuned', role: 'peer', file: 'redlock', tuned: 'waiting', settings: { redlock: PATIENT } },

  { id: 'sesamecare', role: 'peer', file: 'sesamecare-redlock', quick: false, renews: true },
  { id: 'sesamecare pipelined', role: 'peer', file: 'sesamecare-redlock', quick: false, ...PIPELINED },
  { id: 'sesamecare tuned', role: 'peer', file: 'sesamecare-redlock', quick: false, tuned: 'waiting', settings: { redlock: PATIENT } },

  { id: 'redlock-universal', role: 'peer', file: 'redlock-universal', direct: ['set', 'ping'], renews: true },
  {
    id: 'redlock-universal pipelined', role: 'peer', file: 'redlock-universal', quick: false, direct: ['set'],
    tuned: 'sending', settings: { ...PIPELINED.settings, lock: { performance: 'lean' } }
  },
  {
    id: 'redlock-universal tuned', role: 'peer', file: 'redlock-universal', quick: false, direct: ['set'],
    tuned: 'waiting', settings: { lock: { retryAttempts: 1e9, retryDelay: POLL_MS, performance: 'lean' } }
  },

  { id: 'redis-semaphore', role: 'peer', file: 'redis-semaphore', direct: ['set'], renews: true },
  { id: 'redis-semaphore pipelined', role: 'peer', file: 'redis-semaphore', direct: ['set'], ...PIPELINED },
  {
    id: 'redis-semaphore tuned', role: 'peer', file: 'redis-semaphore', direct: ['set'],
    tuned: 'waiting', settings: { mutex: { retryInterval: POLL_MS, acquireTimeout: Infinity } }
  },

  { id: 'verrou', role: 'peer', file: 'verrou', direct: ['set'] },
  { id: 'verrou pipelined', role: 'peer', file: 'verrou', quick: false, direct: ['set'], ...PIPELINED },
  {
    id: 'verrou tuned', role: 'peer', file: 'verrou', direct: ['set'],
    tuned: 'waiting', settings: { verrou: { retry: { delay: POLL_MS } } }
  },

  { id: 'async-mutex', role: 'local', file: 'async-mutex' }
]

export const CONTENDERS = ALL.map((contender) => ({
  settings: {}, direct: [], tuned: undefined, quick: true, renews: false, ...contender
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
