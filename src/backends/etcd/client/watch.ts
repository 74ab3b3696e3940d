/**
 * Watches, all on one stream. One is: new → asked for → there → (the stream is lost) new … → closed. The server answers
 * requests for watches in their order, and gives each a number, which events carry.
 */
import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Auth } from './auth.js'
import { CODE, EtcdError, silentError, statusError } from './errors.js'
import { frame } from './frames.js'
import type { Lane } from './lane.js'
import { readWatchResponse, writeWatchCancel, writeWatchCreate } from './messages.js'
import type { WatchEvent, WatchRequest, WatchResponse } from './messages.js'
import { StandingStream, type StreamUser } from './standing-stream.js'
import { Watchdog } from './watchdog.js'
import { Reader } from './wire.js'

export interface WatchListener {
  /** It is there as of this revision, also after it was lost: then all between may have been missed. */
  onCreated(revision: bigint): void
  /** Those of one revision are never split. */
  onEvents(events: readonly WatchEvent[], revision: bigint): void
  /** The stream is gone. It is being made again. */
  onLost(): void
  /** The server does not let us watch this. It is asked again from time to time. */
  onRefused?(error: EtcdError): void
}

export interface Watch {
  close(): void
}

interface Entry {
  readonly request: WatchRequest
  readonly listener: WatchListener
  readonly isAbout: (key: Buffer) => boolean
  /** From then on what it began with is of no interest. */
  hasBegun: boolean
  id: bigint | undefined
  /** The first fragments of a larger answer. */
  events: WatchEvent[]
  isClosed: boolean
  refusals: number
  /** Since it was last asked for. */
  sentAt: number
  silentMs: number
}

const FIRST_PAUSE_MS = 500
const LONGEST_PAUSE_MS = 15_000
/** So many refused tokens are replaced without a pause. */
const TOKENS_AT_ONCE = 2
/** A range that ends with this goes on to the last key. */
const NO_END = Buffer.alloc(1)

/** As `etcd grpc-proxy` does, which does not answer in the order in which it is asked. */
const MIXED_UP = new EtcdError('What answers as etcd tells one watch of what is another’s', {
  code: CODE.internal, reason: 'other', transient: true,
})

export class Watches implements StreamUser {
  readonly path = '/etcdserverpb.Watch/Watch'
  readonly #stream: StandingStream
  /** Whether we may read there: a read of the same range tells a missing right from a token that has expired. */
  readonly #mayRead: (request: WatchRequest) => Promise<void>
  readonly #entries = new Set<Entry>()
  readonly #byId = new Map<bigint, Entry>()
  #askedFor: Entry[] = []
  /** A watch may have nothing to tell for hours, but whoever asks for one is answered. */
  readonly #watchdog = new Watchdog(() => this.#askedFor, (silentMs) => this.#isSilent(silentMs))
  readonly #leastPatienceMs: number
  #patienceMs: number
  readonly #closing = new AbortController()

