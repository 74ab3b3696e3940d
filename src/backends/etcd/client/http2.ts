/**
 * HTTP/2 (RFC 9113) on a socket, as far as a client of gRPC needs it. Node's own makes an object of a dozen parts for each request, which
 * costs more than all else that a lock does here.
 *
 *   connection: starting → open (the server's first SETTINGS have come) → leaving (no new streams: GOAWAY, or we retire it) → closed
 *   stream:     waiting (the server takes no more at a time) → open → closed
 *
 * A stream's listener is told of everything at once, while a frame is being read.
 */
import type { Socket } from 'node:net'
import { FieldsDecoder, HpackError, type Fields } from './hpack.js'

export interface StreamListener {
  /** Those before an answer, or after it. */
  onFields(fields: Fields): void
  onData(chunk: Buffer): void
  /** By the server, or with the connection. `isRefused`: the server has certainly not begun with it. */
  onClosed(isRefused: boolean): void
}

export interface ConnectionListener {
  onOpen(): void
  /** Once. Without an error if nothing was wrong. */
  onClosed(error: Error | undefined): void
}

export interface Http2Stream {
  readonly id: number
}

const FRAME = { data: 0, headers: 1, reset: 3, settings: 4, push: 5, ping: 6, goAway: 7, windowUpdate: 8, continuation: 9 } as const
const END_STREAM = 0x1
const ACK = 0x1
const END_HEADERS = 0x4
const PADDED = 0x8
const PRIORITY = 0x20

const SETTING = { tableSize: 1, enablePush: 2, maxStreams: 3, initialWindow: 4, maxFrame: 5 } as const
const REFUSED_STREAM = 7
const CANCEL = 8

const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
const HEAD_BYTES = 9
/** What everybody may send until told otherwise; of a frame we never tell. */
const FIRST_WINDOW = 65_535
const MAX_FRAME = 16_384
/** Header fields that are sent may refer to so many bytes of earlier ones; ours do not, but who allows for less wants to be told. */
const FIRST_TABLE_SIZE = 4_096
const NO_TABLE = Buffer.of(0x20)
const NOTHING = Buffer.alloc(0)
const MAX_FIELDS_BYTES = 1 << 18
/** What may be on its way to us, in all and for each stream. */
const WINDOW = 1 << 20
/**
 * So long an answer to a ping waits for something that it can go along with. Go's server sends one with nearly every request that it
 * reads, to find out how far away we are, and a write of its own costs both sides as much as one of a request.
 */
const PONG_MS = 5

class Stream implements Http2Stream {
  id = 0
  readonly listener: StreamListener
  readonly fields: Buffer
  /** How much the server takes at the moment. */
  window = 0
  /** What waits for that. */
  unsent: Buffer | undefined
  /** Whether nothing comes after it. */
  isLast = false
  /** What has come since the server was last told that it may go on. */
  received = 0

  constructor(fields: Buffer, listener: StreamListener) {
    this.fields = fields
    this.listener = listener
  }
}

export class Http2 {
  readonly #socket: Socket
  readonly #listener: ConnectionListener
  readonly #decoder = new FieldsDecoder()
  readonly #streams = new Map<number, Stream>()
  #waiting: Stream[] = []
  #state: 'starting' | 'open' | 'leaving' | 'closed' = 'starting'
  #lastId = -1
  #maxStreams = Infinity
  #maxFrame = MAX_FRAME
  #firstWindow = FIRST_WINDOW
  #window = FIRST_WINDOW
  #received = 0
  /** Of the next header fields. Nothing more once it was sent: we have no table that could become smaller. */
  #fieldsBeginWith: Buffer | undefined
  /** What is to be written, in one piece. */
  #out: Buffer[] = []
  /** What pings of the server's have said, that is to be said back. */
  #pongs: Buffer[] = []
  #pongsDue: NodeJS.Timeout | undefined
  /** The beginning of a frame. */
  #rest: Buffer | undefined
  /** A block of header fields that goes on in the next frame. */
  #unfinished: { readonly id: number; readonly flags: number; readonly parts: Buffer[]; bytes: number } | undefined
  #onPong: (() => void) | undefined

