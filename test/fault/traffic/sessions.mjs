/**
 * Mutexes and elections with the surface of a lock, for worker.mjs: each caller has a session of its own, and another after a while.
 * Some sessions are orphaned while they hold something, and some begin as one that was: whoever asks next, in whatever process.
 */

/** Of those who hold: how many orphan their session then. Nobody has what it held for the rest of its TTL, unless it is taken up. */
const LEAVES = 0.02
/** Of those who have released: how many close their session. */
const CLOSES = 0.2
/** Of those who need a session: how many ask whether one was left. */
const TAKES_UP = 0.7
const TRIES_ONCE = 0.1
const GIVES_UP = 0.15
const RESUMES = 0.5

/** `around`: random, between, now, tell, visit, ttlMs, prefix, and the library's Mutex and Election. */
export class Tenant {
  #manager
  #around
  #key
  #session
  /** What was held in the session that it has taken up. */
  #found

  constructor(manager, key, around) {
    this.#manager = manager
    this.#key = key
    this.#around = around
  }

  mutex(about) {
    return this.#take(about, async (session) => {
      const { Mutex, prefix, random } = this.#around
      const mutex = new Mutex(session, `${prefix}/${about.key}`)
      if (random() < TRIES_ONCE) await mutex.tryLock()
      else await mutex.lock(this.#waiting())
      return { handle: mutex, release: () => mutex.unlock().then(() => true) }
    })
  }

  election(about) {
    return this.#take(about, async (session) => {
      const { Election, prefix, random } = this.#around
      const path = pathOf(prefix, about.key)
      const words = new Words(about, this.#around)
      if (this.#found && random() < RESUMES) {
        const election = await Election.resume(session, path, this.#found.place, this.#found.rev)
        return { handle: election, words: words.of(election), rev: election.rev, release: () => resign(election) }
      }
      const election = new Election(session, path)
      await words.say((value) => election.campaign(value, this.#waiting()))
      return { handle: election, words: words.of(election), rev: election.rev, release: () => resign(election) }
    })
  }

  async #take(about, ask) {
    try {
      const session = await this.#alive()
      const found = this.#found
      const { handle, release, words, rev } = await ask(session)
      const { fence } = handle
      return new Tenure(this, handle, {
        release, words, fence, rev,
        ...(found?.fence === fence && { takesUp: found.op }),
      })
    } catch (error) {
      // What became of its claim may not be known: the next one must not find it.
      this.#forget(true)
      throw error
    } finally {
      this.#found = undefined
    }
  }

  #waiting() {
    const { random, between } = this.#around
    return random() < GIVES_UP ? { signal: AbortSignal.timeout(Math.round(between(0, 30))) } : undefined
  }

  async #alive() {
    const { random, visit, ttlMs } = this.#around
    if (this.#session && !this.#session.signal.aborted) return this.#session
    this.#found = random() < TAKES_UP ? (await visit('find', { key: this.#key })).left : undefined
    this.#session = await this.#manager.session(this.#found ? { lease: this.#found.lease } : { ttlMs })
    return this.#session
  }

  /** After a release that has succeeded, or not. */
  done(isCertain) {
    if (!isCertain || this.#around.random() < CLOSES) this.#forget(true)
  }

  /** → whether it has: then the hold is nobody's, or whose the session will be. */
  async leave(about, { fence, rev, handle }) {
    const { random, visit, tell } = this.#around
    const session = this.#session
    if (session?.signal.aborted !== false || random() >= LEAVES) return false
    this.#forget(false)
    // By the time that somebody hears of it, it must be over here.
    const over = session.orphan()
    tell('left', about)
    await over
    await visit('leave', { ...about, fence, rev, lease: session.lease, place: handle.key })
    return true
  }

  #forget(closes) {
    if (closes) void this.#session?.close()
    this.#session = undefined
  }
}

export const pathOf = (prefix, key) => `${prefix}/election/${key}`

/** Who has lost it already is told nothing by the store. */
async function resign(election) {
  if (election.signal.aborted) return false
  await election.resign()
  // Whether it was still ours is not said.
  return 'resigned'
}

/** What one leader says, so that observers can be asked what they have heard. */
class Words {
  #about
  #tell
  #next = 0

  constructor(about, { tell }) {
    this.#about = about
    this.#tell = tell
  }

  async say(how) {
    const n = this.#next++
    this.#tell('saying', { ...this.#about, n })
    await how(`${this.#about.op} ${n}`)
    return (this.last = { ...this.#about, n })
  }

  of(election) {
    return {
      /** Of the campaign: told after it was granted. */
      first: this.last,
      proclaim: async () => this.#tell('said', await this.say((value) => election.proclaim(value))),
    }
  }
}

class Tenure {
  #tenant
  #handle
  #release

  constructor(tenant, handle, { release, words, fence, rev, takesUp }) {
    this.#tenant = tenant
    this.#handle = handle
    this.#release = release
    this.words = words
    this.fence = fence
    this.granted = { ...(rev !== undefined && { rev }), ...(takesUp !== undefined && { takesUp }) }
    // Of this term: a later one has another.
    this.signal = handle.signal
  }

  /** A condition for transactions, of a mutex. */
  isOwner() {
    return this.#handle.isOwner()
  }

  get remainingMs() {
    return this.signal.aborted ? 0 : 1
  }

  assertHeld() {
    if (this.signal.aborted) throw this.signal.reason
  }

  async leave(about) {
    return this.#tenant.leave(about, { fence: this.fence, rev: this.granted.rev, handle: this.#handle })
  }

  async release() {
    let ours
    try {
      ours = await this.#release()
    } catch (error) {
      this.#tenant.done(error.name === 'LockReleasedError')
      if (error.name !== 'LockReleasedError') throw error
      return false
    }
    this.#tenant.done(true)
    return ours
  }
}

/** Tells of all that one who only looks is told, until the manager is closed. */
export async function observe(manager, key, observer, { tell, nameOf, isClosing, pause }) {
  while (!isClosing()) {
    try {
      for await (const { value, rev, header } of manager.election(key).observe()) {
        const [by, n] = value.split(' ')
        tell('observed', { observer, key, rev, revision: header.revision, by, n: Number(n) })
      }
    } catch (error) {
      if (!isClosing()) tell('blind', { observer, key, error: `${nameOf(error)}: ${error.message}` })
    }
    await pause()
  }
}
