/** What one manager sees of a store in memory. */
import type {
  Backend, Claim, ClaimState, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope, Traits, VersionedStore, WakeUp,
} from '../../core/backend.js'
import { ConnectorError } from '../../core/errors.js'
import type { Member, Waiter } from './resource.js'
import type { MemoryStore } from './store.js'

export class MemoryBackend implements Backend, Member {
  readonly name = 'memory'
  // Nobody can die without the store, so waiters need no heartbeat.
  readonly traits: Traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: Number.POSITIVE_INFINITY, transactions: true, ownership: true }
  readonly waiting = new Set<Waiter>()
  readonly store: VersionedStore
  readonly #store: MemoryStore
  readonly #scope: Scope
  #closed = false

  constructor(store: MemoryStore, scope: Scope) {
    this.#store = store
    this.#scope = scope
    this.store = {
      read: async (keys, at) => {
        this.#checkOpen()
        return this.#store.entriesOf(this.prefix).read(keys, at)
      },
      commit: async (commit) => {
        this.#checkOpen()
        return this.#store.commit(this, commit)
      },
    }
  }

  get prefix(): string {
    return this.#scope.prefix
  }

  get owner(): string {
    return this.#scope.owner
  }

  now(): number {
    return this.#scope.clock.now()
  }

  /** Later, as from a store over a network: nobody is called back in the middle of a step. */
  tell(wakeUp: WakeUp): void {
    queueMicrotask(() => {
      if (!this.#closed) this.#scope.wake(wakeUp)
    })
  }

  async ready(): Promise<void> {
    this.#checkOpen()
  }

  async claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    this.#checkOpen()
    return claims.map((claim) => this.#store.claim(this, claim, ifBusy))
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    this.#checkOpen()
    return renewals.map((renewal) => this.#store.renew(this, renewal))
  }

  async release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    this.#checkOpen()
    return claims.map((claim) => this.#store.release(this, claim))
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    this.#checkOpen()
    return this.#store.revoke(this, resource, when)
  }

  async *inspect(prefix: string): AsyncGenerator<ResourceState> {
    this.#checkOpen()
    yield* this.#store.inspect(this, prefix)
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#store.leave(this)
  }

  #checkOpen(): void {
    if (this.#closed) throw new ConnectorError('This connection to the memory store is closed.')
  }
}
