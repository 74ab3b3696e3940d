/** SQLite, as the core sees it: each list is a step, and each step a transaction in its turn. */
import { realpathSync, statSync } from 'node:fs'
import { setImmediate as breathe, setTimeout as sleep } from 'node:timers/promises'
import type {
  Backend, Claim, ClaimState, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope, Traits, VersionedStore,
} from '../../../core/backend.js'
import { BackendError, ConfigurationError, ConnectorError, HoldfastError } from '../../../core/errors.js'
import { HEARTBEAT_MS } from '../liveness.js'
import { Tidying } from '../tidying.js'
import type { OpenDatabase } from './client.js'
import { Connection } from './connection.js'
import { Entries } from './entries.js'
import { closedError, isBusy, sqliteError } from './errors.js'
import { networkOf } from './file.js'
import type { Machine } from './machine.js'
import { Steps } from './steps.js'
import { removeSilentBells, Tidy } from './tidy.js'
import { Turns } from './turns.js'
import { WakeUps } from './wake-ups.js'

/** A transaction of so many takes a few milliseconds, in which nobody else can write and this process does nothing else. */
const MOST_AT_ONCE = 128
/** How often to look whether the file is still the one that others see, and of our boot. */
const LOOK_EVERY_MS = 1_000
/** Whoever opens the file while others make it waits for them. */
const MOST_OPENING_PAUSE_MS = 10

export interface SqliteFile {
  readonly path: string
  readonly open: OpenDatabase
}

/** What there is once the file is open. */
interface Opened {
  readonly path: string
  readonly inode: bigint | undefined
  readonly connection: Connection
  readonly turns: Turns
  readonly steps: Steps
  readonly entries: Entries
  readonly wakeUps: WakeUps
  readonly tidying: Tidying
}

