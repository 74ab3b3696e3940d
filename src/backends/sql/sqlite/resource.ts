/**
 * One resource inside a transaction: its row, and the claims that wait for it or, where there are several slots, hold it. The
 * states of a claim, seen from here:
 *
 *   unknown → waiting → held → unknown
 *                       held → revoked → unknown
 *
 * Changes to the row are kept here and written once, by `save`; claims are written at once. Nobody is told of anything before the
 * transaction is committed: `news` gathers it. A process that dies before the commit has done nothing; one that dies after it has
 * told nobody, and who was granted something finds out by its heartbeat.
 */
import type { Blocker, Claim } from '../../../core/backend.js'
import { provisionalUntil } from '../liveness.js'
import { describeHolder, toBytes, toView, type Bytes, type HolderRow } from '../rows.js'
import type { SqlValue } from './client.js'
import type { Connection } from './connection.js'
import type { News } from './news.js'

/** What a step knows and finds out. */
export interface Step {
  readonly connection: Connection
  readonly now: number
  readonly prefix: Buffer
  readonly owner: string
  /** Until when the process of a waiter counts as there, and whether that is certain; undefined if it is gone. */
  life(owner: string): { readonly until: number; readonly isCertain: boolean } | undefined
  tell(owner: string, news: News): void
}

interface LockRow {
  slots: number
  used: number
  waiting: number
  last: string
  id: string | null
  owner: string | null
  epoch: string | null
  revoked: number
  type: Bytes | null
  metadata: Bytes | null
  granted_at: number | null
  expires_at: number
}

interface ClaimRow {
  readonly held: number
  readonly number: string
  readonly id: string
  readonly owner: string
  readonly take: number
  readonly ttl_ms: number
  readonly revoked: number
  readonly type: Bytes | null
  readonly metadata: Bytes | null
  readonly granted_at: number
  readonly expires_at: number
}

export interface WaiterRow {
  /** Its ticket. */
  readonly number: string
  readonly id: string
  readonly owner: string
  readonly take: number
  readonly ttlMs: number
  readonly type: Bytes | null
  readonly metadata: Bytes | null
}

export class Resource {
  readonly name: string
  readonly #step: Step
  readonly #key: Buffer
  readonly #row: LockRow
  /** Of several holders, those that were changed are written by themselves; this is about the row. */
  #isChanged = false

  private constructor(step: Step, name: string, key: Buffer, row: LockRow) {
    this.#step = step
    this.name = name
    this.#key = key
    this.#row = row
  }

  static find(step: Step, name: string): Resource | undefined {
    const key = Buffer.from(name)
    const [row] = step.connection.locks.find.all(step.prefix, key) as LockRow[]
    return row && new Resource(step, name, key, { ...row })
  }

  static make(step: Step, name: string): Resource {
    const key = Buffer.from(name)
    const { now, prefix } = step
    const [made] = step.connection.locks.make.all(prefix, key, now, now) as { last: string }[]
    const free = { id: null, owner: null, epoch: null, revoked: 0, type: null, metadata: null, granted_at: null, expires_at: 0 }
    return new Resource(step, name, key, { slots: 1, used: 0, waiting: 0, last: made!.last, ...free })
  }

  /** One that was read elsewhere, to be looked at only. */
  static seen(step: Step, name: string, row: unknown): Resource {
    return new Resource(step, name, Buffer.from(name), { ...(row as LockRow) })
  }

  get isIdle(): boolean {
    return this.#row.used === 0 && this.#row.waiting === 0
  }

  get limit(): number {
    return this.#row.slots
  }

