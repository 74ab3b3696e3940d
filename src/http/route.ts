/**
 * What the frameworks have in common: a handler that runs under a lock.
 *
 * A request waits  → the client goes: it waits no longer, and nobody is answered
 *                    refused: it is answered here
 *            holds → the handler runs; the client goes, or the lock is lost: `lock.signal` aborts, and the handler runs on
 *            ends  → the handler has settled, however: released, and only then is the framework told
 *
 * So nobody else is let in while the handler of a client that has gone is still at work: frameworks' own hooks at the end of a
 * response would be too early, or are never called.
 */
import { linkedController } from '../core/abort.js'
import { ConfigurationError } from '../core/errors.js'
import { resolveLockOptions, type LockOptions } from '../core/options.js'
import { locksOf, type LocksSource } from '../locks-source.js'
import type { DistributedLock } from '../primitives/lock.js'
import { answerTo, checkProblemOptions, type Answer, type ProblemOptions } from './problem.js'

/** Options of a route: what it locks, and how. `waitMs` is 0 if not given: whoever cannot have it is told at once. */
export interface RouteOptions<Request> extends LockOptions {
  /** What requests exclude each other: ``(request) => key`order:${request.params.id}` ``. */
  readonly key: (request: Request) => string
  /** Default: what `setLocks()` was given. */
  readonly locks?: LocksSource<Request>
  /** What a client is told that does not get it. */
  readonly problem?: ProblemOptions
}

/** How a request ended: with what the handler gave, or with an answer of ours, if it was refused or the client has gone. */
export type Outcome<R> = { readonly result: R } | { readonly answer: Answer; readonly refusal?: unknown }

/** As nginx has it, for logs: the client closed the connection. Nobody gets it. */
const GONE: Answer = { status: 499, headers: {}, body: '' }

export class Route<Request> {
  readonly #key: (request: Request) => string
  readonly #locks: LocksSource<Request> | undefined
  readonly #lockOptions: LockOptions
  readonly #problem: ProblemOptions

  constructor(options: RouteOptions<Request>) {
    if (typeof options?.key !== 'function') {
      throw new ConfigurationError('lockRoute(options, handler) needs a key, as a function of the request: { key: (request) => key`order:${request.params.id}` }.')
    }
    const { key, locks, problem = {}, waitMs = 0, ...lockOptions } = options
    this.#key = key
    this.#locks = locks
    this.#lockOptions = { waitMs, ...lockOptions }
    this.#problem = problem
    // What is wrong is told at the start, and not with the first request.
    resolveLockOptions(this.#lockOptions, { ttlMs: 10_000, waitMs, retryMs: 50 })
    checkProblemOptions(problem)
  }

  async run<R>(request: Request, gone: AbortSignal, work: (lock: DistributedLock) => R): Promise<Outcome<Awaited<R>>> {
    const { controller, unlink } = linkedController(gone, this.#lockOptions.signal)
    let isHeld = false
    try {
      const locks = locksOf(this.#locks, request, 'lockRoute()')
      const result = await locks.withLock(this.#key(request), { ...this.#lockOptions, signal: controller.signal }, (lock) => {
        isHeld = true
        return work(lock)
      })
      return { result }
    } catch (error) {
      // A handler that stopped because it was told to has nothing to say. Node's own functions throw an error that has the reason as its cause.
      if (gone.aborted && (error === gone.reason || (error as Error | undefined)?.cause === gone.reason)) return { answer: GONE }
      // Of what a handler throws the framework has to hear.
      const answer = isHeld ? undefined : answerTo(error, this.#problem)
      if (answer) return { answer, refusal: error }
      throw error
    } finally {
      unlink()
    }
  }
}

export function checkHandler(handler: unknown): void {
  if (typeof handler !== 'function') throw new ConfigurationError('lockRoute(options, handler) needs a handler.')
}
