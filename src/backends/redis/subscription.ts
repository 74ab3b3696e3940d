/**
 * The channel of one manager on one master, over a connection of its own.
 *
 *   connecting → on → lost → connecting → on …      → closed, or gone with its master
 *
 * A connection can be dead without either side noticing, so while anybody waits it is pinged, and replaced when it does not
 * answer.
 */
import type { Clock, Timer } from '../../core/clock.js'
import type { Connection, RedisNode } from './client.js'

const PING_EVERY_MS = 2_000
/** Connecting, subscribing and pinging may each take so long, whatever the server or a sentinel does. */
const ANSWER_MS = 2_000
const MAX_PAUSE_MS = 1_000
/** How long a claim may be kept waiting for it. */
const PATIENCE_MS = 1_000
const CLOSE_MS = 500

export interface SubscriptionSettings {
  readonly channel: string
  readonly clock: Clock
  /** The master, through the client's connection as it is now; undefined if it is a master no more. */
  readonly find: () => Promise<RedisNode | undefined>
  /** Whether that is who answers at the other end: in a cluster another node may have its address by now. */
  readonly isRight: (connection: Connection) => Promise<boolean>
  readonly onMessage: (message: string) => void
  /** It is on again, and wake-ups may have been missed. */
  readonly onOn: () => void
  readonly onGone: () => void
}

export class Subscription {
  readonly #settings: SubscriptionSettings
  #connection: Connection | undefined
  #isOn = false
  #isClosed = false
  /** Ends the connection that there is, or the pause between two. */
  #drop: () => void = () => {}
  /** Settled when the attempt to connect that is under way has had an outcome. */
  #attempt: Promise<void> = Promise.resolve()
  #heardAt = 0
  #isPinging = false

  constructor(settings: SubscriptionSettings) {
    this.#settings = settings
    void this.#keepOpen()
  }

  /** Resolves when it is on, when an attempt has failed, or when it takes too long. */
  async settled(): Promise<void> {
    if (!this.#isOn) await this.#atMost(PATIENCE_MS, this.#attempt)
  }

  /** Called with each reply that says a claim waits there: finds out when the connection is dead. */
  check(subscriptionsOnServer: number): void {
    if (!this.#isOn) return
    if (subscriptionsOnServer === 0) this.#lose()
    else if (this.#settings.clock.now() - this.#heardAt > PING_EVERY_MS) this.doubt()
  }

  /** There may be nobody at the other end any more. */
  doubt(): void {
    if (this.#isOn && !this.#isPinging) void this.#ping(this.#connection!)
  }

  /** Whether its master is one still; if not it ends. */
  async checkMaster(): Promise<void> {
    const isGone = await this.#settings.find().then((node) => node === undefined, () => false)
    if (isGone) this.#end()
  }

  /** Waits until the server knows, so that nothing is granted any more to somebody who does not listen. */
  async close(): Promise<void> {
    const connection = this.#isOn ? this.#connection : undefined
    this.#isClosed = true
    if (connection) await this.#atMost(CLOSE_MS, connection.call('QUIT'))
    this.#lose()
  }

  async #keepOpen(): Promise<void> {
    for (let failures = 0; !this.#isClosed; failures++) {
      const wasOn = await this.#listen()
      if (wasOn) failures = 0
      if (this.#isClosed) return
      await this.#pause(Math.min(MAX_PAUSE_MS, 25 * 2 ** Math.min(failures, 6)))
    }
  }

  /** Over one connection, until that is over. Whether it was ever on. */
  async #listen(): Promise<boolean> {
    const over = new Promise<void>((resolve) => (this.#drop = resolve))
    const opening = this.#open()
    this.#attempt = opening.then(noop)
    const isOpen = await opening
    if (isOpen) await over
    this.#isOn = false
    this.#connection?.destroy()
    this.#connection = undefined
    return isOpen
  }

  async #open(): Promise<boolean> {
    const { clock, channel, find, isRight, onMessage, onOn } = this.#settings
    let isLate = false
    const connect = async () => {
      const node = await find()
      if (this.#isClosed || isLate) return
      if (!node) return this.#end()
      const hear = (message: string) => {
        this.#heardAt = clock.now()
        onMessage(message)
      }
      const connection = (this.#connection = node.connect({ onMessage: hear, onClose: this.#drop }))
      await connection.ready
      if (!(await isRight(connection))) return
      await connection.subscribe(channel)
      if (this.#isClosed || isLate) return
      this.#isOn = true
      this.#heardAt = clock.now()
    }
    // It fails while there is no server, or if this user may not subscribe: then everybody asks, by the heartbeat.
    await this.#atMost(ANSWER_MS, connect())
    isLate = true
    if (this.#isOn) onOn()
    return this.#isOn
  }

  #end(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#lose()
    this.#settings.onGone()
  }

  #lose(): void {
    this.#isOn = false
    this.#connection?.destroy()
    this.#drop()
  }

  async #ping(connection: Connection): Promise<void> {
    this.#isPinging = true
    let isAnswered = false
    await this.#atMost(ANSWER_MS, connection.call('PING').then(() => (isAnswered = true)))
    this.#isPinging = false
    if (this.#connection !== connection || this.#isClosed) return
    if (isAnswered) this.#heardAt = this.#settings.clock.now()
    else this.#lose()
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.#settings.clock.timer(ms, resolve, 'background')
      this.#drop = () => {
        timer.cancel()
        resolve()
      }
    })
  }

  /** Whatever comes of it. */
  async #atMost(ms: number, work: Promise<unknown>): Promise<void> {
    let timer: Timer | undefined
    const tooLong = new Promise<void>((resolve) => {
      timer = this.#settings.clock.timer(ms, resolve, 'background')
    })
    await Promise.race([work.then(noop, noop), tooLong])
    timer?.cancel()
  }
}

function noop(): void {}
