/**
 * Calls with one request and one answer: waiting (for a connection, a token) → sent → answered | waiting again |
 * failed.
 *
 * All tries share one deadline. What was certainly not carried out is tried again, elsewhere if there is another
 * endpoint. What may have been is tried again only if it may be carried out twice.
 */
import type { Auth } from './auth.js'
import type { Connection } from './connection.js'
import { closedError, CODE, connectionError, EtcdError, silentError } from './errors.js'
import { Deframer } from './frames.js'
import { statusOf } from './headers.js'
import type { Fields } from './hpack.js'
import type { Http2Stream, StreamListener } from './http2.js'
import type { Lane } from './lane.js'
import { onSilence } from './silence.js'

export interface CallKind {
  readonly path: string
  /** It may be carried out twice. */
  readonly repeatable: boolean
  /** Asks for a token rather than having one. */
  readonly anonymous?: boolean
}

export class Calls {
  readonly lane: Lane
  readonly auth: Auth
  readonly timeoutMs: number
  readonly #underWay = new Set<Call>()
  #isClosed = false

  constructor(lane: Lane, auth: Auth, timeoutMs: number) {
    this.lane = lane
    this.auth = auth
    this.timeoutMs = timeoutMs
  }

  /** `request` is a whole frame; the answer is without its frame. */
  call(kind: CallKind, request: Buffer): Promise<Buffer> {
    if (this.#isClosed) return Promise.reject(closedError(false))
    return new Promise((resolve, reject) => {
      const call = new Call(this, kind, request, resolve, reject)
      this.#underWay.add(call)
      call.start()
    })
  }

  ended(call: Call): void {
    this.#underWay.delete(call)
  }

  close(): void {
    this.#isClosed = true
    for (const call of this.#underWay) call.abort()
  }
}

type Resolve = (answer: Buffer) => void
type Reject = (error: EtcdError) => void

class Call {
  readonly #calls: Calls
  readonly #kind: CallKind
  readonly #request: Buffer
  readonly #resolve: Resolve
  readonly #reject: Reject
  #startedAt = 0
  #timer: NodeJS.Timeout | undefined
  /** The try under way. */
  #attempt: Attempt | undefined
  /** An earlier try may have been carried out. */
  #isUnsure = false
  #hasRenewedToken = false
  #isOver = false

  constructor(calls: Calls, kind: CallKind, request: Buffer, resolve: Resolve, reject: Reject) {
    this.#calls = calls
    this.#kind = kind
    this.#request = request
    this.#resolve = resolve
    this.#reject = reject
  }

  start(): void {
    this.#begin()
    this.#try()
  }

  /** All its time is before it. */
  #begin(): void {
    const { timeoutMs } = this.#calls
    this.#startedAt = performance.now()
    if (this.#kind.repeatable) this.#judgeIn(timeoutMs / 2, () => this.#halfTime())
    else this.#judgeIn(timeoutMs, () => this.#expire())
  }

  /** The timer keeps the process alive; the connection does not. One that was replaced may be about to judge: it does not. */
  #judgeIn(ms: number, judge: () => void): void {
    clearTimeout(this.#timer)
    const timer = onSilence(ms, () => {
      if (this.#timer === timer) judge()
    })
    this.#timer = timer
  }

  get #restMs(): number {
    return this.#startedAt + this.#calls.timeoutMs - performance.now()
  }

  abort(): void {
    const wasSent = this.#attempt !== undefined
    this.#attempt?.cancel()
    this.#fail(closedError(wasSent))
  }

  answered(attempt: Attempt, answer: Buffer): void {
    if (attempt !== this.#attempt) return
    this.#calls.lane.worked(attempt.connection)
    this.#end()
    this.#resolve(answer)
  }

  refused(attempt: Attempt, error: EtcdError): void {
    if (attempt !== this.#attempt) return
    this.#attempt = undefined
    const { auth, lane } = this.#calls
    if (error.reason === 'unauthenticated' && !this.#kind.anonymous && auth.isAsked) {
      auth.forget(attempt.token)
      if (!this.#hasRenewedToken) {
        this.#hasRenewedToken = true
        return this.#try()
      }
    }
    if (!error.transient) return this.#fail(error)
    lane.leave(attempt.connection, error, { reuse: true })
    this.#tryAgain(error)
  }

  #try(): void {
    if (this.#isOver) return
    const { lane, auth } = this.#calls
    const connection = lane.connection
    const token = this.#kind.anonymous ? '' : auth.token
    if (!connection) lane.ready().then(this.#tryNow, this.#notReady)
    else if (token === undefined) auth.obtain().then(this.#tryNow, this.#noToken)
    else this.#send(connection, token)
  }

  readonly #tryNow = () => this.#try()
  readonly #notReady = (error: EtcdError) => this.#tryAgain(error)
  /** It may have been asked for before this call, and have had less time. */
  readonly #noToken = (error: EtcdError) => (error.transient ? this.#tryAgain(error) : this.#fail(error))

  #send(connection: Connection, token: string): void {
    // Its timer would have ended it, had the event loop not stood still: that time is given back, as connections have it.
    if (this.#restMs <= 0) this.#begin()
    const attempt = new Attempt(this, connection, token)
    this.#attempt = attempt
    attempt.send(this.#kind.path, this.#restMs, this.#request)
  }

  #tryAgain(error: EtcdError): void {
    if (this.#isOver) return
    this.#isUnsure ||= error.mayBeDone
    if (error.mayBeDone && !this.#kind.repeatable) return this.#fail(error)
    if (this.#calls.lane.retryInMs >= this.#restMs) return this.#fail(error)
    this.#try()
  }

  /** Of what may be carried out twice, a silent connection is not waited for to the end. */
  #halfTime(): void {
    if (this.#isOver) return
    const halfMs = this.#calls.timeoutMs / 2
    this.#judgeIn(halfMs, () => this.#expire())
    const attempt = this.#attempt
    if (!attempt?.isSilentFor(halfMs / 2)) return
    attempt.cancel()
    this.#attempt = undefined
    const error = silentError(attempt.connection.endpoint, halfMs).afterUnsureTry()
    this.#calls.lane.leave(attempt.connection, error, { reuse: false })
    this.#tryAgain(error)
  }

  #expire(): void {
    if (this.#isOver) return
    const { lane, timeoutMs } = this.#calls
    const attempt = this.#attempt
    // Of what was sent, trouble with other endpoints says nothing.
    const trouble = attempt ? undefined : lane.trouble
    const why = trouble ? `etcd cannot be reached: ${trouble.message}` : `etcd has not answered within ${timeoutMs} ms`
    const error = new EtcdError(why, {
      code: trouble ? CODE.unavailable : CODE.deadlineExceeded,
      reason: trouble ? 'unreachable' : 'timeout',
      mayBeDone: attempt !== undefined,
      transient: true,
      cause: trouble,
    })
    if (attempt) {
      lane.leave(attempt.connection, error, { reuse: !attempt.isSilentFor(timeoutMs / 4) })
      attempt.cancel()
    }
    this.#fail(error)
  }

  #fail(error: EtcdError): void {
    if (this.#isOver) return
    this.#end()
    this.#reject(this.#isUnsure ? error.afterUnsureTry() : error)
  }

  #end(): void {
    this.#isOver = true
    this.#attempt = undefined
    clearTimeout(this.#timer)
    this.#calls.ended(this)
  }
}

/** One request on one connection. */
class Attempt implements StreamListener {
  readonly connection: Connection
  readonly token: string
  readonly #call: Call
  readonly #sentAt = performance.now()
  #stream: Http2Stream | undefined
  #answer: Buffer | undefined
  #deframer: Deframer | undefined
  #status: EtcdError | null | undefined
  #isSettled = false

  constructor(call: Call, connection: Connection, token: string) {
    this.#call = call
    this.connection = connection
    this.token = token
  }

  /** Nothing at all has come from there since it was sent, and that was so long ago. */
  isSilentFor(ms: number): boolean {
    return this.connection.heardAt < this.#sentAt && performance.now() - this.#sentAt >= ms
  }

  send(path: string, timeoutMs: number, request: Buffer): void {
    this.#stream = this.connection.request({ path, token: this.token, timeoutMs }, this, request)
  }

  cancel(): void {
    this.#isSettled = true
    if (this.#stream) this.connection.cancel(this.#stream)
  }

  onFields(fields: Fields): void {
    this.connection.heard()
    this.#status = statusOf(fields)
    this.#settle()
  }

  onData(chunk: Buffer): void {
    // Nearly always the whole answer comes at once.
    if (!this.#deframer && chunk.length >= 5 && chunk.readUInt32BE(1) === chunk.length - 5) {
      this.#answer = chunk.subarray(5)
      return
    }
    this.#deframer ??= new Deframer()
    this.#deframer.push(chunk, (message) => (this.#answer = message))
  }

  onClosed(isRefused: boolean): void {
    this.#settle()
    if (this.#isSettled) return
    this.#call.refused(this, connectionError(this.connection.endpoint, this.connection.trouble, !isRefused))
  }

  #settle(): void {
    if (this.#isSettled) return
    this.#isSettled = true
    if (this.#status) this.#call.refused(this, this.#status)
    else if (this.#status === null && this.#answer) this.#call.answered(this, this.#answer)
    else this.#isSettled = false
  }
}
