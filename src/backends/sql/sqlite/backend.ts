/** SQLite, as the core sees it: each list is a step, and each step a transaction in its turn. */
import { setTimeout as sleep } from 'node:timers/promises'
import type {
  Backend, Claim, ClaimState, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope, Traits,
} from '../../../core/backend.js'
import { ConnectorError, HoldfastError } from '../../../core/errors.js'
import { HEARTBEAT_MS } from '../liveness.js'
import { Tidying } from '../tidying.js'
import type { OpenDatabase } from './client.js'
import { Connection } from './connection.js'
import { closedError, isBusy, sqliteError } from './errors.js'
import { networkOf } from './file.js'
import type { Machine } from './machine.js'
import { Steps } from './steps.js'
import { removeSilentBells, Tidy } from './tidy.js'
import { Turns } from './turns.js'
import { WakeUps } from './wake-ups.js'

/** A transaction of so many takes a few milliseconds, in which nobody else can write and this process does nothing else. */
const MOST_AT_ONCE = 128
/** Whoever opens the file while others make it waits for them. */
const MOST_OPENING_PAUSE_MS = 10

export interface SqliteFile {
  readonly path: string
  readonly open: OpenDatabase
}

/** What there is once the file is open. */
interface Opened {
  readonly connection: Connection
  readonly steps: Steps
}

export class SqliteBackend implements Backend {
  readonly name = 'sqlite'
  readonly traits: Traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, heartbeatMs: HEARTBEAT_MS }
  readonly #file: () => Promise<SqliteFile>
  readonly #scope: Scope
  readonly #machine: Machine
  #opening: Promise<Opened> | undefined
  #opened: Opened | undefined
  #turns: Turns | undefined
  #wakeUps: WakeUps | undefined
  #tidying: Tidying | undefined
  #trouble: Error | undefined
  #isClosed = false

  constructor(file: () => Promise<SqliteFile>, scope: Scope, machine: Machine) {
    this.#file = file
    this.#scope = scope
    this.#machine = machine
  }

  get trouble(): Error | undefined {
    return this.#trouble
  }

  async ready(): Promise<void> {
    try {
      await this.#open()
    } catch (error) {
      const { message, cause } = error as HoldfastError
      throw error instanceof HoldfastError && error.code !== 'BACKEND' ? error : new ConnectorError(message, { cause })
    }
  }

  claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    return this.#each(claims, (steps, some) => steps.claim(some, ifBusy))
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    return this.#each(renewals, (steps, some) => steps.renew(some))
  }

  release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    return this.#each(claims, (steps, some) => steps.release(some))
  }

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.#step((steps) => steps.revoke(resource, when))
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    for (let after: Uint8Array | undefined = new Uint8Array(); after; ) {
      const from: Uint8Array = after
      const page = await this.#step((steps) => steps.inspect(prefix, from))
      yield* page.resources
      after = page.last
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#tidying?.stop()
    this.#turns?.close(closedError())
    // So that nobody waits for us; one try, since who is closed need not be waited for either.
    try {
      this.#opened?.steps.leave()
    } catch {
      // It counts as gone in a moment anyway.
    }
    this.#wakeUps?.close()
    this.#opened?.connection.close()
  }

  async #each<Item, State>(items: readonly Item[], step: (steps: Steps, some: readonly Item[]) => readonly State[]): Promise<readonly State[]> {
    if (items.length === 0) return []
    if (items.length <= MOST_AT_ONCE) return this.#step((steps) => step(steps, items))
    const states: State[] = []
    for (let at = 0; at < items.length; at += MOST_AT_ONCE) {
      const some = items.slice(at, at + MOST_AT_ONCE)
      states.push(...(await this.#step((steps) => step(steps, some))))
    }
    return states
  }

  async #step<T>(step: (steps: Steps) => T): Promise<T> {
    const { steps } = this.#opened ?? (await this.#open())
    if (this.#isClosed) throw closedError()
    return this.#turns!.run(() => step(steps))
  }

  #open(): Promise<Opened> {
    if (this.#isClosed) return Promise.reject(closedError())
    this.#opening ??= this.#openFile().catch((error: unknown) => {
      // The next who asks tries again.
      this.#opening = undefined
      throw error
    })
    return this.#opening
  }

  async #openFile(): Promise<Opened> {
    const file = await this.#file()
    const connection = await this.#connect(file)
    const wakeUps = new WakeUps(file.path, this.#scope, this.#machine)
    const steps = new Steps(connection, this.#machine, this.#scope, wakeUps)
    const turns = new Turns(file.path)
    this.#wakeUps = wakeUps
    this.#turns = turns
    wakeUps.open()
    const tidy = new Tidy(connection, turns, steps, () => this.#machine.now())
    this.#tidying = new Tidying(this.#scope.clock, async () => {
      wakeUps.check()
      removeSilentBells(wakeUps.folder)
      await tidy.run()
    })
    this.#tidying.start()
    this.#warn(file.path)
    return (this.#opened = { connection, steps })
  }

  async #connect({ path, open }: SqliteFile): Promise<Connection> {
    for (;;) {
      if (this.#isClosed) throw closedError()
      try {
        const connection = Connection.open(open, path, this.#machine)
        this.#trouble = undefined
        return connection
      } catch (error) {
        this.#trouble = sqliteError(error, path)
        if (!isBusy(error)) throw this.#trouble
        await sleep(Math.random() * MOST_OPENING_PAUSE_MS)
      }
    }
  }

  #warn(path: string): void {
    const network = networkOf(path)
    if (network === undefined) return
    this.#scope.warn(
      `${path} seems to be on a network file system (${network}). SQLite's locks do not hold there: two could hold one of ours. Use a local disk.`,
    )
  }
}