  /** `socket`: connected, or about to be. */
  constructor(socket: Socket, listener: ConnectionListener) {
    this.#socket = socket
    this.#listener = listener
    socket.setNoDelay(true)
    socket.on('data', (chunk: Buffer) => this.#read(chunk))
    socket.on('error', (error) => this.destroy(error))
    socket.on('end', () => this.destroy())
    socket.on('close', () => this.destroy())
    const settings = Buffer.alloc(12)
    settings.writeUInt16BE(SETTING.enablePush, 0)
    settings.writeUInt16BE(SETTING.initialWindow, 6)
    settings.writeUInt32BE(WINDOW, 8)
    this.#out.push(PREFACE)
    this.#frame(FRAME.settings, 0, 0, settings)
    this.#allow(0, WINDOW - FIRST_WINDOW)
    this.#flush()
  }

  get isOpen(): boolean {
    return this.#state === 'open'
  }

  /** How many have not ended. */
  get streams(): number {
    return this.#streams.size + this.#waiting.length
  }

  /** `fields` is a block of them. With `data` it is the whole request, else more is to be sent. */
  request(fields: Buffer, listener: StreamListener, data?: Buffer): Http2Stream {
    const stream = new Stream(fields, listener)
    stream.unsent = data
    stream.isLast = data !== undefined
    this.#waiting.push(stream)
    this.#beginWaiting()
    this.#flush()
    return stream
  }

  send(stream: Http2Stream, data: Buffer): void {
    const one = stream as Stream
    one.unsent = one.unsent ? Buffer.concat([one.unsent, data]) : data
    if (this.#streams.get(one.id) === one) this.#sendData(one)
    this.#flush()
  }

  /** Its listener is told no more. */
  cancel(stream: Http2Stream): void {
    if (this.#streams.get(stream.id) === stream) {
      this.#reset(stream.id, CANCEL)
      this.#end(stream as Stream)
      this.#flush()
    } else {
      this.#waiting = this.#waiting.filter((one) => one !== stream)
      this.#closeIfDone()
    }
  }

  ping(onPong: () => void): void {
    this.#onPong = onPong
    this.#frame(FRAME.ping, 0, 0, Buffer.alloc(8))
    this.#flush()
  }

  /** What is on it may end in its own time. */
  retire(): void {
    if (this.#state === 'closed') return
    this.#state = 'leaving'
    this.#closeIfDone()
  }

  destroy(error?: Error): void {
    if (this.#state === 'closed') return
    this.#state = 'closed'
    clearTimeout(this.#pongsDue)
    this.#socket.destroy()
    const [begun, waiting] = [[...this.#streams.values()], this.#waiting]
    this.#streams.clear()
    this.#waiting = []
    this.#listener.onClosed(error)
    for (const { listener } of begun) listener.onClosed(false)
    for (const { listener } of waiting) listener.onClosed(true)
  }

  // Sending

  #begin(stream: Stream): void {
    this.#lastId += 2
    stream.id = this.#lastId
    stream.window = this.#firstWindow
    this.#streams.set(stream.id, stream)
    const begin = this.#fieldsBeginWith
    this.#frame(FRAME.headers, END_HEADERS, stream.id, begin?.length ? Buffer.concat([begin, stream.fields]) : stream.fields)
    if (begin) this.#fieldsBeginWith = NOTHING
    this.#sendData(stream)
  }

  #beginWaiting(): void {
    while (this.#waiting.length > 0 && this.#streams.size < this.#maxStreams) this.#begin(this.#waiting.shift()!)
  }

  /** As much as the server takes. */
  #sendData(stream: Stream): void {
    while (stream.unsent) {
      const { unsent } = stream
      const size = Math.max(0, Math.min(unsent.length, this.#maxFrame, this.#window, stream.window))
      if (size === 0 && unsent.length > 0) return
      const isWhole = size === unsent.length
      stream.unsent = isWhole ? undefined : unsent.subarray(size)
      stream.window -= size
      this.#window -= size
      this.#frame(FRAME.data, isWhole && stream.isLast ? END_STREAM : 0, stream.id, isWhole ? unsent : unsent.subarray(0, size))
    }
  }

  #sendMore(): void {
    for (const stream of this.#streams.values()) if (stream.unsent) this.#sendData(stream)
  }

  #reset(id: number, code: number): void {
    this.#frame(FRAME.reset, 0, id, number32(code))
  }

  #allow(id: number, bytes: number): void {
    this.#frame(FRAME.windowUpdate, 0, id, number32(bytes))
  }

  #frame(type: number, flags: number, id: number, payload: Buffer): void {
    const head = Buffer.allocUnsafe(HEAD_BYTES)
    head.writeUIntBE(payload.length, 0, 3)
    head[3] = type
    head[4] = flags
    head.writeUInt32BE(id, 5)
    this.#out.push(head, payload)
  }

  #answerPings(): void {
    for (const payload of this.#pongs) this.#frame(FRAME.ping, ACK, 0, payload)
    this.#pongs = []
  }

  #flush(): void {
    if (this.#out.length === 0) return
    if (this.#pongs.length > 0) this.#answerPings()
    const bytes = Buffer.concat(this.#out)
    this.#out = []
    if (this.#state !== 'closed') this.#socket.write(bytes)
  }

  // Receiving

  #read(chunk: Buffer): void {
    const bytes = this.#rest ? Buffer.concat([this.#rest, chunk]) : chunk
    let at = 0
    try {
      while (bytes.length - at >= HEAD_BYTES && this.#state !== 'closed') {
        const length = bytes.readUIntBE(at, 3)
        if (length > MAX_FRAME) throw new ProtocolError(`a frame of ${length} bytes`)
        const end = at + HEAD_BYTES + length
        if (end > bytes.length) break
        this.#receive(bytes[at + 3]!, bytes[at + 4]!, bytes.readUInt32BE(at + 5) & 0x7fffffff, bytes.subarray(at + HEAD_BYTES, end))
        at = end
      }
    } catch (error) {
      const isTheirs = error instanceof ProtocolError || error instanceof HpackError
      // After a mistake of a listener, too, it is not known any more what comes next.
      this.destroy(error as Error)
      if (isTheirs) return
      throw error
    }
    this.#rest = at < bytes.length ? bytes.subarray(at) : undefined
    this.#flush()
  }

  #receive(type: number, flags: number, id: number, payload: Buffer): void {
    if (this.#state === 'starting' && type !== FRAME.settings) throw new ProtocolError('another frame before the settings')
    if (this.#unfinished && type !== FRAME.continuation) throw new ProtocolError('another frame within header fields')
    if (type === FRAME.data) this.#data(flags, id, payload)
    else if (type === FRAME.headers) this.#fields(flags, id, unpadded(flags, payload, (flags & PRIORITY) === 0 ? 0 : 5))
    else if (type === FRAME.continuation) this.#moreFields(flags, id, payload)
    else if (type === FRAME.reset) this.#wasReset(id, payload)
    else if (type === FRAME.settings) this.#settings(flags, payload)
    else if (type === FRAME.ping) this.#pinged(flags, payload)
    else if (type === FRAME.goAway) this.#goAway(payload)
    else if (type === FRAME.windowUpdate) this.#allowed(id, uint32(payload, 0) & 0x7fffffff)
    else if (type === FRAME.push) throw new ProtocolError('a push')
  }

  #data(flags: number, id: number, payload: Buffer): void {
    const { length } = payload
    this.#received += length
    if (this.#received >= WINDOW / 2) {
      this.#allow(0, this.#received)
      this.#received = 0
    }
    const stream = this.#streams.get(id)
    // It was cancelled, and the server had not heard.
    if (!stream) return
    stream.received += length
    const isLast = (flags & END_STREAM) !== 0
    if (stream.received >= WINDOW / 2 && !isLast) {
      this.#allow(id, stream.received)
      stream.received = 0
    }
    stream.listener.onData(unpadded(flags, payload, 0))
    if (isLast) this.#ended(stream)
  }

  #fields(flags: number, id: number, payload: Buffer): void {
    if ((flags & END_HEADERS) === 0) this.#unfinished = { id, flags, parts: [payload], bytes: payload.length }
    else this.#allFields(flags, id, payload)
  }

  #moreFields(flags: number, id: number, payload: Buffer): void {
    const unfinished = this.#unfinished
    if (unfinished?.id !== id) throw new ProtocolError('header fields that go on from nowhere')
    unfinished.parts.push(payload)
    unfinished.bytes += payload.length
    if (unfinished.bytes > MAX_FIELDS_BYTES) throw new ProtocolError('header fields without an end')
    if ((flags & END_HEADERS) === 0) return
    this.#unfinished = undefined
    this.#allFields(unfinished.flags, id, Buffer.concat(unfinished.parts))
  }

  /** Also those that nobody wants are read: what comes after them may refer to them. */
  #allFields(flags: number, id: number, block: Buffer): void {
    const fields = this.#decoder.decode(block)
    const stream = this.#streams.get(id)
    if (!stream) return
    stream.listener.onFields(fields)
    if ((flags & END_STREAM) !== 0) this.#ended(stream)
  }

  /** By the server. If it has not heard all that we have to say, it does not want to. */
  #ended(stream: Stream): void {
    if (this.#streams.get(stream.id) !== stream) return
    if (!stream.isLast || stream.unsent) this.#reset(stream.id, CANCEL)
    this.#end(stream)
    stream.listener.onClosed(false)
  }

  #wasReset(id: number, payload: Buffer): void {
    const stream = this.#streams.get(id)
    if (!stream) return
    this.#end(stream)
    stream.listener.onClosed(uint32(payload, 0) === REFUSED_STREAM)
  }

  #end(stream: Stream): void {
    this.#streams.delete(stream.id)
    this.#beginWaiting()
    this.#closeIfDone()
  }

  #closeIfDone(): void {
    if (this.#state === 'leaving' && this.streams === 0) this.destroy()
  }

  #settings(flags: number, payload: Buffer): void {
    if ((flags & ACK) !== 0) return
    if (payload.length % 6 !== 0) throw new ProtocolError('settings that are cut off')
    for (let at = 0; at < payload.length; at += 6) {
      const [name, value] = [payload.readUInt16BE(at), uint32(payload, at + 2)]
      if (name === SETTING.tableSize && value < FIRST_TABLE_SIZE) this.#fieldsBeginWith ??= NO_TABLE
      else if (name === SETTING.maxStreams) this.#maxStreams = value
      else if (name === SETTING.maxFrame) this.#maxFrame = value
      else if (name === SETTING.initialWindow) {
        for (const stream of this.#streams.values()) stream.window += value - this.#firstWindow
        this.#firstWindow = value
      }
    }
    this.#frame(FRAME.settings, ACK, 0, Buffer.alloc(0))
    this.#sendMore()
    this.#beginWaiting()
    if (this.#state !== 'starting') return
    this.#state = 'open'
    this.#listener.onOpen()
  }

  #pinged(flags: number, payload: Buffer): void {
    if ((flags & ACK) === 0) return this.#pongLater(payload)
    this.#onPong?.()
    this.#onPong = undefined
  }

  #pongLater(payload: Buffer): void {
    this.#pongs.push(payload)
    this.#pongsDue ??= setTimeout(() => {
      this.#pongsDue = undefined
      this.#answerPings()
      this.#flush()
    }, PONG_MS).unref()
  }

  /** What comes after the last one that the server will answer is refused. */
  #goAway(payload: Buffer): void {
    const [last, code] = [uint32(payload, 0) & 0x7fffffff, uint32(payload, 4)]
    this.#state = 'leaving'
    const refused = [...this.#waiting, ...[...this.#streams.values()].filter(({ id }) => id > last)]
    this.#waiting = []
    for (const { id } of refused) this.#streams.delete(id)
    for (const { listener } of refused) listener.onClosed(true)
    if (code !== 0) this.destroy(new Error(`the server has ended the connection with code ${code}: ${payload.toString('latin1', 8)}`))
    else this.#closeIfDone()
  }

  #allowed(id: number, bytes: number): void {
    const stream = this.#streams.get(id)
    if (id === 0) this.#window += bytes
    else if (stream) stream.window += bytes
    this.#sendMore()
  }
}

class ProtocolError extends Error {
  constructor(what: string) {
    super(`this is not HTTP/2: ${what}`)
  }
}

function number32(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(4)
  bytes.writeUInt32BE(value)
  return bytes
}

function uint32(payload: Buffer, at: number): number {
  if (payload.length < at + 4) throw new ProtocolError('a frame that is too short')
  return payload.readUInt32BE(at)
}

/** `priority`: so many bytes of it are passed over. */
function unpadded(flags: number, payload: Buffer, priority: number): Buffer {
  const isPadded = (flags & PADDED) !== 0
  const start = (isPadded ? 1 : 0) + priority
  const end = payload.length - (isPadded ? (payload[0] ?? 0) : 0)
  if (start > end) throw new ProtocolError('more padding than there is')
  return payload.subarray(start, end)
}
