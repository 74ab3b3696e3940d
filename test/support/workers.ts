/**
 * Child processes that hold locks, for tests that stop, block and kill processes. See worker.mjs for the other side. One that dies by
 * itself fails the test that started it.
 */
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import type { Hold } from './check.js'
import { Child } from './child.js'

export interface WorkerOptions {
  readonly url: string
  readonly prefix?: string
  /** Further options of `connect`; plain data. */
  readonly options?: Record<string, unknown>
  readonly env?: Record<string, string>
  readonly execArgv?: readonly string[]
  /** Instead of the built package: a file that exports `connect`. */
  readonly library?: string
}

export interface Held {
  /** What the other methods take. */
  readonly id: number
  readonly key: string
  readonly fence: bigint
  readonly token: string
}

export interface Probe {
  readonly aborted: boolean
  /** `ok`, or the name of the error. */
  readonly assertHeld: string
  readonly remainingMs: number
  readonly at: bigint
}

/** waiter, asked, granted, released, fence. */
type ConvoyRow = readonly [waiter: number, askedAt: bigint, grantedAt: bigint, releasedAt: bigint, fence: bigint]

/** Plain data, as it goes through IPC (structured clone: bigints stay bigints). */
type LockOptions = Record<string, unknown>

export interface Methods {
  lock(key: string, options?: LockOptions): Held
  tryLock(key: string, options?: LockOptions): Held | null
  release(id: number): unknown
  /** Again, for as long as the store fails for a moment. */
  releaseInTheEnd(id: number): unknown
  /** Locks, holds for that long, releases. */
  hold(key: string, options: LockOptions, ms: number): Held
  /** So many waiters at once, each so many times. Each hold is an event as well, so a killed worker's are not lost. */
  convoy(key: string, waiters: number, rounds: number, holdMs: number, options?: LockOptions): ConvoyRow[]
  /** So many times some of the keys, in any order and all at once: what is free at once or soon is held for a moment, and let go together. */
  lists(keys: readonly string[], rounds: number, options?: LockOptions): void
  /** So many waiters, again and again until `endContention`, also when the store fails; those that wait then still get it. */
  contend(key: string, waiters: number, holdMs: number, options?: LockOptions): void
  endContention(): void
  probe(id: number): Probe
  /** Keeps the event loop busy. */
  block(ms: number): void
  /** Looks in the very next line, before any timer or message can have its turn. */
  blockThenProbe(id: number, ms: number): Probe
  resources(): { active: string[]; heapUsed: number }
  close(): void
}

export interface WorkerEvent {
  readonly type: 'acquired' | 'released' | 'lost'
  /** process.hrtime.bigint(), which is one clock for the machine. */
  readonly at: bigint
  readonly id: number
  readonly key: string
  readonly waiter: number
  readonly fence: bigint
  /** Of `acquired`. */
  readonly askedAt?: bigint
  /** Of `lost`: the name of the signal's reason. */
  readonly error?: string
}

const SCRIPT = fileURLToPath(new URL('./worker.mjs', import.meta.url))
const LIBRARY = new URL('../../dist/index.js', import.meta.url).href
const EVENT_MS = 10_000

/** Resolves when the worker is connected. At the end of the test it is killed, and judged. */
export async function spawnWorker(options: WorkerOptions): Promise<Worker> {
  const worker = new Worker(options)
  atTheEnd(async () => {
    await worker.kill()
    worker.assertHealthy()
  })
  await worker.ready()
  return worker
}

export class Worker extends Child<Methods, WorkerEvent> {
  /** Everything that was told so far. */
  readonly events: WorkerEvent[] = []
  readonly #watchers = new Set<() => void>()

  constructor({ url, prefix = 'test', options = {}, env = {}, execArgv = [], library = LIBRARY }: WorkerOptions) {
    const setup = JSON.stringify({ url, prefix, options, library })
    super({ script: SCRIPT, env: { ...env, HOLDFAST_WORKER: setup }, execArgv })
  }

  protected heard(event: WorkerEvent): void {
    this.events.push(event)
    this.#look()
  }

  protected ended(): void {
    this.#look()
  }

  #look(): void {
    for (const watcher of [...this.#watchers]) watcher()
  }

  /** The first event like that, from the past or the future. */
  async event(
    wanted: WorkerEvent['type'] | ((event: WorkerEvent) => boolean),
    { timeoutMs = EVENT_MS }: { readonly timeoutMs?: number } = {},
  ): Promise<WorkerEvent> {
    const fits = typeof wanted === 'string' ? (event: WorkerEvent) => event.type === wanted : wanted
    return new Promise((resolve, reject) => {
      const settle = (action: () => void): void => {
        clearTimeout(timer)
        this.#watchers.delete(look)
        action()
      }
      const look = (): void => {
        const found = this.events.find(fits)
        if (found) settle(() => resolve(found))
        else if (this.hasEnded) settle(() => reject(this.failure('ended before the event')))
      }
      const tooLate = new Error(`No such event (${String(wanted)}) of worker ${this.pid} in ${timeoutMs} ms`)
      const timer = setTimeout(() => settle(() => reject(tooLate)), timeoutMs)
      this.#watchers.add(look)
      look()
    })
  }

  /**
   * Its holds up to now, for the checkers. One ends when it was released or found lost, at the latest with the process;
   * one that goes on has no end.
   */
  holds(): Hold[] {
    const open = new Map<number, Hold>()
    const holds: Hold[] = []
    for (const { type, id, key, waiter, fence, at, askedAt = at } of this.events) {
      if (type === 'acquired') {
        const hold: Hold = { key, process: this.pid, waiter, askedAt, grantedAt: at, releasedAt: this.endedAt, fence }
        open.set(id, hold)
        holds.push(hold)
      } else {
        const hold = open.get(id)
        if (hold) hold.releasedAt = at
      }
    }
    return holds
  }

  /** Closes its manager and lets it end. Throws if something still kept it alive (a leak), or it was not healthy. */
  async exit({ withinMs }: { readonly withinMs?: number } = {}): Promise<void> {
    if (!this.hasEnded) {
      await this.call('close')
      await this.leaves(withinMs)
    }
    this.assertHealthy()
  }
}

function atTheEnd(action: () => Promise<void>): void {
  try {
    onTestFinished(action)
  } catch {
    // Started in a hook: there is no test to judge, and whoever started it has to call exit().
  }
}
