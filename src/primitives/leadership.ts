/**
 * An election for those who do not want to manage a session: it is opened when it is needed, and again if it has ended.
 */
import { linkedController, pause } from '../core/abort.js'
import { BackendError, ConfigurationError, NotLeaderError, SessionExpiredError } from '../core/errors.js'
import { checkNames, checkSignal } from '../core/options.js'
import { checkValue, Election, leaderOf, observe, type Leader } from './election.js'
import type { ManagerSurroundings, Session, Sessions, WaitOptions } from './session.js'

export interface ElectionOptions {
  /** If a leader dies, the next leads after that. Default: that of the manager's locks. */
  readonly ttlMs?: number
}

export interface CandidateOptions {
  /** What to say to those who observe. Default: the manager's owner. */
  readonly value?: string
  /** Ends the wait, or has the work end: its signal aborts. */
  readonly signal?: AbortSignal
}

/** What the work of a leader is done under. */
export interface Leadership {
  /** Aborts when leadership is lost, or the candidate's own signal aborts. Whoever goes on after that may not be alone. */
  readonly signal: AbortSignal
  /** Grows with every leader: send it along with what is written, and have it checked where the data is. */
  readonly fence: bigint
  readonly rev: bigint
  /** Says something else to those who observe. */
  readonly proclaim: (value: string) => Promise<void>
}

const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 2_000

export class LeaderElection implements AsyncDisposable {
  readonly name: string
  readonly #prefix: string
  readonly #ttlMs: number
  readonly #sessions: Sessions
  readonly #around: ManagerSurroundings
  readonly #closing = new AbortController()
  readonly #working = new Set<Promise<unknown>>()
  /** For those who campaign by themselves. */
  #own: Promise<Election> | undefined

  /** @internal */
  constructor(name: string, { ttlMs }: { readonly ttlMs: number }, sessions: Sessions, around: ManagerSurroundings) {
    this.name = name
    this.#prefix = `${around.claims.events.source.prefix}/election/${name}`
    this.#ttlMs = ttlMs
    this.#sessions = sessions
    this.#around = around
  }

  /**
   * Waits until this process leads, and then does `work`. When that has ended, the process resigns, and the result is what `work`
   * returned. If leadership is lost before, the signal of `work` aborts; when it has ended, the process is a candidate again.
   * So leadership is given up only after `work` has ended, or was told to.
   */
  onElected<R>(work: (leadership: Leadership) => R, options: CandidateOptions = {}): Promise<Awaited<R>> {
    const working = this.#onElected(work, options)
    this.#working.add(working)
    const over = () => this.#working.delete(working)
    working.then(over, over)
    return working
  }

  async #onElected<R>(work: (leadership: Leadership) => R, options: CandidateOptions): Promise<Awaited<R>> {
    if (typeof work !== 'function') throw new ConfigurationError('onElected(work) needs a function to run while this process leads.')
    checkNames('candidate', options, ['value', 'signal'])
    const { value = this.#around.claims.owner } = options
    checkValue(value)
    if (options.signal !== undefined) checkSignal(options.signal)
    const { controller, unlink } = linkedController(options.signal, this.#closing.signal, this.#around.closing)
    const { signal } = controller
    let election: Election | undefined
    try {
      for (;;) {
        election = await this.#elected(value, signal, election?.session)
        const term = await serve(election, work, signal)
        if (term) return term.result
      }
    } finally {
      unlink()
      await election?.session.close()
    }
  }

  /** However often the session ends, or the store cannot be reached, before this process leads. */
  async #elected(value: string, signal: AbortSignal, before: Session | undefined): Promise<Election> {
    let session = before
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2)) {
      signal.throwIfAborted()
      try {
        // It outlives the signal: who is told to end leads until it has.
        session = session && !session.signal.aborted ? session : await this.#sessions.begin(this.#ttlMs, signal)
        const election = new Election(session, this.#prefix)
        await election.campaign(value, { signal })
        return election
      } catch (error) {
        const isPassing = error instanceof SessionExpiredError || error instanceof NotLeaderError || (error instanceof BackendError && error.transient)
        if (!isPassing || signal.aborted) {
          await session?.close()
          throw error
        }
      }
      await pause(this.#around.claims.clock, pauseMs * (0.5 + Math.random() / 2), signal)
    }
  }

  /** Resolves when this process leads, until `resign`. With `onElected` there is no need for that. */
  async campaign(value: string = this.#around.claims.owner, options?: WaitOptions): Promise<Leadership> {
    const election = await this.#ownElection()
    await election.campaign(value, options)
    return leadershipOf(election, election.signal)
  }

  /** Gives up what `campaign` has got. */
  async resign(): Promise<void> {
    await (await this.#own)?.resign()
  }

  #ownElection(): Promise<Election> {
    this.#closing.signal.throwIfAborted()
    const opened = (this.#own ?? this.#open()).then((election) => (election.session.signal.aborted ? this.#open() : election))
    this.#own = opened
    opened.catch(() => {
      if (this.#own === opened) this.#own = undefined
    })
    return opened
  }

  async #open(): Promise<Election> {
    return new Election(await this.#sessions.open({ ttlMs: this.#ttlMs, signal: this.#closing.signal }), this.#prefix)
  }

  /** Rejects with `NoLeaderError` if nobody leads. */
  leader(): Promise<Leader> {
    return leaderOf(this.#around, `${this.#prefix}/`)
  }

  /** Who leads, or the first who comes to; then every new value and every new leader. Ends with the signal, or with the manager. */
  observe(options?: WaitOptions): AsyncIterable<Leader> {
    return observe(this.#around, `${this.#prefix}/`, options)
  }

  /** Has all work end, and resigns. */
  async close(): Promise<void> {
    this.#closing.abort(new SessionExpiredError(`The election "${this.name}" was closed.`))
    await Promise.allSettled(this.#working)
    const election = await this.#own?.catch(() => undefined)
    await election?.session.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }
}

/** → what `work` returned, unless leadership was lost before that: then it has to be done again. */
async function serve<R>(election: Election, work: (leadership: Leadership) => R, signal: AbortSignal): Promise<{ result: Awaited<R> } | undefined> {
  const { controller, unlink } = linkedController(election.signal, signal)
  const isLost = () => election.signal.aborted && !signal.aborted
  try {
    // It may have been lost, or not be wanted any more, by the time that it is known.
    if (isLost()) return undefined
    signal.throwIfAborted()
    const result = await work(leadershipOf(election, controller.signal))
    return isLost() ? undefined : { result }
  } catch (error) {
    const isObedient = error === controller.signal.reason || (error instanceof Error && error.name === 'AbortError')
    if (isLost() && isObedient) return undefined
    throw error
  } finally {
    unlink()
    // What could not be released ends with the session.
    await election.resign().catch(() => election.session.close())
  }
}

function leadershipOf(election: Election, signal: AbortSignal): Leadership {
  const { fence, rev } = election
  return { signal, fence, rev, proclaim: (value) => election.proclaim(value) }
}
