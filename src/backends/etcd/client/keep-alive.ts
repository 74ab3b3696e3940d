/**
 * Renewals of leases, all on one stream. An ask is: waiting (for the stream) → sent → answered | given up; a stream
 * that is lost takes those that were sent back to waiting.
 */
import { closedError, CODE, EtcdError, silentError } from './errors.js'
import { frame } from './frames.js'
import { readLease, writeLeaseId } from './messages.js'
import { onSilence } from './silence.js'
import { StandingStream, type StreamUser } from './standing-stream.js'
import { Watchdog } from './watchdog.js'
import { Reader } from './wire.js'
import type { Auth } from './auth.js'
import type { Lane } from './lane.js'

interface Ask {
  readonly id: bigint
  readonly silentMs: number
  readonly resolve: (ttlS: number) => void
  readonly reject: (error: EtcdError) => void
  readonly timer: NodeJS.Timeout
  sentAt: number
  /** Nobody waits for the answer any more, but it may still come, before that of the next ask for this lease. */
  isGivenUp: boolean
}

export class KeepAlives implements StreamUser {
  readonly path = '/etcdserverpb.Lease/LeaseKeepAlive'
  readonly #stream: StandingStream
  readonly #timeoutMs: number
  /** In the order in which they are sent, which is that of the answers. */
  #asks: Ask[] = []
  readonly #watchdog = new Watchdog(() => this.#asks, (ms) => this.#stream.drop(silentError('The keep-alive stream of etcd', ms)))
  #trouble: EtcdError | undefined
  #isClosed = false

  constructor(lane: Lane, auth: Auth, timeoutMs: number) {
    this.#stream = new StandingStream(lane, auth, this)
    this.#timeoutMs = timeoutMs
  }

  /** The TTL, or 0 if there is no such lease. */
  ask(id: bigint, silentMs: number): Promise<number> {
    if (this.#isClosed) return Promise.reject(closedError(false))
    return new Promise((resolve, reject) => {
      const timer = onSilence(this.#timeoutMs, () => this.#giveUp(ask))
      // Another endpoint should have its chance before the time is up.
      const limitMs = Math.min(silentMs, this.#timeoutMs / 2)
      const ask: Ask = { id, silentMs: limitMs, resolve, reject, timer, sentAt: 0, isGivenUp: false }
      this.#asks.push(ask)
      if (this.#stream.isOpen) this.#send(ask)
      else this.#stream.want()
    })
  }

  close(): void {
    this.#isClosed = true
    this.#watchdog.stop()
    this.#stream.close()
    for (const ask of this.#asks.splice(0)) {
      clearTimeout(ask.timer)
      ask.reject(closedError(true))
    }
  }

  isWanted(): boolean {
    return this.#asks.some(({ isGivenUp }) => !isGivenUp)
  }

  onOpen(): void {
    for (const ask of this.#asks) this.#send(ask)
  }

  onMessage(message: Buffer): void {
    this.#watchdog.heard()
    this.#trouble = undefined
    const { id, ttlS } = readLease(new Reader(message))
    const at = this.#asks.findIndex((ask) => ask.id === id)
    const [ask] = at < 0 ? [] : this.#asks.splice(at, 1)
    if (!ask) return
    clearTimeout(ask.timer)
    ask.resolve(ttlS)
  }

  onLost(error: EtcdError): void {
    this.#trouble = error
    this.#watchdog.stop()
    this.#asks = this.#asks.filter(({ isGivenUp }) => !isGivenUp)
  }

  #send(ask: Ask): void {
    ask.sentAt = performance.now()
    this.#stream.send(frame(ask.id, writeLeaseId))
    this.#watchdog.expect(ask.silentMs)
  }

  #giveUp(ask: Ask): void {
    if (!this.#asks.includes(ask)) return
    ask.isGivenUp = true
    if (!this.#stream.isOpen) this.#asks = this.#asks.filter((one) => one !== ask)
    const why = this.#trouble ? `: ${this.#trouble.message}` : ''
    ask.reject(
      new EtcdError(`No lease was renewed within ${this.#timeoutMs} ms${why}`, {
        code: CODE.deadlineExceeded,
        reason: 'timeout',
        mayBeDone: ask.sentAt > 0,
        transient: true,
        cause: this.#trouble,
      }),
    )
  }
}
