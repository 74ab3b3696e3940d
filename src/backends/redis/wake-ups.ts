/**
 * What Redis tells us unasked: one connection and one channel per manager, opened when the first claim has to wait, or a while
 * after the first grant.
 *
 *   off → connecting → on → connecting (the connection was lost) → on …
 *
 * A claim should be queued only while it is on: one that cannot be told of its grant says so, and finds out by asking.
 * Each time it comes on, wake-ups may have been missed, and everything that waits looks again. A connection can be dead without
 * either side noticing, so while anybody waits it is pinged, and replaced when it does not answer.
 */
import type { Scope } from '../../core/backend.js'
import type { ServerClock, Timer } from '../../core/clock.js'
import type { IoredisClient } from './client.js'
import type { Keys } from './keys.js'

const PING_EVERY_MS = 2_000
const PING_TIMEOUT_MS = 2_000
const MAX_RECONNECT_MS = 1_000
/** A user may be forbidden to subscribe: then the heartbeat of those who wait has to do. */
const PATIENCE_MS = 1_000
const CLOSE_MS = 500
const SOON_MS = 1_000
const RETRY_MS = 1_000

export class WakeUps {
  readonly #client: IoredisClient
  readonly #scope: Scope
  readonly #keys: Keys
  readonly #serverClock: ServerClock
  /** Whether a pushed grant can be believed as it is; if not, it only makes us ask. */
  readonly #grantsCount: boolean
  readonly #onEpoch: (epoch: bigint) => void
  #subscriber: IoredisClient | undefined
  #isOn = false
  #opening: { readonly done: Promise<void>; finish(): void } | undefined
  #hasWaiters = false
  #soon: Timer | undefined
  #heardAt = 0
  #pingedAt: number | undefined
  #isClosed = false

  constructor(
    client: IoredisClient,
    scope: Scope,
    keys: Keys,
    serverClock: ServerClock,
    { grantsCount, onEpoch }: { grantsCount: boolean; onEpoch: (epoch: bigint) => void },
  ) {
    this.#client = client
    this.#scope = scope
    this.#keys = keys
    this.#serverClock = serverClock
    this.#grantsCount = grantsCount
    this.#onEpoch = onEpoch
  }

  get isOn(): boolean {
    return this.#isOn
  }

  /** Opens the subscription; resolves when it is on, or when it takes too long. */
  async open(): Promise<void> {
    if (this.#isOn || this.#isClosed) return
    this.#subscriber ??= this.#connect()
    await this.#atMost(PATIENCE_MS, this.#whenOn())
  }

  /** Whoever holds a lock should hear when it is revoked; but a process that locks once and ends need not be delayed by it. */
  openSoon(): void {
    if (this.#subscriber || this.#soon || this.#isClosed) return
    this.#soon = this.#scope.clock.timer(SOON_MS, () => void this.open(), 'background')
  }

  /** Called with each reply that says a claim waits: finds out when the subscription is dead. */
  check(subscriptionsOnServer: number): void {
    this.#hasWaiters = true
    if (!this.#isOn || this.#isClosed) return
    if (subscriptionsOnServer === 0) return this.#reconnect()
    const now = this.#scope.clock.now()
    if (this.#pingedAt !== undefined) {
      if (now - this.#pingedAt > PING_TIMEOUT_MS) this.#reconnect()
    } else if (now - this.#heardAt > PING_EVERY_MS) {
      this.#ping(now)
    }
  }

  /** Waits until the server knows, so that nothing is granted any more to somebody who does not listen. */
  async close(): Promise<void> {
    this.#isClosed = true
    this.#soon?.cancel()
    this.#opening?.finish()
    const subscriber = this.#subscriber
    if (!subscriber) return
    if (this.#isOn) await this.#atMost(CLOSE_MS, subscriber.quit().then(noop, noop))
    subscriber.disconnect()
  }

  async #atMost(ms: number, work: Promise<void>): Promise<void> {
    let timer: Timer | undefined
    const tooLong = new Promise<void>((resolve) => {
      timer = this.#scope.clock.timer(ms, resolve, 'background')
    })
    await Promise.race([work, tooLong])
    timer?.cancel()
  }

  #whenOn(): Promise<void> {
    if (!this.#opening) {
      let finish!: () => void
      const done = new Promise<void>((resolve) => (finish = resolve))
      this.#opening = { done, finish }
    }
    return this.#opening.done
  }

  #connect(): IoredisClient {
    const subscriber = this.#client.duplicate({
      lazyConnect: false,
      // We subscribe ourselves, to know when that is done.
      autoResubscribe: false,
      autoResendUnfulfilledCommands: false,
      enableOfflineQueue: true,
      maxRetriesPerRequest: null,
      commandTimeout: undefined,
      retryStrategy: (times: number) => Math.min(MAX_RECONNECT_MS, 25 * 2 ** Math.min(times, 6)),
    })
    subscriber.on('ready', () => {
      // Listening is not work that should keep a process alive.
      subscriber.stream?.unref?.()
      void this.#subscribe(subscriber)
    })
    subscriber.on('close', () => {
      this.#isOn = false
    })
    // Without a listener ioredis prints them; the asking of those who wait is the remedy.
    subscriber.on('error', noop)
    subscriber.on('message', (_channel: string, message: string) => this.#receive(message))
    return subscriber
  }

  async #subscribe(subscriber: IoredisClient): Promise<void> {
    if (subscriber.status !== 'ready' || this.#isOn || this.#isClosed) return
    const tooLong = this.#scope.clock.timer(PING_TIMEOUT_MS, () => this.#reconnect(), 'background')
    try {
      await subscriber.subscribe(this.#keys.wake + this.#scope.owner)
      tooLong.cancel()
    } catch {
      tooLong.cancel()
      // The connection is gone again, or this user may not subscribe; until it can, everybody asks by the heartbeat.
      this.#scope.clock.timer(RETRY_MS, () => void this.#subscribe(subscriber), 'background')
      return
    }
    if (this.#isOn || this.#isClosed) return
    this.#isOn = true
    this.#pingedAt = undefined
    this.#heardAt = this.#scope.clock.now()
    this.#opening?.finish()
    this.#opening = undefined
    // Those who are queued only from now on have missed nothing.
    if (this.#hasWaiters) this.#scope.wake({ kind: 'look' })
  }

  #reconnect(): void {
    this.#isOn = false
    this.#pingedAt = undefined
    this.#subscriber?.disconnect(true)
  }

  #ping(now: number): void {
    this.#pingedAt = now
    const pong = () => {
      this.#pingedAt = undefined
      this.#heardAt = this.#scope.clock.now()
    }
    this.#subscriber!.ping().then(pong, noop)
  }

  /** Anybody may publish on a channel: what does not look like ours is nothing to us. */
  #receive(message: string): void {
    const now = this.#scope.clock.now()
    this.#heardAt = now
    const granted = GRANTED.exec(message)
    if (granted) {
      const [, claimId, epoch, serverMs, waiting, lock] = granted as unknown as [string, string, string, string, string, string]
      const since = this.#grantsCount ? this.#serverClock.toLocal(Number(serverMs), now) : undefined
      this.#onEpoch(BigInt(epoch))
      const resource = this.#keys.resourceOf(lock)
      this.#scope.wake({ kind: 'granted', resource, claimId, epoch: BigInt(epoch), since, waiting: Number(waiting) })
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

function noop(): void {}
