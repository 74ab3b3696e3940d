/**
 * One HTTP/2 connection to one endpoint: connecting → open → closing | closed. It is open with the first SETTINGS of
 * the server: a process that is stopped still accepts TCP. It does not keep our process alive; whoever waits for an
 * answer does that.
 */
import { connect as connectTcp, isIP, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { connectionError, silentError } from './errors.js'
import { RequestFields, type RequestAbout } from './headers.js'
import { onSilence } from './silence.js'
import { Http2, type ConnectionListener, type Http2Stream, type StreamListener } from './http2.js'

export interface TlsOptions {
  /** PEM. */
  readonly ca?: string | Buffer
  readonly cert?: string | Buffer
  readonly key?: string | Buffer
  /** What the certificate has to be for, if not for the endpoint's host. */
  readonly servername?: string
  readonly rejectUnauthorized?: boolean
}

/** Whoever waits for it to be open. */
interface Opening {
  readonly resolve: () => void
  readonly reject: (error: Error) => void
  timer: NodeJS.Timeout | undefined
}

/** A server takes more than one in 5 s for an attack, and ends the connection. */
const PING_EVERY_MS = 6_000
const PING_ANSWER_MS = 3_000
/** A timer that is later than this was kept from running. */
const STALL_MS = 50
/** HTTP/2 has numbers for 2^30. */
const MOST_REQUESTS = 10 ** 8

export class Connection implements ConnectionListener {
  readonly endpoint: string
  /** The moment at which something last came from there. */
  heardAt = 0
  readonly #http2: Http2
  readonly #fields: RequestFields
  #trouble: Error | undefined
  #requests = 0
  #pingTimer: NodeJS.Timeout | undefined
  /** Until it is known whether it works. */
  #opening: Opening | undefined

  static open(endpoint: string, tls: TlsOptions, timeoutMs: number): { connection: Connection; ready: Promise<void> } {
    const connection = new Connection(endpoint, tls)
    return { connection, ready: connection.#ready(timeoutMs) }
  }

  private constructor(endpoint: string, tls: TlsOptions) {
    this.endpoint = endpoint
    const url = new URL(endpoint)
    this.#fields = new RequestFields(url)
    const socket = connect(url, tls)
    socket.unref()
    // If the first address of a name does not work, the next has a handle of its own.
    socket.once('connect', () => socket.unref())
    this.#http2 = new Http2(socket, this)
  }

  get isOpen(): boolean {
    return this.#http2.isOpen
  }

  /** What ended it. */
  get trouble(): Error | undefined {
    return this.#trouble
  }

  /** With `data` it is the whole request, else more is to be sent. */
  request(about: RequestAbout, listener: StreamListener, data?: Buffer): Http2Stream {
    const stream = this.#http2.request(this.#fields.of(about), listener, data)
    if (++this.#requests === MOST_REQUESTS) this.retire()
    this.#pingTimer ??= this.#pingLater()
    return stream
  }

  send(stream: Http2Stream, data: Buffer): void {
    this.#http2.send(stream, data)
  }

  cancel(stream: Http2Stream): void {
    this.#http2.cancel(stream)
  }

  heard(): void {
    this.heardAt = performance.now()
  }

  /** What is on it may end in its own time. */
  retire(): void {
    this.#http2.retire()
  }

  destroy(why?: Error): void {
    this.#trouble ??= why
    this.#http2.destroy(why)
  }

  onOpen(): void {
    this.heard()
    this.#settle()?.resolve()
  }

  onClosed(error: Error | undefined): void {
    this.#trouble ??= error
    clearTimeout(this.#pingTimer)
    this.#settle()?.reject(connectionError(this.endpoint, this.#trouble))
  }

  #ready(timeoutMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#opening = { resolve, reject, timer: undefined }
      this.#giveUpIn(timeoutMs, timeoutMs)
    })
  }

  /** For as long as the event loop has stood still meanwhile, nothing could be heard. */
  #giveUpIn(ms: number, timeoutMs: number): void {
    const dueAt = performance.now() + ms
    this.#opening!.timer = setTimeout(() => {
      const lateMs = performance.now() - dueAt
      if (lateMs < STALL_MS) this.destroy(silentError(this.endpoint, timeoutMs))
      else this.#giveUpIn(Math.min(lateMs, timeoutMs), timeoutMs)
    }, ms).unref()
  }

  #settle(): Opening | undefined {
    const opening = this.#opening
    this.#opening = undefined
    clearTimeout(opening?.timer)
    return opening
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
    if (this.#http2.streams === 0) return
    const wasHeard = performance.now() - this.heardAt < PING_EVERY_MS
    this.#pingTimer = this.#pingLater()
    if (wasHeard) return
    const pingedAt = performance.now()
    onSilence(PING_ANSWER_MS, () => this.heardAt < pingedAt && this.destroy(silentError(this.endpoint, PING_ANSWER_MS))).unref()
    this.#http2.ping(() => this.heard())
  }
}

function connect({ protocol, hostname, port }: URL, tls: TlsOptions): Socket {
  // A name of version 6 is in brackets.
  const host = hostname.replace(/^\[|\]$/g, '')
  if (protocol === 'http:') return connectTcp({ host, port: Number(port || 80) })
  const servername = tls.servername ?? (isIP(host) === 0 ? host : '')
  return connectTls({ ...tls, host, port: Number(port || 443), servername, ALPNProtocols: ['h2'] })
}