export class SqliteBackend implements Backend {
  readonly name = 'sqlite'
  readonly traits: Traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: HEARTBEAT_MS, transactions: true, ownership: true }
  readonly store: VersionedStore = {
    read: (keys, at) => this.#step((_, entries) => entries.read(keys, at)),
    commit: (commit) => this.#step((_, entries) => entries.commit(commit)),
  }
  readonly #file: () => Promise<SqliteFile>
  readonly #scope: Scope
  readonly #machine: Machine
  #opening: Promise<Opened> | undefined
  #opened: Opened | undefined
  #lookedAt = -Infinity
  #trouble: Error | undefined
  /** Why it cannot be used any more. */
  #isOver: ConfigurationError | undefined
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
    return this.#each(renewals, (steps, some) => steps.renew(some)).catch((error: unknown) => {
      // Whoever took the file over has ended them.
      if (error === this.#isOver) return renewals.map(() => ({ status: 'lost' }) as const)
      throw error
    })
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
      // What was free was answered at once: without this, nothing else would be done until the last page.
      if (after) await breathe()
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    if (this.#opened) this.#end(this.#opened, closedError())
  }

  #end({ connection, turns, steps, wakeUps, tidying }: Opened, error: HoldfastError): void {
    tidying.stop()
    turns.close(error)
    // So that nobody waits for us; one try, since who is closed need not be waited for either.
    try {
      steps.leave()
    } catch {
      // It counts as gone in a moment anyway.
    }
    wakeUps.close()
    connection.close()
  }

  #each<Item, State>(items: readonly Item[], step: (steps: Steps, some: readonly Item[]) => readonly State[]): Promise<readonly State[]> {
    if (items.length > MOST_AT_ONCE) return this.#parts(items, step)
    return items.length === 0 ? Promise.resolve([]) : this.#step((steps) => step(steps, items))
  }

  async #parts<Item, State>(items: readonly Item[], step: (steps: Steps, some: readonly Item[]) => readonly State[]): Promise<readonly State[]> {
    const states: State[] = []
    for (let at = 0; at < items.length; at += MOST_AT_ONCE) {
      if (at > 0) await breathe()
      const some = items.slice(at, at + MOST_AT_ONCE)
      states.push(...(await this.#step((steps) => step(steps, some))))
    }
    return states
  }

  #step<T>(step: (steps: Steps, entries: Entries) => T): Promise<T> {
    if (this.#isClosed) return Promise.reject(closedError())
    if (this.#opened) this.#look(this.#opened)
    if (!this.#opened) return this.#open().then(() => this.#step(step))
    const { connection, turns, steps, entries } = this.#opened
    return turns.run(() => {
      const result = step(steps, entries)
      connection.keepLogShort()
      return result
    })
  }

  #open(): Promise<Opened> {
    if (this.#isClosed) return Promise.reject(closedError())
    // To open it again would be to take it back, and end what is held by now.
    if (this.#isOver) return Promise.reject(this.#isOver)
    this.#opening ??= this.#openFile().catch((error: unknown) => {
      // The next who asks tries again.
      this.#opening = undefined
      throw error
    })
    return this.#opening
  }

  async #openFile(): Promise<Opened> {
    const file = await this.#file()
    // Before it is opened: if another takes its place in between, the next look will tell.
    const inode = inodeOf(file.path)
    const connection = await this.#connect(file)
    if (this.#isClosed) {
      connection.close()
      throw closedError()
    }
    // Whichever way it is reached, its bells are in one place.
    const wakeUps = new WakeUps(realpathSync(file.path), this.#scope, this.#machine)
    const steps = new Steps(connection, this.#machine, this.#scope, wakeUps)
    const entries = new Entries(connection, this.#scope.prefix, (held) => steps.isHeld(held))
    const turns = new Turns(file.path)
    const tidy = new Tidy(connection, turns, steps, () => this.#machine.now())
    const tidying = new Tidying(this.#scope.clock, async () => {
      wakeUps.check()
      removeSilentBells(wakeUps.folder)
      await tidy.run()
    })
    wakeUps.open()
    tidying.start()
    this.#warn(file.path)
    return (this.#opened = { path: file.path, inode: inode ?? inodeOf(file.path), connection, turns, steps, entries, wakeUps, tidying })
  }

  #look(opened: Opened): void {
    const now = this.#machine.now()
    if (now - this.#lookedAt < LOOK_EVERY_MS) return
    this.#lookedAt = now
    const error = this.#replaced(opened) ?? this.#takenOver(opened)
    if (!error) return
    this.#end(opened, error)
    this.#opened = undefined
    this.#opening = undefined
  }

  /**
   * Somebody may delete the file, or put another in its place: SQLite would go on with the one that nobody else sees any more. What
   * was held in it is lost, as the next renewal finds out.
   */
  #replaced({ path, inode }: Opened): HoldfastError | undefined {
    if (inodeOf(path) === inode) return undefined
    this.#scope.warn(`${path} was deleted or replaced while it was in use. What was held in it is lost.`)
    return new BackendError(`${path} was deleted or replaced.`, { transient: true })
  }

  /**
   * We live, so our boot is not over: somebody else calls it otherwise. That is another machine, or a container that was given a
   * boot's id of its own. It took all that we hold for what a reboot has left, and its clock may not be ours.
   */
  #takenOver({ path, connection }: Opened): ConfigurationError | undefined {
    const boot = bootOf(connection)
    if (boot === undefined || boot === this.#machine.boot) return undefined
    return (this.#isOver = new ConfigurationError(
      `${path} is in use by another machine, or by a container that has a boot id of its own (/proc/sys/kernel/random/boot_id): it says that `
        + 'the machine was rebooted, and has ended everything that was held. Use a file of its own for each.',
    ))
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

/** Undefined if it cannot be read now. */
function bootOf(connection: Connection): string | undefined {
  try {
    return connection.snapshot(() => (connection.meta.find.all() as { boot: string }[])[0]?.boot)
  } catch {
    // The step that follows says why.
    return undefined
  }
}

/** Not opened for it: closing it again would drop SQLite's locks. */
function inodeOf(path: string): bigint | undefined {
  return statSync(path, { bigint: true, throwIfNoEntry: false })?.ino
}
