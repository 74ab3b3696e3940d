/**
 * Just enough of Redis' wire format (RESP2 and RESP3) to ask a test server something without a client library, and to
 * tell single replies and pushes apart on their way through the proxy.
 */
import { connect, type Socket } from 'node:net'
import type { DataHook, Direction } from './tcp-proxy.js'

export type Reply = string | number | boolean | null | Error | Reply[]

/** One whole value of the stream. A client's request is one too: an array of strings. */
export interface Frame {
  readonly bytes: Buffer
  readonly value: Reply
  /** The first character: `$`, `*`, `-`, `>` for a RESP3 push … */
  readonly type: string
}

const CRLF = '\r\n'

interface Parsed {
  readonly value: Reply
  readonly end: number
}

function parse(buffer: Buffer, start: number): Parsed | undefined {
  const lineEnd = buffer.indexOf(CRLF, start)
  if (lineEnd < 0) return undefined
  const type = String.fromCharCode(buffer[start] ?? 0)
  const line = buffer.toString('utf8', start + 1, lineEnd)
  const end = lineEnd + 2
  switch (type) {
    case '+':
    case '(':
      return { value: line, end }
    case '-':
      return { value: new Error(line), end }
    case ':':
    case ',':
      return { value: Number(line), end }
    case '#':
      return { value: line === 't', end }
    case '_':
      return { value: null, end }
    case '$':
    case '=':
    case '!': {
      const length = Number(line)
      if (length < 0) return { value: null, end }
      if (buffer.length < end + length + 2) return undefined
      const text = buffer.toString('utf8', end, end + length)
      return { value: type === '!' ? new Error(text) : text, end: end + length + 2 }
    }
    case '*':
    case '~':
    case '>':
      return parseMany(buffer, end, Number(line))
    case '%':
      return parseMany(buffer, end, Number(line) * 2)
    case '|': {
      // Attributes come before the value that they describe and are part of its frame.
      const attributes = parseMany(buffer, end, Number(line) * 2)
      return attributes && parse(buffer, attributes.end)
    }
    default:
      throw new Error(`Not RESP: ${JSON.stringify(buffer.toString('latin1', start, start + 40))}`)
  }
}

function parseMany(buffer: Buffer, start: number, count: number): Parsed | undefined {
  if (count < 0) return { value: null, end: start }
  const values: Reply[] = []
  let end = start
  for (let i = 0; i < count; i++) {
    const item = parse(buffer, end)
    if (!item) return undefined
    values.push(item.value)
    end = item.end
  }
  return { value: values, end }
}

/** Cuts a byte stream into whole frames and keeps the beginning of the next one. */
export class FrameSplitter {
  #rest: Buffer = Buffer.alloc(0)

  push(chunk: Uint8Array): Frame[] {
    const buffer = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : Buffer.from(chunk)
    const frames: Frame[] = []
    let start = 0
    while (start < buffer.length) {
      const parsed = parse(buffer, start)
      if (!parsed) break
      const bytes = buffer.subarray(start, parsed.end)
      frames.push({ bytes, value: parsed.value, type: String.fromCharCode(bytes[0] ?? 0) })
      start = parsed.end
    }
    this.#rest = buffer.subarray(start)
    return frames
  }
}

/**
 * A hook for the proxy that decides about single requests, replies and pushes instead of chunks.
 *
 * Clients match replies to requests by order, so a *reply* dropped alone gives every later request the wrong answer.
 * No network does that: drop all that follows as well, and cut the connection. A push may well go missing alone.
 */
export function byFrame(
  decide: (direction: Direction, frame: Frame, connectionId: number) => 'pass' | 'drop',
): DataHook {
  const splitters = new Map<string, FrameSplitter>()
  return (direction, chunk, connectionId) => {
    const name = `${direction} ${connectionId}`
    let splitter = splitters.get(name)
    if (!splitter) splitters.set(name, (splitter = new FrameSplitter()))
    const passed = splitter.push(chunk).filter((frame) => decide(direction, frame, connectionId) === 'pass')
    return passed.length > 0 ? Buffer.concat(passed.map((frame) => frame.bytes)) : 'drop'
  }
}

export function encodeCommand(args: readonly (string | number)[]): string {
  const parts = args.map((arg) => String(arg))
  return `*${parts.length}${CRLF}${parts.map((part) => `$${Buffer.byteLength(part)}${CRLF}${part}${CRLF}`).join('')}`
}

export interface RespOptions {
  readonly port: number
  readonly host?: string
  readonly password?: string | undefined
  readonly timeoutMs?: number
  /** Gets what nobody asked for: lines of MONITOR, messages of a subscription. */
  readonly onUnasked?: (value: Reply) => void
}

/** One connection. Replies come in the order of the requests; an error reply rejects. */
export class RespConnection {
  readonly #socket: Socket
  readonly #timeoutMs: number
  readonly #waiting: { resolve(value: Reply): void; reject(error: Error): void }[] = []
  readonly #opened: Promise<void>
  #failure: Error | undefined

  private constructor(options: RespOptions) {
    this.#timeoutMs = options.timeoutMs ?? 5_000
    this.#socket = connect({ port: options.port, host: options.host ?? '127.0.0.1', noDelay: true })
    const splitter = new FrameSplitter()
    this.#opened = new Promise((resolve, reject) => {
      this.#socket.once('connect', resolve)
      this.#socket.once('close', () => reject(this.#failure ?? new Error('Connection closed')))
    })
    // Nobody may be waiting for the opening any more when the connection breaks.
    this.#opened.catch(() => {})
    this.#socket.on('data', (chunk) => {
      for (const { value } of splitter.push(chunk)) {
        const request = this.#waiting.shift()
        if (!request) options.onUnasked?.(value)
        else if (value instanceof Error) request.reject(value)
        else request.resolve(value)
      }
    })
    this.#socket.on('error', (error) => (this.#failure ??= error))
    this.#socket.on('close', () => {
      this.#failure ??= new Error('Connection closed')
      for (const request of this.#waiting.splice(0)) request.reject(this.#failure)
    })
  }

  static async open(options: RespOptions): Promise<RespConnection> {
    const connection = new RespConnection(options)
    try {
      await connection.#opened
      if (options.password !== undefined) await connection.call('AUTH', options.password)
    } catch (error) {
      connection.close()
      throw error
    }
    return connection
  }

  call(...args: (string | number)[]): Promise<Reply> {
    return new Promise((resolve, reject) => {
      if (this.#failure) return reject(this.#failure)
      const timer = setTimeout(() => {
        this.#failure ??= new Error(`No answer to ${String(args[0])} within ${this.#timeoutMs} ms`)
        this.#socket.destroy()
      }, this.#timeoutMs)
      this.#waiting.push({
        resolve: (value) => (clearTimeout(timer), resolve(value)),
        reject: (error) => (clearTimeout(timer), reject(error)),
      })
      this.#socket.write(encodeCommand(args))
    })
  }

  close(): void {
    this.#socket.destroy()
  }
}
