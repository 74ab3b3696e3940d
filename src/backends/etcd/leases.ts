/**
 * The leases of this process: one for all claims with the same TTL, in whole seconds. A lease lasts a second or two longer than the
 * TTL: so a claim can be made on one that was renewed a moment ago, with no request for the lease.
 *
 *   granting → alive → over (it has expired or was revoked, or nobody has used it for as long as it lasts)
 *
 * A session has one of its own: it lasts for its TTL and no longer, is renewed only when the session is, and others of the same
 * session may have put things on it that are not known here.
 *
 * Each has a mailbox: a key that ends with it. One watch on that tells at once when the lease is over, whatever was the reason, and
 * what others have to say to this process.
 */
import type { Claim } from '../../core/backend.js'
import type { Clock, Timer } from '../../core/clock.js'
import { BackendError } from '../../core/errors.js'
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import type { LeaseResponse, WatchEvent } from './client/messages.js'
import type { Watch } from './client/watch.js'
import { isLeaseGone } from './errors.js'
import { fromBytes, toBytes, type Keys } from './keys.js'
import type { Txns } from './txns.js'

export interface LeaseListener {
  isUsed(lease: Lease): boolean
  /** What its mailbox got. */
  told(message: string): void
  /** Something may have been put into it that was missed. */
  mayHaveMissed(lease: Lease): void
  over(lease: Lease): void
  /** The keys that the lease has, and when they were asked for. */
  attached(lease: Lease, keys: ReadonlySet<string>, askedAt: number): void
}

const SLACK_S = 1
const BEATS_PER_TTL = 3
/** What was carried out too late is found at a beat, and is in others' way until then. */
const LONGEST_PAUSE_MS = 10_000
/** A stream that is silent for this part of a TTL is tried elsewhere. */
const SILENT_PART = 4

export class Lease {
  readonly id: bigint
  /** Its id as it stands in the names of keys: in hexadecimal digits. */
  readonly name: string
  readonly lastsMs: number
  /** A moment not after the server began to count: before the last request that it answered was sent. */
  renewedAt: number
  usedAt: number
  isOver = false
  /** Whether it is a session's own; if so, what keeps the session. */
  readonly isSessions: boolean
  session: Claim | undefined
  readonly #slackMs: number
  beat: Timer | undefined
  watch: Watch | undefined
  /** The next renewal and the next look at what is there, until they are sent; and the last renewal that is on its way. */
  nextRenewal: Promise<void> | undefined
  nextLook: Promise<void> | undefined
  underWay: { readonly sentAt: number; readonly answered: Promise<void> } | undefined

  constructor(id: bigint, lastsMs: number, ttlMs: number, grantedAt: number, isSessions = false) {
    this.isSessions = isSessions
    this.id = id
    this.name = id.toString(16)
    this.lastsMs = lastsMs
    this.#slackMs = lastsMs - ttlMs
    this.renewedAt = grantedAt
    this.usedAt = grantedAt
  }

  /** Whether a claim of its TTL that is made now ends no later than the lease, if that was renewed then. */
  covers(now: number, renewedAt = this.renewedAt): boolean {
    return now - renewedAt <= this.#slackMs
  }

  /** It does, but soon will not. */
  isLow(now: number): boolean {
    return now - this.renewedAt > this.#slackMs / 2
  }
}

export class Leases {
  readonly #client: EtcdClient
  readonly #txns: Txns
  readonly #keys: Keys
  readonly #clock: Clock
  readonly #listener: LeaseListener
  /** By what they last at least. */
  readonly #byTtl = new Map<number, Lease | Promise<Lease>>()
  readonly #all = new Set<Lease>()
  readonly #ofSessions = new Map<bigint, Lease>()
  #minTtlMs = 2_000
  #isClosed = false

  constructor(client: EtcdClient, txns: Txns, keys: Keys, clock: Clock, listener: LeaseListener) {
    this.#client = client
    this.#txns = txns
    this.#keys = keys
    this.#clock = clock
    this.#listener = listener
  }

  /** The server grants none for less. */
  get minTtlMs(): number {
    return this.#minTtlMs
  }

  /** Asks the server what the least is. */
  async learnMinTtl(): Promise<void> {
    const { id, ttlS } = await this.#client.leaseGrant(1)
    this.#minTtlMs = ttlS * 1_000
    this.#client.leaseRevoke(id).catch(() => {})
  }

