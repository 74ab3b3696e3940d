/**
 * What Redis tells us unasked: one subscription per manager and master, opened when the first claim has to wait there, or a while
 * after the first grant. In a cluster only what is subscribed on the node itself counts, so each node on which something is
 * held or waited for has its own; elsewhere there is one master, whose id is empty.
 *
 * A claim should be queued only while the subscription is on: one that cannot be told of its grant finds out by asking. Each time
 * it comes on, wake-ups may have been missed, and everything that waits looks again.
 */
import type { Scope } from '../../core/backend.js'
import type { Timer } from '../../core/clock.js'
import type { RedisClient, RedisNode } from './client.js'
import type { Keys } from './keys.js'
import type { ServerClocks } from './server-clocks.js'
import { Subscription } from './subscription.js'

const SOON_MS = 1_000

export interface WakeUpSettings {
  /** Whether a pushed grant can be believed as it is; if not, it only makes us ask. */
  readonly grantsCount: boolean
  readonly onEpoch: (resource: string, epoch: bigint) => void
}

export class WakeUps {
  readonly #client: RedisClient
  readonly #scope: Scope
  readonly #keys: Keys
  readonly #serverClocks: ServerClocks
  readonly #settings: WakeUpSettings
  readonly #subscriptions = new Map<string, Subscription>()
  readonly #soon = new Map<string, Timer>()
  #hasWaiters = false
  #isClosed = false

  constructor(client: RedisClient, scope: Scope, keys: Keys, serverClocks: ServerClocks, settings: WakeUpSettings) {
    this.#client = client
    this.#scope = scope
    this.#keys = keys
    this.#serverClocks = serverClocks
    this.#settings = settings
  }

  /** Opens the subscription; resolves when it is on, or when it takes too long. */
  async open(node: string): Promise<void> {
    if (!this.#isClosed) await this.#at(node).settled()
  }

  /** Whoever holds a lock should hear when it is revoked; but a process that locks once and ends need not be delayed by it. */
  openSoon(node: string): void {
    if (this.#subscriptions.has(node) || this.#soon.has(node) || this.#isClosed) return
    this.#soon.set(node, this.#scope.clock.timer(SOON_MS, () => void this.open(node), 'background'))
  }

  /** Called with each reply that says a claim waits. */
  check(node: string, subscriptionsOnServer: number): void {
    this.#hasWaiters = true
    if (!this.#isClosed) this.#at(node).check(subscriptionsOnServer)
  }

  /** The client has lost a connection: its server may be gone, and ours with it. */
  doubt(): void {
    for (const subscription of this.#subscriptions.values()) subscription.doubt()
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const timer of this.#soon.values()) timer.cancel()
    await Promise.all(Array.from(this.#subscriptions.values(), (subscription) => subscription.close()))
  }

  #at(node: string): Subscription {
    return this.#subscriptions.get(node) ?? this.#subscribe(node)
  }

  #subscribe(node: string): Subscription {
    // A new node often stands in for one that is gone.
    for (const other of this.#subscriptions.values()) void other.checkMaster()
    this.#soon.get(node)?.cancel()
    this.#soon.delete(node)
    const subscription = new Subscription({
      channel: this.#keys.channelOf(this.#scope.owner, node),
      clock: this.#scope.clock,
      find: () => this.#find(node),
      isRight: async (connection) => node === '' || (await connection.call('CLUSTER', 'MYID')) === node,
      onMessage: (message) => this.#receive(message, node),
      // Those who are queued only from now on have missed nothing.
      onOn: () => this.#hasWaiters && this.#scope.wake({ kind: 'look' }),
      onGone: () => {
        if (this.#subscriptions.get(node) === subscription) this.#subscriptions.delete(node)
        this.#scope.wake({ kind: 'look' })
      },
    })
    this.#subscriptions.set(node, subscription)
    return subscription
  }

  /** By the id that the node itself tells: addresses may be mapped on the way, and change hands. */
  async #find(node: string): Promise<RedisNode | undefined> {
    const masters = await this.#client.masters()
    if (node === '') return masters[0]
    let silent = 0
    const ids = masters.map(async (master) => {
      const id = await master.call('CLUSTER', 'MYID').catch(() => void silent++)
      if (id !== node) throw new Error('It is another.')
      return master
    })
    return Promise.any(ids).catch(() => {
      if (silent > 0 || masters.length === 0) throw new Error('It may be one of those that do not answer.')
      return undefined
    })
  }

  /** Anybody may publish on a channel: what does not look like ours is nothing to us. */
  #receive(message: string, node: string): void {
    const granted = GRANTED.exec(message)
    if (granted) {
      const [, claimId, epochText, serverMs, waiting, lock] = granted as unknown as [string, string, string, string, string, string]
      const resource = this.#keys.resourceOf(lock)
      const epoch = BigInt(epochText)
      const now = this.#scope.clock.now()
      const since = this.#settings.grantsCount ? this.#serverClocks.at(node).toLocal(Number(serverMs), now) : undefined
      this.#settings.onEpoch(resource, epoch)
      this.#scope.wake({ kind: 'granted', resource, claimId, epoch, since, waiting: Number(waiting) })
      return
    }
    const told = TOLD.exec(message)
    if (!told) return
    const [, kind, claimId, lock] = told as unknown as [string, 'revoked' | 'contended', string, string]
    this.#scope.wake({ kind, resource: this.#keys.resourceOf(lock), claimId })
  }
}

const GRANTED = /^granted ([0-9a-f]{32}) (\d{1,20}) (\d{1,16}) (\d{1,16}) (.+)$/s
const TOLD = /^(revoked|contended) ([0-9a-f]{32}) (.+)$/s
