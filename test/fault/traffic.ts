/** Worker processes that ask for locks without end. See traffic/worker.mjs for the other side. */
import { fileURLToPath } from 'node:url'
import { Child } from '../support/child.js'
import { within } from '../support/within.js'
import type { Errand, Visit } from './gate.js'
import type { Event } from './history.js'
import type { Work } from './work.js'

/** What a process is answered that is at the gate, or has another question. */
export type Answering = (visit: Visit | Errand) => unknown

export interface TrafficOptions extends Work {
  readonly name: string
  /** Which of the workers it is. */
  readonly way: number
  readonly url: string
  readonly prefix: string
  readonly ttlMs: number
  readonly seed: number
  /** For each key, of each manager. */
  readonly callers: number
  readonly managers?: number
  /** Between two operations of a caller, on average. */
  readonly thinkMs: number
  /** How long the guarded work takes at most. */
  readonly workMs: number
  /** Instead of the built package: a file that exports `connect`. */
  readonly library?: string
  /** Further options of `connect`; plain data. */
  readonly options?: Record<string, unknown>
  readonly env?: Record<string, string>
}

interface Methods {
  run(): void
  end(): void
  gate(visit: number, answer: unknown): void
  block(ms: number): void
  close(): void
}

type Told = Event | ({ readonly type: 'visit'; readonly visit: number } & (Visit | Errand))

const SCRIPT = fileURLToPath(new URL('./traffic/worker.mjs', import.meta.url))
const LIBRARY = new URL('./traffic/holdfast.mjs', import.meta.url).href
const RUN_DOWN_MS = 15_000

export class TrafficWorker extends Child<Methods, Told> {
  readonly name: string
  readonly #log: (event: Event) => void
  readonly #gate: Answering
  readonly #canary: string | undefined
  #running: Promise<unknown> = Promise.resolve()
  #isLeaving = false
  #isOver = false

  constructor(options: TrafficOptions, log: (event: Event) => void, gate: Answering, canary?: string) {
    const { env = {}, library = LIBRARY, ...rest } = options
    const setup = JSON.stringify({ managers: 1, options: {}, ...rest, library })
    super({ script: SCRIPT, env: { ...env, HOLDFAST_FAULT_WORKER: setup } })
    this.name = options.name
    this.#log = log
    this.#gate = gate
    this.#canary = canary
  }

  async start(): Promise<void> {
    await this.ready()
    this.#log({ type: 'began', at: process.hrtime.bigint(), worker: this.name })
    this.#running = this.call('run')
    this.#running.catch(() => {})
  }

  protected heard(told: Told): void {
    if (told.type !== 'visit') return this.#log(told)
    // One that is stopped hears of it later, and one that was killed never.
    this.call('gate', told.visit, this.#gate(told)).catch(() => {})
  }

  protected ended(): void {
    if (this.#isLeaving) this.#over('closed')
    else this.#over('failed', this.stderr.slice(-2_000))
  }

  #over(how: 'closed' | 'killed' | 'failed', why?: string): void {
    if (this.#isOver) return
    this.#isOver = true
    const at = this.endedAt ?? process.hrtime.bigint()
    this.#log({ type: 'ended', at, worker: this.name, how, ...(why !== undefined && { why }) })
  }

  override async kill(): Promise<void> {
    this.endedAt = process.hrtime.bigint()
    this.#over('killed')
    await super.kill()
  }

  get saidCanary(): boolean {
    return this.#canary !== undefined && `${this.stdout}${this.stderr}`.includes(this.#canary)
  }

  block(ms: number): void {
    this.call('block', ms).catch(() => {})
  }

  /** Lets everybody finish, closes the managers and waits for the process to end by itself. Says what was wrong with that. */
  async finish(): Promise<string[]> {
    const wrong: string[] = []
    try {
      if (this.hasEnded) throw this.failure('had ended')
      await this.call('end')
      await within(RUN_DOWN_MS, 'the last callers', this.#running)
      await within(RUN_DOWN_MS, 'close()', this.call('close'))
      this.#isLeaving = true
      await this.leaves()
      this.assertHealthy()
    } catch (error) {
      wrong.push((error as Error).message)
      await this.kill()
    }
    return wrong.map((what) => `${this.name}: ${what}`)
  }
}
