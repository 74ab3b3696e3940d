/**
 * A TCP proxy that breaks connections on purpose.
 *
 * A *rule* (delay, lose, hold, drop) acts on bytes of one or both directions and of all or some connections, from the moment
 * it is added until it is healed, on connections that exist as well as on new ones. Of several rules delays add up, a
 * hold stops what a delay would only slow, and a drop wins over both. Order is always kept.
 *
 * - delay: bytes arrive later. Those on their way when it is healed still take their time.
 * - lose:  some bytes have to be sent again, as TCP does it: they, and all behind them, arrive later.
 * - hold:  bytes stay in the proxy and arrive when it is healed, as TCP's retransmissions do after a short partition.
 * - drop:  bytes are gone for good, also those that a delay or a hold still had in the proxy.
 *
 * The end of a connection is never dropped, only held back: otherwise one that was closed in a black hole would stay
 * half-open for ever after it.
 */
import { connect, createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { anyPort } from './ports.js'

/** `up` is from the client to the server. */
export type Direction = 'up' | 'down'

export interface Connection {
  /** Counts from 0 in the order of acceptance. */
  readonly id: number
  /** The first 4 KiB that the client sent, as latin1: tells a subscriber from the others. */
  readonly sent: string
  /** What came in from either side, swallowed or not. */
  readonly bytes: Readonly<Record<Direction, number>>
}

/** Which connections: the one with that id, or those for which it is true. It is asked again for every chunk. */
export type Which = number | ((connection: Connection) => boolean)

export interface Scope {
  /** Both, if not given. */
  readonly direction?: Direction
  /** All, if not given. */
  readonly only?: Which
}

export interface Fault {
  heal(): void
}

/** May let a chunk pass, drop it, or replace it. Chunks are what TCP makes of messages; see `byFrame` in resp.ts. */
export type DataHook = (direction: Direction, chunk: Buffer, connectionId: number) => 'pass' | 'drop' | Uint8Array

export interface Target {
  readonly port: number
  readonly host?: string
}

export interface ProxyOptions {
  /** One server, or several: then each has a port of its own, and rules are about the connections to all of them. */
  readonly to: Target | readonly Target[]
  /** For jitter. */
  readonly seed?: number
  readonly onData?: DataHook
  /** Changes what servers say, before anything else looks at it: they may name each other's ports. */
  readonly translate?: (chunk: Buffer) => Buffer
}

export interface Proxy {
  readonly port: number
  /** In the order of the servers. */
  readonly ports: readonly number[]
  readonly connections: readonly Connection[]
  /** How long what is on its way will still be delayed, at most. */
  readonly behindMs: number
  /** Can be changed at any time. */
  onData: DataHook | undefined
  url(scheme?: string): string
  delay(ms: number, scope?: Scope & { readonly jitterMs?: number }): Fault
  /** Packets, with this probability. */
  lose(share: number, scope?: Scope): Fault
  hold(scope?: Scope): Fault
  drop(scope?: Scope): Fault
  /** Both directions: dropped, or with `keep` held. Connections stay open; new ones are accepted and hear nothing. */
  blackHole(options?: { readonly only?: Which; readonly keep?: boolean }): Fault
  /** Ends connections with a RST. */
  reset(only?: Which): void
  /** Ends connections in the ordinary way. */
  cut(only?: Which): void
  /** Stops listening; connections that exist go on. */
  refuse(): void
  /** Listens again, on the same port. */
  accept(): Promise<void>
  /** Takes back all rules and `refuse`. The hook stays. */
  heal(): Promise<void>
  close(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}

/** True for connections that have sent this text near their beginning, in any case. */
export function sends(text: string): (connection: Connection) => boolean {
  const wanted = text.toLowerCase()
  return (connection) => connection.sent.toLowerCase().includes(wanted)
}

export async function startProxy(options: ProxyOptions): Promise<Proxy> {
  const proxy = new FaultyProxy(options)
  await proxy.start()
  return proxy
}

interface Rule extends Scope {
  readonly kind: 'delay' | 'hold' | 'drop'
  /** How much later a chunk arrives. */
  readonly delayMs: (random: () => number) => number
}

/** Where connections to one server come in. */
interface Door {
  readonly to: Target
  port: number
  server: Server | undefined
}

/** What the rules make of a lane right now. */
type Mode = 'pass' | 'hold' | 'drop'

const SENT_CHARACTERS = 4096
const HIGH_WATER_BYTES = 1 << 20
const REFUSED_LISTEN_MS = 5_000
/** Of Linux: how long TCP waits before it sends again, twice as long each time. */
const RETRANSMISSION_MS = 200
const MOST_RETRANSMISSIONS = 5

class FaultyProxy implements Proxy {
  onData: DataHook | undefined
  readonly translate: (chunk: Buffer) => Buffer
  readonly #doors: readonly Door[]
  readonly #random: () => number
  readonly #rules = new Set<Rule>()
  readonly #pairs = new Set<Pair>()
  #nextId = 0
  #closed = false

  constructor(options: ProxyOptions) {
    this.#doors = [options.to].flat().map((to) => ({ to, port: 0, server: undefined }))
    this.#random = mulberry32(options.seed ?? 1)
    this.onData = options.onData
    this.translate = options.translate ?? ((chunk) => chunk)
  }

  async start(): Promise<void> {
    try {
      for (const door of this.#doors) await this.#open(door)
    } catch (error) {
      await this.close()
      throw error
    }
  }

  get port(): number {
    return this.#doors[0]!.port
  }

  get ports(): readonly number[] {
    return this.#doors.map(({ port }) => port)
  }

  get connections(): readonly Connection[] {
    return [...this.#pairs]
  }

  get behindMs(): number {
    return Math.max(0, ...[...this.#pairs].map((pair) => pair.behindMs))
  }

  url(scheme = 'redis'): string {
    return `${scheme}://127.0.0.1:${this.port}`
  }

  delay(ms: number, scope: Scope & { readonly jitterMs?: number } = {}): Fault {
    const { jitterMs = 0, ...where } = scope
    return this.#add({ ...where, kind: 'delay', delayMs: (random) => ms + random() * jitterMs })
  }

  lose(share: number, scope: Scope = {}): Fault {
    return this.#add({ ...scope, kind: 'delay', delayMs: (random) => retransmissionMs(share, random) })
  }

  hold(scope: Scope = {}): Fault {
    return this.#add({ ...scope, kind: 'hold', delayMs: () => 0 })
  }

  drop(scope: Scope = {}): Fault {
    return this.#add({ ...scope, kind: 'drop', delayMs: () => 0 })
  }

  blackHole({ keep = false, ...scope }: { readonly only?: Which; readonly keep?: boolean } = {}): Fault {
    return keep ? this.hold(scope) : this.drop(scope)
  }

  reset(only?: Which): void {
    for (const pair of this.#matching(only)) pair.reset()
  }

  cut(only?: Which): void {
    for (const pair of this.#matching(only)) pair.destroy()
  }

  refuse(): void {
    for (const door of this.#doors) {
      // Its callback would wait for the connections that are left.
      door.server?.close()
      door.server = undefined
    }
  }

  async accept(): Promise<void> {
    await Promise.all(this.#doors.map((door) => this.#reopen(door)))
  }

  async heal(): Promise<void> {
    this.#rules.clear()
    this.#pump()
    await this.accept()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.refuse()
    const gone = [...this.#pairs].map((pair) => pair.gone)
    for (const pair of this.#pairs) pair.destroy()
    await Promise.all(gone)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  modeOf(direction: Direction, connection: Connection): Mode {
    let mode: Mode = 'pass'
    for (const rule of this.#rules) {
      if (rule.kind === 'delay' || !applies(rule, direction, connection)) continue
      if (rule.kind === 'drop') return 'drop'
      mode = 'hold'
    }
    return mode
  }

  delayOf(direction: Direction, connection: Connection): number {
    let ms = 0
    for (const rule of this.#rules) {
      if (rule.kind !== 'delay' || !applies(rule, direction, connection)) continue
      ms += rule.delayMs(this.#random)
    }
    return ms
  }

  #add(rule: Rule): Fault {
    this.#rules.add(rule)
    this.#pump()
    return {
      heal: () => {
        if (this.#rules.delete(rule)) this.#pump()
      },
    }
  }

  #pump(): void {
    for (const pair of this.#pairs) pair.pump()
  }

  #matching(only: Which | undefined): Pair[] {
    return [...this.#pairs].filter((pair) => matches(only, pair))
  }

  /** On whichever port is free. */
  async #open(door: Door): Promise<void> {
    for (let attempt = 0; ; attempt++) {
      try {
        door.port = anyPort()
        return await this.#listen(door)
      } catch (error) {
        if (!isAddressInUse(error) || attempt >= 100) throw error
      }
    }
  }

  /** On the same port as before. */
  async #reopen(door: Door): Promise<void> {
    if (door.server || this.#closed) return
    const giveUpAt = performance.now() + REFUSED_LISTEN_MS
    for (;;) {
      try {
        return await this.#listen(door)
      } catch (error) {
        if (!isAddressInUse(error) || performance.now() > giveUpAt) throw error
        await sleep(20)
      }
    }
  }

  async #listen(door: Door): Promise<void> {
    // The server must not end our half by itself when the client ends its: the end has to wait its turn in the lane.
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => this.#connected(client, door.to))
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen({ port: door.port, host: '127.0.0.1', exclusive: true }, () => {
        server.off('error', reject)
        resolve()
      })
    })
    if (this.#closed) server.close()
    else door.server = server
  }

  #connected(client: Socket, to: Target): void {
    if (this.#closed) return void client.destroy()
    const server = connect({ ...to, host: to.host ?? '127.0.0.1', allowHalfOpen: true, noDelay: true })
    const pair = new Pair(this, this.#nextId++, client, server)
    this.#pairs.add(pair)
    void pair.gone.then(() => this.#pairs.delete(pair))
  }
}

/** One client's connection and ours to the server. */
class Pair implements Connection {
  readonly id: number
  readonly bytes = { up: 0, down: 0 }
  readonly gone: Promise<void>
  sent = ''
  readonly #sockets: readonly Socket[]
  readonly #lanes: readonly Lane[]

  constructor(proxy: FaultyProxy, id: number, client: Socket, server: Socket) {
    this.id = id
    this.#sockets = [client, server]
    this.#lanes = [new Lane(proxy, this, 'up', client, server), new Lane(proxy, this, 'down', server, client)]
    this.gone = Promise.all(this.#sockets.map(closed)).then(() => {
      for (const lane of this.#lanes) lane.stop()
    })
  }

  get behindMs(): number {
    return Math.max(...this.#lanes.map((lane) => lane.behindMs))
  }

  pump(): void {
    for (const lane of this.#lanes) lane.pump()
  }

  reset(): void {
    for (const socket of this.#sockets) resetSocket(socket)
  }

  destroy(): void {
    for (const socket of this.#sockets) socket.destroy()
  }
}

type Item = { readonly dueAt: number } & ({ readonly data: Buffer } | { readonly end: 'fin' | 'reset' })

/** One direction of one connection: a queue of bytes on their way, and at last its end. */
class Lane {
  readonly #proxy: FaultyProxy
  readonly #pair: Pair
  readonly #direction: Direction
  readonly #from: Socket
  readonly #to: Socket
  readonly #queue: Item[] = []
  #queuedBytes = 0
  #lastDueAt = 0
  #draining = false
  #timer: NodeJS.Timeout | undefined

  constructor(proxy: FaultyProxy, pair: Pair, direction: Direction, from: Socket, to: Socket) {
    this.#proxy = proxy
    this.#pair = pair
    this.#direction = direction
    this.#from = from
    this.#to = to
    from.on('data', (chunk: Buffer) => this.#received(chunk))
    from.on('end', () => this.#push({ end: 'fin', dueAt: this.#dueAt() }))
    // Reported by 'close' as well; without a listener it would throw.
    from.on('error', () => {})
    from.on('close', (hadError) => {
      if (hadError) this.#push({ end: 'reset', dueAt: this.#dueAt() })
    })
    to.on('drain', () => {
      this.#draining = false
      this.pump()
    })
  }

  get behindMs(): number {
    return Math.max(0, this.#lastDueAt - performance.now())
  }

  stop(): void {
    clearTimeout(this.#timer)
    this.#queue.length = 0
  }

  #received(raw: Buffer): void {
    const { bytes, sent, id } = this.#pair
    const chunk = this.#direction === 'down' ? this.#proxy.translate(raw) : raw
    bytes[this.#direction] += chunk.length
    if (this.#direction === 'up' && sent.length < SENT_CHARACTERS) {
      this.#pair.sent += chunk.toString('latin1', 0, SENT_CHARACTERS - sent.length)
    }
    const verdict = this.#proxy.onData?.(this.#direction, chunk, id) ?? 'pass'
    if (verdict === 'drop' || this.#proxy.modeOf(this.#direction, this.#pair) === 'drop') return
    this.#push({ data: verdict === 'pass' ? chunk : Buffer.from(verdict), dueAt: this.#dueAt() })
  }

  /** Never before what went ahead of it: that is what keeps the order in spite of jitter. */
  #dueAt(): number {
    const dueAt = performance.now() + this.#proxy.delayOf(this.#direction, this.#pair)
    return (this.#lastDueAt = Math.max(this.#lastDueAt, dueAt))
  }

  #push(item: Item): void {
    this.#queue.push(item)
    if ('data' in item) this.#queuedBytes += item.data.length
    this.pump()
    if (this.#queuedBytes > HIGH_WATER_BYTES) this.#from.pause()
  }

  pump(): void {
    clearTimeout(this.#timer)
    for (let item = this.#queue[0]; item && !this.#draining; item = this.#queue[0]) {
      const mode = this.#proxy.modeOf(this.#direction, this.#pair)
      if (mode === 'hold' || (mode === 'drop' && 'end' in item)) break
      const waitMs = mode === 'drop' ? 0 : item.dueAt - performance.now()
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.pump(), Math.ceil(waitMs))
        break
      }
      this.#queue.shift()
      if ('data' in item) {
        this.#queuedBytes -= item.data.length
        if (mode === 'pass' && this.#to.writable) this.#draining = !this.#to.write(item.data)
      } else if (item.end === 'fin') this.#to.end()
      else resetSocket(this.#to)
    }
    if (this.#queuedBytes <= HIGH_WATER_BYTES / 2 && this.#from.isPaused()) this.#from.resume()
  }
}

function retransmissionMs(share: number, random: () => number): number {
  let ms = 0
  for (let times = 0; times < MOST_RETRANSMISSIONS && random() < share; times++) ms += RETRANSMISSION_MS * 2 ** times
  return ms
}

function applies(rule: Rule, direction: Direction, connection: Connection): boolean {
  return (rule.direction === undefined || rule.direction === direction) && matches(rule.only, connection)
}

function matches(only: Which | undefined, connection: Connection): boolean {
  if (only === undefined) return true
  return typeof only === 'number' ? connection.id === only : only(connection)
}

/** Node leaks a socket that is reset while it still shuts down: no RST, no 'close', and whoever waits for that hangs. */
function resetSocket(socket: Socket): void {
  if (socket.writableEnded) socket.destroy()
  else socket.resetAndDestroy()
}

function closed(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    socket.once('close', () => resolve())
  })
}

function isAddressInUse(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'EADDRINUSE'
}

/** Small, fast, and the same on every machine for the same seed. */
function mulberry32(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}