  async #grant(ttlS: number, id?: bigint): Promise<LeaseResponse> {
    const granted = await this.#client.leaseGrant(ttlS, id)
    // One that was there already has a TTL of its own.
    if (id === undefined && granted.ttlS > ttlS) this.#minTtlMs = granted.ttlS * 1_000
    return granted
  }

  /** One that is there, with no need to wait; or one that is being granted. */
  for(ttlMs: number, now = this.#clock.now()): Lease | Promise<Lease> {
    const ttlS = Math.ceil(ttlMs / 1_000)
    const known = this.#byTtl.get(ttlS)
    if (known instanceof Lease && !known.isOver && now < known.renewedAt + known.lastsMs) {
      known.usedAt = now
      return known
    }
    if (known instanceof Promise) return known
    const granted = this.another(ttlMs)
    this.#byTtl.set(ttlS, granted)
    granted.then(
      (lease) => this.#byTtl.set(ttlS, lease),
      () => this.#byTtl.delete(ttlS),
    )
    return granted
  }

  /** One that nothing else is on. */
  async another(ttlMs: number): Promise<Lease> {
    const ttlS = Math.ceil(ttlMs / 1_000)
    const askedAt = this.#clock.now()
    this.#checkOpen()
    const { id, ttlS: lastsS } = await this.#grant(ttlS + SLACK_S)
    if (this.#isClosed) this.#client.leaseRevoke(id).catch(() => {})
    this.#checkOpen()
    const lease = new Lease(id, lastsS * 1_000, ttlS * 1_000, askedAt)
    this.#all.add(lease)
    this.#openMailbox(lease)
    this.#beatLater(lease)
    return lease
  }

  /** That of a session: granted, or renewed if it is there. */
  async open(id: bigint, ttlMs: number): Promise<Lease> {
    const askedAt = this.#clock.now()
    const known = this.ofSession(id)
    const lastsS = known ? await this.renew(known) : await this.#grantOrRenew(id, Math.ceil(ttlMs / 1_000))
    const lease = this.ofSession(id)
    if (lease) return lease
    if (!lastsS) throw new BackendError('The lease ended meanwhile.', { transient: true })
    const granted = new Lease(id, lastsS * 1_000, ttlMs, askedAt, true)
    this.#all.add(granted)
    this.#ofSessions.set(id, granted)
    this.#openMailbox(granted)
    return granted
  }

  async #grantOrRenew(id: bigint, ttlS: number): Promise<number> {
    try {
      return (await this.#grant(ttlS, id)).ttlS
    } catch (error) {
      if (!(error instanceof EtcdError && error.reason === 'lease-exists')) throw error
      return this.#client.keepAlive(id, (ttlS * 1_000) / SILENT_PART)
    }
  }

  /** Ends a session's, and with it all that the session has. → whether it was there */
  async revoke(id: bigint): Promise<boolean> {
    const lease = this.ofSession(id)
    let wasThere = true
    try {
      await this.#client.leaseRevoke(id)
    } catch (error) {
      if (!isLeaseGone(error)) throw error
      wasThere = false
    }
    if (lease) this.#stop(lease)
    return wasThere
  }

  /** A session's, which others may have by now: it is no longer kept from here. */
  leave(lease: Lease): void {
    this.#stop(lease)
  }

  /** One of ours that is not over. */
  find(id: bigint): Lease | undefined {
    for (const lease of this.#all) if (lease.id === id) return lease
    return undefined
  }

  /** If it is there, as far as is known. */
  ofSession(id: bigint): Lease | undefined {
    return this.#ofSessions.get(id)
  }

  /** What one lasts when it is renewed, as it is by this. Undefined if there is none. */
  async ttlMs(id: bigint): Promise<number | undefined> {
    const ttlS = await this.#client.keepAlive(id, this.#minTtlMs)
    return ttlS > 0 ? ttlS * 1_000 : undefined
  }

  /**
   * Undefined if the lease lasts long enough for a claim that is made at this moment, else resolves as soon as it does: by a message on
   * the stream, and no call.
   */
  cover(lease: Lease, moment: number): Promise<void> | undefined {
    // What a session has ends with it, however long it should last.
    if (lease.isSessions) return undefined
    const { underWay } = lease
    if (!lease.covers(moment)) return underWay && lease.covers(moment, underWay.sentAt) ? underWay.answered : this.#renewSoon(lease)
    if (lease.isLow(moment) && !underWay) this.#renewSoon(lease).catch(() => {})
    return undefined
  }

  /** To be awaited after what else is under way: it may fail before that. */
  coverMeanwhile(lease: Lease, moment: number): Promise<void> | undefined {
    const covered = this.cover(lease, moment)
    covered?.catch(() => {})
    return covered
  }

  /** Also looks which keys the lease has: so it tells of what was lost, and of what nobody knows. */
  async renew(lease: Lease): Promise<void> {
    lease.nextLook ??= Promise.resolve().then(() => {
      lease.nextLook = undefined
      return this.#look(lease, this.#clock.now())
    })
    await Promise.all([this.#renewSoon(lease), lease.nextLook])
  }

  /** Resolves when the lease was renewed by a request that was sent after the call. Rejects if that is not known. */
  #renewSoon(lease: Lease): Promise<void> {
    // Whoever still is on it has not heard, and must not think that it holds.
    if (lease.isOver) return Promise.reject(new BackendError('The lease ended meanwhile.', { transient: true }))
    lease.nextRenewal ??= Promise.resolve().then(() => {
      lease.nextRenewal = undefined
      const sentAt = this.#clock.now()
      const underWay = { sentAt, answered: this.#renewNow(lease, sentAt) }
      lease.underWay = underWay
      const over = () => {
        if (lease.underWay === underWay) lease.underWay = undefined
      }
      underWay.answered.then(over, over)
      return underWay.answered
    })
    return lease.nextRenewal
  }

  async #renewNow(lease: Lease, sentAt: number): Promise<void> {
    const ttlS = await this.#client.keepAlive(lease.id, lease.lastsMs / SILENT_PART)
    if (ttlS <= 0) this.over(lease)
    else lease.renewedAt = Math.max(lease.renewedAt, sentAt)
  }

  async #look(lease: Lease, sentAt: number): Promise<void> {
    const { ttlS: leftS, keys } = await this.#client.leaseTimeToLive(lease.id, true)
    if (leftS < 0) this.over(lease)
    if (lease.isOver) return
    const attached = new Set(keys.map((key) => fromBytes(Buffer.from(key))))
    this.#listener.attached(lease, attached, sentAt)
    if (lease.isOver || attached.has(this.#keys.mailbox(lease.id))) return
    // It could not be put at first: until it is, nobody can tell us anything.
    this.#putMailbox(lease)
    this.#listener.mayHaveMissed(lease)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    const unused = [...this.#all].filter((lease) => !lease.isSessions && !this.#listener.isUsed(lease))
    for (const lease of this.#all) this.#stop(lease)
    await Promise.allSettled(unused.map(({ id }) => this.#client.leaseRevoke(id)))
  }

  /** One that is granted now, nobody would keep, or end. */
  #checkOpen(): void {
    if (this.#isClosed) throw new BackendError('This etcd backend is closed.', { transient: false })
  }

  #beatLater(lease: Lease): void {
    lease.beat?.cancel()
    if (lease.isOver || this.#isClosed) return
    lease.beat = this.#clock.timer(Math.min(lease.lastsMs / BEATS_PER_TTL, LONGEST_PAUSE_MS), () => void this.#beat(lease), 'background')
  }

  async #beat(lease: Lease): Promise<void> {
    const now = this.#clock.now()
    if (!this.#listener.isUsed(lease) && now - lease.usedAt > lease.lastsMs) return this.over(lease)
    // Whoever needs it asks again; and if nobody could renew it, it ends by itself.
    await this.renew(lease).catch(() => {})
    if (this.#clock.now() - lease.renewedAt > lease.lastsMs) this.over(lease)
    this.#beatLater(lease)
  }

  #openMailbox(lease: Lease): void {
    const key = toBytes(this.#keys.mailbox(lease.id))
    lease.watch = this.#client.watch({ key }, {
      // Also at first: what came before it is missed.
      onCreated: () => this.#listener.mayHaveMissed(lease),
      onEvents: (events) => this.#arrived(lease, events),
      onLost: () => {},
    })
    this.#putMailbox(lease)
  }

  #putMailbox(lease: Lease): void {
    const put = { kind: 'put', key: toBytes(this.#keys.mailbox(lease.id)), lease: lease.id } as const
    this.#txns.run({ kind: 'other', success: [put], isLikely: true, lease: lease.id }).catch(() => {})
  }

  #arrived(lease: Lease, events: readonly WatchEvent[]): void {
    for (const { type, value } of events) {
      // It went with its lease; or somebody has deleted it, and perhaps more.
      if (type === 'delete') this.over(lease)
      else if (value.length > 0) this.#listener.told(value.toString())
      // It was put just now: who had something to say before that could not.
      else this.#listener.mayHaveMissed(lease)
    }
  }

  /** What may still be there of it goes, too: all that was on it is lost. */
  over(lease: Lease): void {
    if (lease.isOver) return
    this.#stop(lease)
    this.#client.leaseRevoke(lease.id).catch(() => {})
    this.#listener.over(lease)
  }

  #stop(lease: Lease): void {
    lease.isOver = true
    lease.beat?.cancel()
    lease.watch?.close()
    this.#all.delete(lease)
    if (this.#ofSessions.get(lease.id) === lease) this.#ofSessions.delete(lease.id)
    for (const [ttlS, known] of this.#byTtl) if (known === lease) this.#byTtl.delete(ttlS)
  }
}
