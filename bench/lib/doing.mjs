/**
 * What a contender's `acquire` and `release` are about, beside locks: the jobs are the same.
 *
 *   mutex      of a session that stays; workers that are in flight at once have one each
 *   session    opened, and closed
 *   election   of a session that stays: elected, and resigned
 *   transfer   a transaction between two accounts of the key; there is nothing to release
 */
import { Election, Mutex } from '../../dist/index.js'

export function doing(locks, { what = 'lock', prefix, ttlMs, lock }) {
  return DOINGS[what](locks, { prefix, ttlMs, lock })
}

const DOINGS = {
  lock: (locks, { lock }) => ({ acquire: (key) => locks.lock(key, lock), release: (held) => held.release() }),

  mutex(locks, { prefix, ttlMs }) {
    const sessions = new Sessions(locks, ttlMs)
    return {
      async acquire(key) {
        const mutex = new Mutex(await sessions.of(key), `${prefix}/${key}`)
        await mutex.lock()
        return mutex
      },
      release: (mutex) => mutex.unlock()
    }
  },

  session: (locks, { ttlMs }) => ({ acquire: () => locks.session({ ttlMs }), release: (session) => session.close() }),

  election(locks, { prefix, ttlMs }) {
    const sessions = new Sessions(locks, ttlMs)
    return {
      async acquire(key) {
        const election = new Election(await sessions.of(key), `${prefix}/${key}`)
        await election.campaign('bench')
        return election
      },
      release: (election) => election.resign()
    }
  },

  transfer(locks, { prefix }) {
    let applied = 0
    let committed = 0
    const onCommit = ({ tries }) => ((applied += tries), committed++)
    return {
      async acquire(key) {
        const [from, to] = accountsOf(prefix, key)
        await locks.stm(async (tx) => {
          const [a, b] = [await tx.get(from), await tx.get(to)]
          tx.put(from, String(Number(a) - 1))
          tx.put(to, String(Number(b) + 1))
        }, { prefetch: [from, to], onCommit })
        return key
      },
      release: () => undefined,
      tries: () => ({ applied, committed })
    }
  }
}

export const accountsOf = (prefix, key) => [`${prefix}/${key}/from`, `${prefix}/${key}/to`]

/** A session for each worker: the beginning of its keys is its own. */
class Sessions {
  #locks
  #ttlMs
  #opened = new Map()

  constructor(locks, ttlMs) {
    this.#locks = locks
    this.#ttlMs = ttlMs
  }

  of(key) {
    const worker = key.split(':').slice(0, 2).join(':')
    let session = this.#opened.get(worker)
    if (!session) this.#opened.set(worker, (session = this.#locks.session({ ttlMs: this.#ttlMs })))
    return session
  }
}
