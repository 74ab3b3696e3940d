/** Processes that contend for locks without end, while a test breaks things around them. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Hold } from './check.js'
import { within } from './within.js'
import type { Worker } from './workers.js'

export interface ContenderOptions {
  readonly processes?: number
  /** For each key, of each process. */
  readonly waiters?: number
  readonly holdMs?: number
  readonly ttlMs?: number
}

export class Contenders {
  readonly workers: readonly Worker[]
  readonly #keys: readonly string[]
  readonly #waiters: number
  readonly #done: Promise<unknown>

  private constructor(workers: readonly Worker[], keys: readonly string[], options: ContenderOptions) {
    const { waiters = 4, holdMs = 3, ttlMs = 1_500 } = options
    this.workers = workers
    this.#keys = keys
    this.#waiters = waiters
    const contentions = workers.flatMap((worker, i) => {
      // Half of them pass the lock on among themselves, and the other half by way of the server.
      const fairness = i % 2 === 0 ? 'strict' : 'bounded'
      return keys.map((key) => worker.call('contend', key, waiters, holdMs, { ttlMs, fairness }))
    })
    this.#done = Promise.all(contentions)
    this.#done.catch(() => {})
  }

  /** Resolves when each of them has been served. */
  static async start(route: { spawnMany(count: number): Promise<readonly Worker[]> }, keys: readonly string[], options: ContenderOptions = {}): Promise<Contenders> {
    const contenders = new Contenders(await route.spawnMany(options.processes ?? 4), keys, options)
    await contenders.allServed(30_000)
    return contenders
  }

  /** Until every single waiter has had its turn since this call: nobody was forgotten. Resolves with how long it took. */
  async allServed(withinMs: number): Promise<number> {
    const startedAt = process.hrtime.bigint()
    for (;;) {
      const missing = this.#missing(startedAt)
      const tookMs = Number(process.hrtime.bigint() - startedAt) / 1e6
      if (missing.length === 0) return tookMs
      if (tookMs > withinMs) throw new Error(`Not served within ${withinMs} ms: ${missing.join(', ')}`)
      // A worker that has failed rejects, and a test should not wait in vain.
      await Promise.race([sleep(10), this.#done])
    }
  }

  /** Lets them finish; whoever still waits gets its turn. All holds that there were. */
  async end(withinMs: number): Promise<Hold[]> {
    await Promise.all(this.workers.map((worker) => worker.call('endContention')))
    await within(withinMs, 'those who still wait', this.#done)
    return this.workers.flatMap((worker) => worker.holds())
  }

  #missing(since: bigint): string[] {
    return this.workers.flatMap((worker) => {
      const grants = worker.events.filter(({ type, at }) => type === 'acquired' && at > since)
      const served = new Set(grants.map(({ key, waiter }) => `${key} ${waiter}`))
      const wanted = this.#keys.flatMap((key) => Array.from({ length: this.#waiters }, (_, waiter) => `${key} ${waiter}`))
      return wanted.filter((one) => !served.has(one)).map((one) => `${worker.pid}: ${one}`)
    })
  }
}
