/**
 * A stream of messages in both directions that is there whenever it is wanted: none → opening → open → (lost) opening …
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Auth } from './auth.js'
import type { Connection } from './connection.js'
import { connectionError, unreadableError, type EtcdError } from './errors.js'
import { Deframer } from './frames.js'
import { statusOf } from './headers.js'
import type { Http2Stream } from './http2.js'
import type { Lane } from './lane.js'
import { WireError } from './wire.js'

export interface StreamUser {
  readonly path: string
  isWanted(): boolean
  /** Everything that has to be said is said again. */
  onOpen(): void
  onMessage(message: Buffer): void
  onLost(error: EtcdError): void
}

const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 5_000

export class StandingStream {
  readonly #lane: Lane
  readonly #auth: Auth
  readonly #user: StreamUser
  readonly #closing = new AbortController()
  #current: OpenStream | undefined
  #isOpening = false
  /** Since anything was last heard on a stream: another would not be any better. */
  #hasNewToken = false
  #generation = 0

  constructor(lane: Lane, auth: Auth, user: StreamUser) {
    this.#lane = lane
    this.#auth = auth
    this.#user = user
  }

  get isOpen(): boolean {
    return this.#current !== undefined
  }

  /** Tells one stream from the next. */
  get generation(): number {
    return this.#generation
  }

  /** It is wanted from now on; `onOpen` tells when it is there, if it is not. */
  want(): void {
    if (!this.#current && !this.#isOpening && !this.#closing.signal.aborted) void this.#open()
  }

  send(frame: Buffer): void {
    const current = this.#current
    if (current) current.connection.send(current.stream, frame)
  }

  /** It is of no use as it is: the next one is at another endpoint. */
  drop(why: EtcdError): void {
    const current = this.#current
    if (!current) return
    // Whatever else is on this connection is not better off.
    this.#lane.leave(current.connection, why, { reuse: false })
    current.connection.destroy(why)
    this.#lost(current, why)
  }

  /** The token it was opened with is not good any more. */
  renewToken(why: EtcdError): void {
    const current = this.#current
    if (!current) return
    this.#forgetToken(current.token)
    current.connection.cancel(current.stream)
    this.#lost(current, why)
  }

  close(): void {
    this.#closing.abort()
    const current = this.#current
    this.#current = undefined
    current?.connection.cancel(current.stream)
  }

  async #open(): Promise<void> {
    this.#isOpening = true
    const { signal } = this.#closing
    for (let tries = 0; this.#user.isWanted() && !signal.aborted; tries++) {
      let isConnected = false
      try {
        const connection = this.#lane.connection ?? (await this.#lane.ready())
        isConnected = true
        if (this.#auth.token === undefined) await this.#auth.obtain()
        // Either may have gone while the other was awaited.
        if (signal.aborted) break
        if (!connection.isOpen || this.#auth.token === undefined) continue
        this.#begin(connection, this.#auth.token)
        break
      } catch {
        // A connection that fails has its own pauses, by endpoint. What is wrong otherwise will not be right so soon.
        if (!isConnected && this.#lane.trouble?.transient) continue
        const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** tries, LONGEST_PAUSE_MS) * (0.5 + Math.random())
        await sleep(pauseMs, undefined, { ref: false, signal }).catch(() => {})
      }
    }
    this.#isOpening = false
  }

  #begin(connection: Connection, token: string): void {
    const deframer = new Deframer()
    let status: EtcdError | null | undefined
    const isCurrent = () => this.#current === current
    const stream = connection.request({ path: this.#user.path, token }, {
      onFields: (fields) => (status = statusOf(fields)),
      onData: (chunk) => {
        connection.heard()
        if (!isCurrent()) return
        this.#lane.worked(connection)
        this.#hasNewToken = false
        try {
          deframer.push(chunk, (message) => this.#user.onMessage(message))
        } catch (error) {
          if (!(error instanceof WireError)) throw error
          this.drop(unreadableError(error))
        }
      },
      onClosed: () => {
        if (!isCurrent()) return
        const why = status ?? connectionError(connection.endpoint, connection.trouble)
        if (why.reason === 'unauthenticated' && this.#auth.isAsked && !this.#hasNewToken) this.#forgetToken(token)
        else this.#lane.leave(connection, why, { reuse: true })
        this.#lost(current, why)
      },
    })
    const current: OpenStream = { stream, connection, token }
    this.#current = current
    this.#generation++
    this.#user.onOpen()
  }

  #forgetToken(token: string): void {
    this.#hasNewToken = true
    this.#auth.forget(token)
  }

  #lost(current: OpenStream, why: EtcdError): void {
    if (this.#current !== current) return
    this.#current = undefined
    if (this.#closing.signal.aborted) return
    this.#user.onLost(why)
    if (this.#user.isWanted()) this.want()
  }
}

interface OpenStream {
  readonly stream: Http2Stream
  readonly connection: Connection
  readonly token: string
}
