/**
 * A child process of a test that answers calls and tells of events: the side of the parent. It may be stopped, continued and killed.
 *
 * One that dies by itself, or has an unhandled rejection (which kills it: it runs with `--unhandled-rejections=strict`), rejects every
 * call under way and `exit()`.
 */
import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { exited, hasExited, makeFolder, pauseProcess, resumeProcess, track } from './processes.js'

export interface ChildOptions {
  /** What the process runs. */
  readonly script: string
  readonly env?: Record<string, string>
  readonly execArgv?: readonly string[]
}

type Message<Event> =
  | { readonly ready: true }
  | { readonly event: Event }
  | { readonly call: number; readonly result: unknown }
  | { readonly call: number; readonly error: { name?: string; message?: string; code?: string; stack?: string } }

const EXIT_MS = 5_000

/** `Methods`: what can be called, with the types of arguments and results. All go through IPC: structured clones. */
export abstract class Child<Methods, Event> {
  stdout = ''
  stderr = ''
  protected readonly process: ChildProcess
  /** When it ended, or was told to. */
  protected endedAt: bigint | undefined
  readonly #ready: Promise<void>
  readonly #streamsEnded: Promise<unknown>
  readonly #calls = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>()
  #nextCall = 0
  /** It ends because we want it to. */
  #expected = false

  constructor({ script, env = {}, execArgv = [] }: ChildOptions) {
    const folder = makeFolder('worker')
    const child = fork(script, {
      env: { ...process.env, NODE_OPTIONS: '', ...env },
      execArgv: ['--unhandled-rejections=strict', ...execArgv],
      serialization: 'advanced',
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    })
    this.process = child
    track(child, folder, `worker-${child.pid}`)
    child.stdout?.setEncoding('utf8').on('data', (text: string) => (this.stdout += text))
    child.stderr?.setEncoding('utf8').on('data', (text: string) => (this.stderr += text))
    this.#streamsEnded = once(child, 'close')
    this.#ready = new Promise((resolve, reject) => {
      child.on('message', (message: Message<Event>) => {
        if ('ready' in message) resolve()
        else this.#received(message)
      })
      child.on('close', () => reject(this.failure('did not start')))
    })
    this.#ready.catch(() => {})
    child.once('exit', () => {
      this.endedAt ??= process.hrtime.bigint()
      rmSync(folder, { recursive: true, force: true })
    })
    // Not 'exit': before 'close', messages and the last words on stderr may still be on their way.
    child.once('close', () => {
      for (const call of this.#calls.values()) call.reject(this.failure('ended during a call'))
      this.#calls.clear()
      this.ended()
    })
  }

  protected abstract heard(event: Event): void
  protected abstract ended(): void

  get pid(): number {
    return this.process.pid ?? 0
  }

  get exitCode(): number | null {
    return this.process.exitCode
  }

  get signalCode(): NodeJS.Signals | null {
    return this.process.signalCode
  }

  get hasEnded(): boolean {
    return hasExited(this.process)
  }

  ready(): Promise<void> {
    return this.#ready
  }

  call<M extends keyof Methods>(
    method: M,
    ...args: Methods[M] extends (...args: infer Args) => unknown ? Args : never
  ): Promise<Methods[M] extends (...args: any[]) => infer Result ? Result : never> {
    return new Promise((resolve, reject) => {
      if (!this.process.connected) return reject(this.failure('has ended already'))
      const call = this.#nextCall++
      this.#calls.set(call, { resolve: resolve as (value: unknown) => void, reject })
      this.process.send({ call, method, args }, (error) => {
        if (error && this.#calls.delete(call)) reject(error)
      })
    })
  }

  /** SIGSTOP; resolves when it really stands still. */
  async stop(): Promise<void> {
    await pauseProcess(this.process)
  }

  async cont(): Promise<void> {
    await resumeProcess(this.process)
  }

  /** SIGKILL. Nothing if it has ended already. */
  async kill(): Promise<void> {
    if (hasExited(this.process)) return void (await this.#streamsEnded)
    this.#expected = true
    this.process.kill('SIGKILL')
    // We hear of its end later than it ends, and its holds must not seem longer than they are.
    this.endedAt = process.hrtime.bigint()
    await this.#streamsEnded
  }

  /** Waits for its end, which it was asked for. Throws if something still kept it alive (a leak), or it was not healthy. */
  protected async leaves(withinMs = EXIT_MS): Promise<void> {
    this.#expected = true
    const timer = setTimeout(() => this.process.kill('SIGKILL'), withinMs)
    await exited(this.process)
    clearTimeout(timer)
    await this.#streamsEnded
    if (this.process.signalCode) throw this.failure(`still ran ${withinMs} ms after close()`)
  }

  /** Throws if it ended by itself or said something about an unhandled rejection. */
  assertHealthy(): void {
    const ended = hasExited(this.process) && (!this.#expected || (this.exitCode ?? 0) !== 0)
    if (ended || /unhandled ?(promise ?)?rejection/i.test(this.stderr)) throw this.failure('is not healthy')
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill()
    this.assertHealthy()
  }

  #received(message: Exclude<Message<Event>, { ready: true }>): void {
    if ('event' in message) return this.heard(message.event)
    const call = this.#calls.get(message.call)
    this.#calls.delete(message.call)
    if ('result' in message) call?.resolve(message.result)
    else call?.reject(Object.assign(new Error(message.error.message), message.error))
  }

  protected failure(what: string): Error {
    const { exitCode, signalCode } = this.process
    return new Error(`Worker ${this.pid} ${what} (exit code ${exitCode}, signal ${signalCode})\n${this.stderr}`)
  }
}
