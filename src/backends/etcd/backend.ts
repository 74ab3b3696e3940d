/** etcd, as the core sees it: a claim is a key in a directory, and a list is a transaction. */
import type {
  Backend, Board, Claim, ClaimState, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope, Traits, VersionedStore,
} from '../../core/backend.js'
import { ConnectorError } from '../../core/errors.js'
import { follow, statesOf, type Asker } from './askers.js'
import { EtcdBoard } from './board.js'
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import { etcdError } from './errors.js'
import { SessionSteps } from './session-steps.js'
import { Steps } from './steps.js'
import { EtcdVersionedStore } from './versioned-store.js'

export class EtcdBackend implements Backend {
  readonly name = 'etcd'
  /** A transaction costs a member about as much as twenty locks that it has in it (measured: docs/adr/0019). */
  readonly flights = 1
  readonly store: VersionedStore
  readonly board: Board
  readonly #client: EtcdClient
  readonly #steps: Steps
  readonly #sessionSteps: SessionSteps
  readonly #traits: Traits
  #isClosed = false

  /** The client is the backend's own, and closed with it. */
  constructor(client: EtcdClient, scope: Scope) {
    this.#client = client
    this.#steps = new Steps(client, scope)
    const { leases } = this.#steps
    this.#sessionSteps = new SessionSteps(leases)
    this.#traits = {
      // Learned from what the server grants.
      get minTtlMs() {
        return leases.minTtlMs
      },
      fair: true, wakes: 'push', counted: true, tellsExpiry: false, keepsPlaces: false, heartbeatMs: Infinity, transactions: true, ownership: true,
    }
    this.board = new EtcdBoard(client, (claim) => this.#steps.known(claim), () => this.#checkOpen())
    this.store = new EtcdVersionedStore(client, () => this.#checkOpen(), (held) => this.#steps.findHeld(held))
  }

  get traits(): Traits {
    return this.#traits
  }

  get trouble(): Error | undefined {
    return this.#client.trouble
  }

  async ready(): Promise<void> {
    for (;;) {
      try {
        return await this.#steps.leases.learnMinTtl()
      } catch (error) {
        // A leader may be about to be elected. For how long that is waited for, `connect` says.
        if (error instanceof EtcdError && error.transient && !this.#isClosed) continue
        const { message, cause } = etcdError(error)
        throw new ConnectorError(message, { cause })
      }
    }
  }

  claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    return this.#each(claims, (claim, asker) => this.#stepsOf(claim).claim(claim, ifBusy, asker))
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    return this.#each<Renewal, RenewState>(renewals, (renewal, asker) => follow(this.#stepsOf(renewal.claim).renew(renewal), asker))
  }

  release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    return this.#each(claims, (claim, asker) => this.#stepsOf(claim).release(claim, asker))
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    this.#checkOpen()
    try {
      return await this.#steps.revoke(resource, when)
    } catch (error) {
      throw etcdError(error)
    }
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    this.#checkOpen()
    try {
      yield* this.#steps.inspect(prefix)
    } catch (error) {
      throw etcdError(error)
    }
  }

  async leaseTtlMs(lease: bigint): Promise<number | undefined> {
    this.#checkOpen()
    try {
      return await this.#steps.leases.ttlMs(lease)
    } catch (error) {
      throw etcdError(error)
    }
  }

  leaveLease(lease: bigint, waiting: 'stays' | 'goes'): Promise<void> {
    return this.#steps.leave(lease, waiting)
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    await this.#steps.close()
    await this.#client.close()
  }

  /** In one go: what is asked for in the same turn travels together. */
  async #each<Item, State>(items: readonly Item[], ask: (item: Item, asker: Asker<State>) => void) {
    this.#checkOpen()
    return statesOf(items, ask)
  }

  #stepsOf({ lease }: Claim): Steps | SessionSteps {
    return lease?.role === 'session' ? this.#sessionSteps : this.#steps
  }

  #checkOpen(): void {
    if (this.#isClosed) throw new ConnectorError('This etcd backend is closed.')
  }
}
