/**
 * One HTTP/2 connection to one endpoint: connecting → open → closing | closed. It is open with the first SETTINGS of
 * the server: a process that is stopped still accepts TCP. It does not keep our process alive; whoever waits for an
 * answer does that.
 */
import { connect, constants } from 'node:http2'
import type { ClientHttp2Session, ClientHttp2Stream, OutgoingHttpHeaders } from 'node:http2'
import { connectionError, silentError } from './errors.js'

export interface TlsOptions {
  /** PEM. */
  readonly ca?: string | Buffer
  readonly cert?: string | Buffer
  readonly key?: string | Buffer
  /** What the certificate has to be for, if not for the endpoint's host. */
  readonly servername?: string
  readonly rejectUnauthorized?: boolean
}

/** A server takes more than one in 5 s for an attack, and ends the connection. */
const PING_EVERY_MS = 6_000
const PING_ANSWER_MS = 3_000
const WINDOW_BYTES = 1 << 20
const SESSION_MEMORY_MB = 256
/** HTTP/2 has numbers for 2^30. */
const MOST_REQUESTS = 10 ** 8

const { NGHTTP2_CANCEL } = constants

export class Connection {
  readonly endpoint: string
  /** The moment at which something last came from there. */
  heardAt = 0
  #session: ClientHttp2Session
  #isOpen = false
  #trouble: Error | undefined
  #streams = 0
  #requests = 0
  #pingTimer: NodeJS.Timeout | undefined
  /** Until it is. */
  #notReady: ((error: Error) => void) | undefined

  static open(endpoint: string, tls: TlsOptions, timeoutMs: number): { connection: Connection; ready: Promise<void> } {
    const connection = new Connection(endpoint, tls)
    return { connection, ready: connection.#ready(timeoutMs) }
  }

  private constructor(endpoint: string, tls: TlsOptions) {
    this.endpoint = endpoint
    this.#session = connect(endpoint, {
      ...tls,
      settings: { enablePush: false, initialWindowSize: WINDOW_BYTES },
      maxSessionMemory: SESSION_MEMORY_MB,
    })
    this.#session.unref()
    this.#session.on('error', (error) => (this.#trouble ??= error))
    this.#session.on('goaway', () => (this.#isOpen = false))
    this.#session.on('close', () => this.destroy())
    // If TLS is refused after the handshake, Node's session ends without an 'error' and without a 'close'.
    this.#session.socket.on('error', (error) => this.destroy(error))
  }

  get isOpen(): boolean {
    return this.#isOpen && !this.#session.closed && !this.#session.destroyed
  }

  /** What ended it. */
  get trouble(): Error | undefined {
    return this.#trouble
  }

  request(headers: OutgoingHttpHeaders): ClientHttp2Stream {
    const stream = this.#session.request(headers, { endStream: false })
    this.#streams++
    if (++this.#requests === MOST_REQUESTS) this.retire()
    stream.once('close', () => this.#streams--)
    this.#pingTimer ??= this.#pingLater()
    return stream
  }

  heard(): void {
    this.heardAt = performance.now()
  }

  /** What is on it may end in its own time. */
  retire(): void {
    this.#isOpen = false
    if (!this.#session.closed) this.#session.close()
  }

  destroy(why?: Error): void {
    this.#isOpen = false
    this.#trouble ??= why
    clearTimeout(this.#pingTimer)
    if (!this.#session.destroyed) this.#session.destroy(undefined, NGHTTP2_CANCEL)
    this.#notReady?.(connectionError(this.endpoint, this.#trouble))
  }

  #ready(timeoutMs: number): Promise<void> {
    const session = this.#session
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.destroy(silentError(this.endpoint, timeoutMs)), timeoutMs).unref()
      session.once('remoteSettings', () => {
        clearTimeout(timer)
        this.#notReady = undefined
        session.setLocalWindowSize(WINDOW_BYTES)
        this.#isOpen = true
        this.heard()
        resolve()
      })
      this.#notReady = (error) => {
        clearTimeout(timer)
        reject(error)
      }
    })
  }

  /** Once nothing has been heard for that long: so our own questions, which are answered, are that far apart. */
  #pingLater(): NodeJS.Timeout {
    const silentMs = performance.now() - this.heardAt
    const inMs = silentMs < PING_EVERY_MS ? PING_EVERY_MS - silentMs + 1 : PING_EVERY_MS
    return setTimeout(() => this.#ping(), inMs).unref()
  }

  /** Only while something is open: else it is not needed, and not welcome. */
  #ping(): void {
    this.#pingTimer = undefined
    if (this.#streams === 0 || this.#session.destroyed) return
    const wasHeard = performance.now() - this.heardAt < PING_EVERY_MS
    this.#pingTimer = this.#pingLater()
    if (wasHeard) return
    const timer = setTimeout(() => this.destroy(silentError(this.endpoint, PING_ANSWER_MS)), PING_ANSWER_MS).unref()
    this.#session.ping((error) => {
      clearTimeout(timer)
      if (!error) this.heard()
    })
  }
}
