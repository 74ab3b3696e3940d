/** A database server, as the core sees it: each list is a call of a function there, and each call a transaction. */
import type {
  Backend, Claim, ClaimState, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope, Traits, VersionedStore,
} from '../../../core/backend.js'
import { ServerClock } from '../../../core/clock.js'
import { BackendError, ConnectorError, HoldfastError } from '../../../core/errors.js'
import { HEARTBEAT_MS } from '../liveness.js'
import { IDLE_MS, Tidying } from '../tidying.js'
import type { Database } from './database.js'
import { OwnClaims } from './own-claims.js'
import { Retries } from './retries.js'
import { Steps } from './steps.js'
import { SqlVersionedStore } from './versioned-store.js'
import { WakeUps } from './wake-ups.js'

/** Whoever closes waits no longer for the database to know, nor for a connection to end. */
const LEAVE_MS = 1_000

export class SqlServerBackend implements Backend {
  readonly name: string
  readonly traits: Traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: HEARTBEAT_MS, transactions: true, ownership: true }
  readonly store: VersionedStore
  readonly #database: Database
  readonly #claims = new OwnClaims()
  readonly #retries: Retries
  readonly #steps: Steps
  readonly #wakeUps: WakeUps
  readonly #tidying: Tidying
  #migrating: Promise<void> | undefined
  #hasWaited = false
  #isClosed = false

  constructor(database: Database, scope: Scope) {
    this.name = database.name
    this.#database = database
    const serverClock = new ServerClock()
    const claims = this.#claims
    this.#retries = new Retries(database, scope.clock, {
      isOver: () => this.#isClosed,
      // The next who answers may be another server, with another clock.
      onFailure: () => serverClock.forget(),
    })
    this.#wakeUps = new WakeUps(database, scope, claims, serverClock, () => this.#steps.readNews())
    this.#steps = new Steps({ database, scope, retries: this.#retries, claims, listener: this.#wakeUps, serverClock })
    const store = new SqlVersionedStore(database, this.#retries, scope)
    this.store = {
      read: (keys, at) => this.#step(() => store.read(keys, at)),
      commit: (commit) => this.#step(() => store.commit(commit)),
    }
    this.#tidying = new Tidying(scope.clock, () => this.#steps.tidy(IDLE_MS))
  }

  get trouble(): Error | undefined {
    return this.#retries.trouble
  }

  async ready(): Promise<void> {
    for (;;) {
      try {
        return await this.#migrated()
      } catch (error) {
        // It may be about to come back. For how long that is waited for, `connect` says.
        if (error instanceof BackendError && error.transient && !this.#isClosed) continue
        const { message, cause } = error as HoldfastError
        throw error instanceof HoldfastError && error.code !== 'BACKEND' ? error : new ConnectorError(message, { cause })
      }
    }
  }

  claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    this.#hasWaited ||= ifBusy === 'queue'
    return this.#step(() => this.#steps.claim(claims, ifBusy))
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    return this.#step(() => this.#steps.renew(renewals))
  }

  release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    return this.#step(() => this.#steps.release(claims))
  }

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.#step(() => this.#steps.revoke(resource, when))
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    await this.#step(() => Promise.resolve())
    yield* this.#steps.inspect(prefix)
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#tidying.stop()
    // So that nobody waits for us; it counts as gone in a moment anyway.
    if (this.#hasWaited) await inTime(this.#steps.leave())
    // A server that does not answer takes no leave either, and drivers would wait for it.
    await inTime(this.#wakeUps.close())
    await inTime(this.#database.close())
  }

  async #step<T>(step: () => Promise<T>): Promise<T> {
    if (this.#isClosed) throw new ConnectorError(`This ${this.name} backend is closed.`)
    if (!this.#isMigrated) await this.#migrated()
    return step()
  }

  #isMigrated = false

  #migrated(): Promise<void> {
    this.#migrating ??= this.#retries.run(() => this.#database.migrate()).then(
      () => {
        this.#isMigrated = true
        if (!this.#isClosed) this.#tidying.start()
      },
      (error: unknown) => {
        // The next who asks tries again.
        this.#migrating = undefined
        throw error
      },
    )
    return this.#migrating
  }
}

function inTime(work: Promise<unknown>): Promise<unknown> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, LEAVE_MS)))
  return Promise.race([work.catch(() => {}), timeout]).finally(() => clearTimeout(timer))
}