  constructor(lane: Lane, auth: Auth, timeoutMs: number, mayRead: (request: WatchRequest) => Promise<void>) {
    this.#stream = new StandingStream(lane, auth, this)
    // Each watch that is refused waits for it.
    setMaxListeners(0, this.#closing.signal)
    // As with calls, another endpoint should have its chance before whoever waits has lost patience.
    this.#leastPatienceMs = timeoutMs / 2
    this.#patienceMs = this.#leastPatienceMs
    this.#mayRead = mayRead
  }

  watch(request: WatchRequest, listener: WatchListener): Watch {
    const isAbout = within(request)
    const entry: Entry = { request, listener, isAbout, hasBegun: false, id: undefined, events: [], isClosed: false, refusals: 0, sentAt: 0, silentMs: 0 }
    this.#entries.add(entry)
    if (this.#stream.isOpen) this.#askFor(entry)
    else this.#stream.want()
    return { close: () => this.#end(entry) }
  }

  close(): void {
    this.#closing.abort()
    for (const entry of this.#entries) entry.isClosed = true
    this.#entries.clear()
    this.#byId.clear()
    this.#watchdog.stop()
    this.#stream.close()
  }

  isWanted(): boolean {
    return this.#entries.size > 0
  }

  onOpen(): void {
    this.#stream.send(Buffer.concat([...this.#entries].map((entry) => this.#asking(entry))))
  }

  onLost(): void {
    const wereThere = [...this.#byId.values()]
    this.#byId.clear()
    this.#watchdog.stop()
    this.#askedFor = []
    for (const entry of wereThere) {
      entry.id = undefined
      entry.events = []
    }
    for (const { isClosed, listener } of wereThere) if (!isClosed) listener.onLost()
  }

  onMessage(message: Buffer): void {
    this.#watchdog.heard()
    const response = readWatchResponse(new Reader(message))
    if (response.created) this.#created(response)
    else if (response.canceled) this.#canceled(response)
    else if (response.events.length > 0) this.#happened(response)
  }

  /** On the stream as it is. Answers go by the order: one that was not asked would be given those of the others. */
  #askFor(entry: Entry): void {
    if (this.#stream.isOpen) this.#stream.send(this.#asking(entry))
  }

  #asking(entry: Entry): Buffer {
    entry.sentAt = performance.now()
    entry.silentMs = this.#patienceMs
    this.#askedFor.push(entry)
    this.#watchdog.expect(entry.silentMs)
    const { startRevision: _, ...fromNow } = entry.request
    return frame(entry.hasBegun ? fromNow : entry.request, writeWatchCreate)
  }

  /** One that is only slow would never get to answer if it were given no more time. */
  #isSilent(silentMs: number): void {
    this.#patienceMs = Math.min(this.#patienceMs * 2, LONGEST_PAUSE_MS)
    this.#stream.drop(silentError('The watch stream of etcd', silentMs))
  }

  #created({ watchId, canceled, cancelReason, revision }: WatchResponse): void {
    const entry = this.#askedFor.shift()
    if (!entry) return
    this.#patienceMs = this.#leastPatienceMs
    if (canceled) return void this.#refused(entry, cancelReason)
    if (entry.isClosed) return this.#stream.send(frame(watchId, writeWatchCancel))
    entry.id = watchId
    entry.hasBegun = true
    entry.refusals = 0
    this.#byId.set(watchId, entry)
    entry.listener.onCreated(revision)
  }

  #canceled({ watchId, compactRevision, cancelReason }: WatchResponse): void {
    const entry = this.#byId.get(watchId)
    if (!entry) return
    this.#byId.delete(watchId)
    entry.id = undefined
    entry.events = []
    if (entry.isClosed) return
    // What it should have begun with has been compacted.
    if (compactRevision > 0n) return this.#askFor(entry)
    entry.listener.onLost()
    void this.#refused(entry, cancelReason)
  }

  #happened({ watchId, events, fragment, revision }: WatchResponse): void {
    const entry = this.#byId.get(watchId)
    if (!entry || entry.isClosed) return
    if (!entry.isAbout(events[0]!.key)) return this.#stream.drop(MIXED_UP)
    if (!fragment && entry.events.length === 0) return entry.listener.onEvents(events, revision)
    entry.events.push(...events)
    if (fragment) return
    const all = entry.events
    entry.events = []
    entry.listener.onEvents(all, revision)
  }

  /**
   * The server may say the same of a missing right and of a token that has expired: since the stream was opened, or before, since each
   * member lets those expire that nobody uses there.
   */
  async #refused(entry: Entry, reason: string): Promise<void> {
    const { generation } = this.#stream
    const isStale = () => entry.isClosed || this.#stream.generation !== generation
    const refusals = entry.refusals++
    const refusal = statusError(CODE.unknown, reason)
    let again = () => this.#askFor(entry)
    try {
      if (refusal.reason !== 'permission' && refusal.reason !== 'unauthenticated') throw refusal
      await this.#mayRead(entry.request)
      if (isStale()) return
      // What may be read may be watched.
      again = () => this.#stream.renewToken(refusal)
      if (refusals < TOKENS_AT_ONCE) return again()
    } catch (error) {
      if (isStale()) return
      if (error instanceof EtcdError && !error.transient) entry.listener.onRefused?.(error)
    }
    const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** refusals, LONGEST_PAUSE_MS)
    await sleep(pauseMs, undefined, { ref: false, signal: this.#closing.signal }).catch(() => {})
    if (!isStale()) again()
  }

  #end(entry: Entry): void {
    if (entry.isClosed) return
    entry.isClosed = true
    this.#entries.delete(entry)
    if (entry.id === undefined) return
    this.#byId.delete(entry.id)
    this.#stream.send(frame(entry.id, writeWatchCancel))
  }
}

/** Tells whether a key is what is watched. */
function within({ key, rangeEnd }: WatchRequest): (key: Buffer) => boolean {
  const first = Buffer.from(key as string, 'latin1')
  if (rangeEnd === undefined) return (one) => one.equals(first)
  const end = Buffer.from(rangeEnd as string, 'latin1')
  return (one) => one.compare(first) >= 0 && (one.compare(end) < 0 || end.equals(NO_END))
}
