/**
 * Child processes that hold locks, for tests that stop, block and kill processes. See worker.mjs for the other side.
 *
 * A worker that dies by itself, or has an unhandled rejection (which kills it: it runs with
 * `--unhandled-rejections=strict`), rejects every call under way and `exit()`, and fails the test that started it.
 */
import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import type { Hold } from './check.js'
import { exited, hasExited, makeFolder, pauseProcess, resumeProcess, track } from './processes.js'

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

type Message =
  | { readonly ready: true }
  | { readonly event: WorkerEvent }
  | { readonly call: number; readonly result: unknown }
  | { readonly call: number; readonly error: { name?: string; message?: string; code?: string; stack?: string } }

const SCRIPT = fileURLToPath(new URL('./worker.mjs', import.meta.url))
const LIBRARY = new URL('../../dist/index.js', import.meta.url).href
const EVENT_MS = 10_000
const EXIT_MS = 5_000

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

export class Worker {
  /** Everything that was told so far. */
  readonly events: WorkerEvent[] = []
  stdout = ''
  stderr = ''
  readonly #child: ChildProcess
  readonly #ready: Promise<void>
  readonly #streamsEnded: Promise<unknown>
  readonly #calls = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>()
  readonly #watchers = new Set<() => void>()
  #nextCall = 0
  #endedAt: bigint | undefined
  /** It ends because we want it to. */
  #expected = false

  constructor({ url, prefix = 'test', options = {}, env = {}, execArgv = [], library = LIBRARY }: WorkerOptions) {
    const folder = makeFolder('worker')
    const setup = JSON.stringify({ url, prefix, options, library })
    const child = fork(SCRIPT, {
      env: { ...process.env, NODE_OPTIONS: '', ...env, HOLDFAST_WORKER: setup },
      execArgv: ['--unhandled-rejections=strict', ...execArgv],
      serialization: 'advanced',
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    })
    this.#child = child
    track(child, folder, `worker-${child.pid}`)
    child.stdout?.setEncoding('utf8').on('data', (text: string) => (this.stdout += text))
    child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.stderr += text))
    this.#streamsEnded = once(child, 'close')
    this.#ready = new Promise((resolve, reject) => {
      child.on('message', (message: Message) => {
        if ('ready' in message) resolve()
        else this.#received(message)
      })
      child.on('close', () => reject(this.#failure('did not start')))
    })
    this.#ready.catch(() => {})
    child.once('exit', () => {
      this.#endedAt ??= process.hrtime.bigint()
      rmSync(folder, { recursive: true, force: true })
    })
    // Not 'exit': before 'close', messages and the last words on stderr may still be on their way.
    child.once('close', () => {
      for (const call of this.#calls.values()) call.reject(this.#failure('ended during a call'))
      this.#calls.clear()
      for (const watcher of [...this.#watchers]) watcher()
    })
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  get exitCode(): number | null {
    return this.#child.exitCode
  }

  get signalCode(): NodeJS.Signals | null {
    return this.#child.signalCode
  }

  ready(): Promise<void> {
    return this.#ready
  }

  call<M extends keyof Methods>(method: M, ...args: Parameters<Methods[M]>): Promise<ReturnType<Methods[M]>> {
    return new Promise((resolve, reject) => {
      if (!this.#child.connected) return reject(this.#failure('has ended already'))
      const call = this.#nextCall++
      this.#calls.set(call, { resolve: (value) => resolve(value as ReturnType<Methods[M]>), reject })
      this.#child.send({ call, method, args }, (error) => {
        if (error && this.#calls.delete(call)) reject(error)
      })
    })
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
        else if (hasExited(this.#child)) settle(() => reject(this.#failure('ended before the event')))
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
        const hold: Hold = { key, process: this.pid, waiter, askedAt, grantedAt: at, releasedAt: this.#endedAt, fence }
        open.set(id, hold)
        holds.push(hold)
      } else {
        const hold = open.get(id)
        if (hold) hold.releasedAt = at
      }
    }
    return holds
  }

  /** SIGSTOP; resolves when it really stands still. */
  async stop(): Promise<void> {
    await pauseProcess(this.#child)
  }

  async cont(): Promise<void> {
    await resumeProcess(this.#child)
  }

  /** SIGKILL. Nothing if it has ended already. */
  async kill(): Promise<void> {
    if (hasExited(this.#child)) return void (await this.#streamsEnded)
    this.#expected = true
    this.#child.kill('SIGKILL')
    // We hear of its end later than it ends, and its holds must not seem longer than they are.
    this.#endedAt = process.hrtime.bigint()
    await this.#streamsEnded
  }

  /** Closes its manager and lets it end. Throws if something still kept it alive (a leak), or it was not healthy. */
  async exit({ withinMs = EXIT_MS }: { readonly withinMs?: number } = {}): Promise<void> {
    if (!hasExited(this.#child)) {
      await this.call('close')
      this.#expected = true
      const timer = setTimeout(() => this.#child.kill('SIGKILL'), withinMs)
      await exited(this.#child)
      clearTimeout(timer)
      await this.#streamsEnded
      if (this.#child.signalCode) throw this.#failure(`still ran ${withinMs} ms after close()`)
    }
    this.assertHealthy()
  }

  /** Throws if it ended by itself or said something about an unhandled rejection. */
  assertHealthy(): void {
    const ended = hasExited(this.#child) && (!this.#expected || (this.exitCode ?? 0) !== 0)
    if (ended || /unhandled ?(promise ?)?rejection/i.test(this.stderr)) throw this.#failure('is not healthy')
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill()
    this.assertHealthy()
  }

  #received(message: Exclude<Message, { ready: true }>): void {
    if ('event' in message) {
      this.events.push(message.event)
      for (const watcher of [...this.#watchers]) watcher()
      return
    }
    const call = this.#calls.get(message.call)
    this.#calls.delete(message.call)
    if ('result' in message) call?.resolve(message.result)
    else call?.reject(Object.assign(new Error(message.error.message), message.error))
  }

  #failure(what: string): Error {
    const { exitCode, signalCode } = this.#child
    return new Error(`Worker ${this.pid} ${what} (exit code ${exitCode}, signal ${signalCode})\n${this.stderr}`)
  }
}

function atTheEnd(action: () => Promise<void>): void {
  try {
    onTestFinished(action)
  } catch {
    // Started in a hook: there is no test to judge, and whoever started it has to call exit().
  }
}