  /** Only what nobody uses can change it. */
  set limit(limit: number) {
    if (limit !== this.#row.slots) this.#set({ slots: limit })
  }

  get waiting(): number {
    return this.#row.waiting
  }

  /** Ends what has expired and lets in whoever is next: the first step of everything. `asker` hears of it by its answer. */
  settle(asker?: string): void {
    if (this.#row.used > 0 && this.#row.expires_at <= this.#step.now) this.#expire()
    while (this.#row.waiting > 0) {
      const head = this.#head()!
      const { now } = this.#step
      const life = this.#step.life(head.owner)
      if (life && !this.#fits(head.take)) return
      this.withdraw(head)
      if (!life) continue
      const epoch = this.grant(head, life.isCertain ? now + head.ttlMs : provisionalUntil(now, head.ttlMs, life.until))
      if (head.id === asker) continue
      this.#step.tell(head.owner, {
        kind: 'granted',
        resource: this.name,
        claimId: head.id,
        epoch,
        // Of a provisional grant only that it is there: it has to be asked for again.
        at: life.isCertain ? now : null,
        waiting: this.waiting,
      })
    }
  }

  /** The claim that holds by this id. */
  holder(id: string): HolderRow | undefined {
    if (this.limit === 1) return this.#row.id === id ? this.#inline() : undefined
    const claim = this.#claim(id)
    return claim?.held === 1 ? holderOf(claim) : undefined
  }

  /** In the order of their grants. */
  holders(): HolderRow[] {
    if (this.limit === 1) return this.#row.id === null ? [] : [this.#inline()]
    return (this.#step.connection.claims.holders.all(...this.#place) as ClaimRow[]).map(holderOf)
  }

  saveHolder(holder: HolderRow): void {
    const { id, owner, revoked, expiresAt, number } = holder
    if (this.limit === 1) return this.#set({ id, owner, revoked: Number(revoked), expires_at: expiresAt })
    this.#step.connection.claims.saveHolder.run(id, owner, Number(revoked), expiresAt, ...this.#place, number)
    if (expiresAt < this.#row.expires_at) this.#set({ expires_at: expiresAt })
  }

  /** Ends a hold; who is next comes in when the resource is settled. */
  end({ take, number }: HolderRow): void {
    if (this.limit > 1) this.#step.connection.claims.remove.run(...this.#place, 1, number)
    this.#set({ used: this.#row.used - take, ...(this.limit === 1 && FREE) })
  }

  grant(claim: Pick<WaiterRow, 'id' | 'owner' | 'take' | 'ttlMs' | 'type' | 'metadata'>, expiresAt: number): string {
    const { now, connection } = this.#step
    const { id, owner, take, ttlMs, type, metadata } = claim
    const epoch = this.#draw()
    if (this.limit === 1) {
      this.#set({ used: 1, id, owner, epoch, revoked: 0, type, metadata, granted_at: now, expires_at: expiresAt })
      return epoch
    }
    connection.claims.add.run(...this.#place, 1, epoch, id, owner, take, ttlMs, asValue(type), asValue(metadata), now, expiresAt)
    const isFirst = this.#row.used === 0 || expiresAt < this.#row.expires_at
    this.#set({ used: this.#row.used + take, ...(isFirst && { expires_at: expiresAt }) })
    return epoch
  }

  waiter(id: string): WaiterRow | undefined {
    const claim = this.#row.waiting > 0 ? this.#claim(id) : undefined
    return claim?.held === 0 ? waiterOf(claim) : undefined
  }

  waiters(): { owner: string; take: number }[] {
    const rows = this.#step.connection.claims.waiters.all(...this.#place) as { owner: string; take: number }[]
    return rows.map(({ owner, take }) => ({ owner, take }))
  }

  /** The place that was told before, if it can be that. */
  placeOf(claim: Claim): string | undefined {
    const { place } = claim
    if (place === undefined || !/^\d{1,18}$/.test(place) || BigInt(place) > BigInt(this.#row.last)) return undefined
    return this.#step.connection.claims.isTaken.all(...this.#place, place).length === 0 ? place : undefined
  }

  /** Whether a claim with this place (none: at the end) would hold at once: nobody waits before it, and it fits. */
  admits(take: number, place: string | undefined): boolean {
    return this.#fits(take) && this.before(place) === 0
  }

  /** How many wait before a place. */
  before(place: string | undefined): number {
    if (place === undefined || this.#row.waiting === 0) return this.#row.waiting
    const [counted] = this.#step.connection.claims.countBefore.all(...this.#place, place) as { count: number }[]
    return Number(counted!.count)
  }

  enqueue({ id, take, ttlMs, type, metadata }: Claim, place: string | undefined): string {
    const ticket = place ?? this.#draw()
    const { connection, owner } = this.#step
    connection.claims.add.run(...this.#place, 0, ticket, id, owner, take, ttlMs, toBytes(type), toBytes(metadata), null, null)
    this.#set({ waiting: this.#row.waiting + 1 })
    return ticket
  }

  withdraw({ number }: WaiterRow): void {
    this.#step.connection.claims.remove.run(...this.#place, 0, number)
    this.#set({ waiting: this.#row.waiting - 1 })
  }

  /** Whoever hands over in memory has to know that others wait. */
  hint(): void {
    for (const { owner, id, revoked } of this.holders()) {
      if (!revoked) this.#step.tell(owner, { kind: 'contended', resource: this.name, claimId: id })
    }
  }

  /** What is in the way of a claim that is not (or no more) in the queue. */
  blocker(): Blocker {
    return { holder: this.#firstToExpire(), ahead: this.waiting, waiting: this.waiting }
  }

  /** What is in the way of one that is. */
  blockerOf(ticket: string, ahead = this.before(ticket)): Blocker {
    return { holder: this.#firstToExpire(), ahead, waiting: this.waiting - 1 }
  }

  save(): void {
    if (!this.#isChanged) return
    this.#isChanged = false
    const { slots, used, waiting, last, id, owner, epoch, revoked, type, metadata, granted_at, expires_at } = this.#row
    this.#step.connection.locks.save.run(
      slots, used, waiting, last, id, owner, epoch, revoked, asValue(type), asValue(metadata), granted_at, expires_at,
      this.#step.now, ...this.#place,
    )
  }

  get #place(): [Buffer, Buffer] {
    return [this.#step.prefix, this.#key]
  }

  #set(changes: Partial<LockRow>): void {
    Object.assign(this.#row, changes)
    this.#isChanged = true
  }

  /** Tickets and epochs come from one count: each is greater than all before it. */
  #draw(): string {
    const number = String(BigInt(this.#row.last) + 1n)
    this.#set({ last: number })
    return number
  }

  #fits(take: number): boolean {
    return this.#row.used + take <= this.limit
  }

  #expire(): void {
    if (this.limit === 1) return this.#set({ used: 0, ...FREE })
    const { connection, now } = this.#step
    const expired = connection.claims.expire.all(...this.#place, now) as { take: number }[]
    const used = expired.reduce((left, { take }) => left - take, this.#row.used)
    const [next] = connection.claims.firstToExpire.all(...this.#place) as ClaimRow[]
    this.#set({ used, expires_at: next?.expires_at ?? 0 })
  }

  #head(): WaiterRow | undefined {
    const [head] = this.#step.connection.claims.head.all(...this.#place) as ClaimRow[]
    return head && waiterOf(head)
  }

  #claim(id: string): ClaimRow | undefined {
    return (this.#step.connection.claims.find.all(id, ...this.#place) as ClaimRow[])[0]
  }

  #inline(): HolderRow {
    const { id, owner, epoch, revoked, type, metadata, granted_at, expires_at } = this.#row
    return {
      number: epoch!, id: id!, owner: owner!, take: 1, revoked: revoked === 1, type, metadata, grantedAt: granted_at!, expiresAt: expires_at,
    }
  }

  #firstToExpire(): Blocker['holder'] {
    if (this.limit === 1) return this.#row.id === null ? undefined : describeHolder(this.#inline(), this.#step.now)
    const [first] = this.#step.connection.claims.firstToExpire.all(...this.#place) as ClaimRow[]
    return first && describeHolder(holderOf(first), this.#step.now)
  }
}

const FREE = { id: null, owner: null, epoch: null, revoked: 0, type: null, metadata: null, granted_at: null, expires_at: 0 }

function holderOf({ number, id, owner, take, revoked, type, metadata, granted_at, expires_at }: ClaimRow): HolderRow {
  return { number, id, owner, take, revoked: revoked === 1, type, metadata, grantedAt: granted_at, expiresAt: expires_at }
}

function waiterOf({ number, id, owner, take, ttl_ms, type, metadata }: ClaimRow): WaiterRow {
  return { number, id, owner, take, ttlMs: ttl_ms, type, metadata }
}

function asValue(bytes: Bytes | null): SqlValue {
  return bytes && toView(bytes)
}
