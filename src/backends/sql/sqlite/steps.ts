/**
 * The steps on SQLite: each is one transaction, run here, in this process. What most claims need is one statement; whatever it does
 * not cover is done in full, on the resource.
 *
 * Where a process may die: before a commit, and nothing has happened; after it, and what it was about to tell is found out by
 * asking. Where it may be stopped: in the middle of a transaction, and nobody can write until it goes on or dies. Holders then lose
 * their locks by their own deadlines, and whoever claims is told so.
 */
import type {
  Claim, ClaimState, Held, ReleaseState, Renewal, RenewState, ResourceState, RevokeState,
} from '../../../core/backend.js'
import { anotherLimit, neverHolds } from '../../../core/slots.js'
import { GONE_MS } from '../liveness.js'
import { describeHolder, toBytes, toText, toView, type Bytes } from '../rows.js'
import type { Connection } from './connection.js'
import type { Machine } from './machine.js'
import type { News } from './news.js'
import { Resource, type Step } from './resource.js'

export interface Teller {
  /** Called when what they are about is committed. */
  tell(owner: string, news: readonly News[]): void
  /** A claim of ours was passed over while nothing was heard of us: others may have been, too. */
  passedOver(resource: string): void
}

/** One that was heard of a moment ago need not be written down again. */
const SAY_AGAIN_MS = 100
const PAGE = 200

export class Steps {
  readonly #connection: Connection
  readonly #machine: Machine
  readonly #prefix: Buffer
  readonly #owner: string
  readonly #teller: Teller
  readonly #keys = new Keys()
  #aliveUntil = -Infinity

  constructor(connection: Connection, machine: Machine, scope: { prefix: string; owner: string }, teller: Teller) {
    this.#connection = connection
    this.#machine = machine
    this.#prefix = Buffer.from(scope.prefix)
    this.#owner = scope.owner
    this.#teller = teller
  }

  claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): readonly ClaimState[] {
    return this.#transaction((step) => claims.map((claim) => this.#take(claim, step.now) ?? this.#claim(step, claim, ifBusy)))
  }

  /** What is free, and nobody waits for. One that had a place is most likely waited for. */
  #take(claim: Claim, now: number): ClaimState | undefined {
    const { id, resource, take, limit, ttlMs, type, metadata, place } = claim
    if (limit !== 1 || take !== 1 || place !== undefined) return undefined
    const until = now + ttlMs
    const taken = this.#connection.locks.take.get(
      this.#prefix, this.#keys.of(resource), id, this.#owner, toBytes(type), toBytes(metadata), now, until, now, now,
    ) as { epoch: string } | undefined
    return taken && { status: 'held', epoch: BigInt(taken.epoch), waiting: 0 }
  }

  #claim(step: OpenStep, claim: Claim, ifBusy: 'queue' | 'leave'): ClaimState {
    const { id, limit, ttlMs } = claim
    const never = neverHolds(claim)
    if (never) return never
    return step.on(claim.resource, 'make', id, (resource): ClaimState => {
      if (resource.isIdle) resource.limit = limit
      if (resource.limit !== limit) return anotherLimit(claim, resource.limit)
      const holder = resource.holder(id)
      if (holder?.revoked) return { status: 'revoked', epoch: BigInt(holder.number) }
      if (holder) {
        lengthen(resource, holder, step.now + ttlMs)
        return { status: 'held', epoch: BigInt(holder.number), waiting: resource.waiting }
      }
      const waiter = resource.waiter(id)
      if (waiter && ifBusy === 'leave') {
        resource.withdraw(waiter)
        resource.settle()
        return { status: 'refused', ...resource.blocker() }
      }
      if (waiter) {
        step.saysAlive = true
        const ahead = resource.before(waiter.number)
        if (ahead === 0) resource.hint()
        return { status: 'queued', place: waiter.number, ...resource.blockerOf(waiter.number, ahead) }
      }
      return this.#join(step, resource, claim, ifBusy)
    })
  }

  /** A claim that is new, or was passed over. */
  #join(step: OpenStep, resource: Resource, claim: Claim, ifBusy: 'queue' | 'leave'): ClaimState {
    if (claim.place !== undefined) step.passedOver.add(claim.resource)
    const place = resource.placeOf(claim)
    if (resource.admits(claim.take, place)) {
      const { id, take, ttlMs, type, metadata } = claim
      const granted = { id, take, ttlMs, owner: this.#owner, type: toBytes(type), metadata: toBytes(metadata) }
      const epoch = resource.grant(granted, step.now + ttlMs)
      return { status: 'held', epoch: BigInt(epoch), waiting: resource.waiting }
    }
    if (ifBusy === 'leave') return { status: 'refused', ...resource.blocker() }
    const ahead = resource.before(place)
    const ticket = resource.enqueue(claim, place)
    step.saysAlive = true
    if (ahead === 0) resource.hint()
    return { status: 'queued', place: ticket, ...resource.blockerOf(ticket, ahead) }
  }

  renew(renewals: readonly Renewal[]): readonly RenewState[] {
    return this.#transaction((step) => renewals.map((renewal) => this.#keep(renewal, step.now) ?? this.#renew(step, renewal)))
  }

  /** What most renewals are: a lock that is to stay what it is for a while longer. */
  #keep({ claim, ttlMs, exact, from }: Renewal, now: number): RenewState | undefined {
    if (exact || from !== undefined || claim.limit !== 1) return undefined
    const kept = this.#connection.locks.keep.get(
      now + ttlMs, now, this.#prefix, this.#keys.of(claim.resource), claim.id, this.#owner, now,
    ) as { waiting: number } | undefined
    return kept && { status: 'held', waiting: kept.waiting }
  }

  #renew(step: OpenStep, { claim, ttlMs, exact, from }: Renewal): RenewState {
    return step.on(claim.resource, 'find', claim.id, (resource): RenewState => {
      let holder = resource.holder(claim.id)
      if (!holder && from !== undefined) {
        const given = resource.holders().find(({ id, number, owner }) => `${id}.${number}.${owner}` === from)
        if (given?.revoked) return { status: 'revoked' }
        if (given) resource.saveHolder((holder = { ...given, id: claim.id, owner: this.#owner }))
      }
      if (!holder || holder.owner !== this.#owner) return { status: 'lost' }
      if (holder.revoked) return { status: 'revoked' }
      if (exact) resource.saveHolder({ ...holder, expiresAt: step.now + ttlMs })
      else lengthen(resource, holder, step.now + ttlMs)
      return { status: 'held', waiting: resource.waiting }
    }) ?? { status: 'lost' }
  }

  release(claims: readonly Claim[]): readonly ReleaseState[] {
    return this.#transaction((step) => claims.map((claim) => (this.#drop(claim, step.now) ? RELEASED : this.#release(step, claim))))
  }

  #drop({ limit, resource, id }: Claim, now: number): boolean {
    if (limit !== 1) return false
    return Number(this.#connection.locks.drop.run(now, this.#prefix, this.#keys.of(resource), id, now).changes) === 1
  }

  #release(step: OpenStep, { resource: name, id }: Claim): ReleaseState {
    return step.on(name, 'find', undefined, (resource): ReleaseState => {
      const holder = resource.holder(id)
      const waiter = holder ? undefined : resource.waiter(id)
      if (holder) resource.end(holder)
      if (waiter) resource.withdraw(waiter)
      // Also after a waiter: one that was too big for what is free may have kept smaller ones from it.
      if (holder || waiter) resource.settle()
      return holder ? RELEASED : NOT_HELD
    }) ?? NOT_HELD
  }

  /** Within somebody's transaction: nobody else can come to hold it before that is committed. */
  isHeld({ claim, epoch }: Held): boolean {
    const step = new OpenStep(this.#connection, this.#machine, this.#prefix, this.#owner)
    const holder = Resource.find(step, claim.resource)?.holder(claim.id)
    if (!holder || holder.owner !== this.#owner || holder.revoked) return false
    return BigInt(holder.number) === epoch && holder.expiresAt > step.now
  }

  revoke(name: string, when: 'told' | 'now'): RevokeState {
    return this.#transaction((step) => step.on(name, 'find', undefined, (resource): RevokeState => {
      const holders = resource.holders()
      if (holders.length === 0) return 'free'
      for (const holder of holders) {
        // Also if it was told before: whoever asks twice has seen no effect.
        step.tell(holder.owner, { kind: 'revoked', resource: name, claimId: holder.id })
        if (when === 'now') resource.end(holder)
        else resource.saveHolder({ ...holder, revoked: true })
      }
      if (when === 'told') return 'told'
      resource.settle()
      return 'freed'
    })) ?? 'free'
  }

  /** A page of what is in use, and where the next begins. */
  inspect(prefix: string, after: Uint8Array): { readonly resources: readonly ResourceState[]; readonly last: Uint8Array | undefined } {
    const step = new OpenStep(this.#connection, this.#machine, this.#prefix, this.#owner)
    const text = Buffer.from(prefix)
    const page = () => this.#connection.locks.page.all(this.#prefix, after, text.length, text, PAGE) as { key: Bytes }[]
    return this.#connection.snapshot(() => {
      const rows = page()
      const resources = rows.flatMap((row) => {
        const resource = Resource.seen(step, toText(row.key), row)
        const holders = resource.holders().filter(({ expiresAt }) => expiresAt > step.now)
        const waiters = resource.waiting > 0 ? resource.waiters() : []
        if (holders.length === 0 && waiters.length === 0) return []
        const described = holders.map((holder) => ({ ...describeHolder(holder, step.now), take: holder.take }))
        return [{ key: resource.name, limit: resource.limit, holders: described, waiters }]
      })
      const last = rows.length === PAGE ? rows.at(-1)!.key : undefined
      return { resources, last: last && toView(last) }
    })
  }

  /** Nobody has come near a resource for long, of whatever prefix: ends what is over, and lets in who is next. */
  settle(prefix: Buffer, key: Bytes): void {
    this.#transaction((step) => step.on(toText(key), 'find', undefined, () => {}), prefix)
  }

  /** What it waits for is passed over from now on; what it holds stays until it expires. */
  leave(): void {
    if (this.#aliveUntil === -Infinity) return
    this.#connection.transaction(() => this.#connection.clients.remove.run(this.#owner))
  }

  #transaction<T>(body: (step: OpenStep) => T, prefix = this.#prefix): T {
    const step = new OpenStep(this.#connection, this.#machine, prefix, this.#owner)
    const result = this.#connection.transaction(() => {
      const done = body(step)
      if (step.saysAlive && this.#aliveUntil < step.now + GONE_MS - SAY_AGAIN_MS) {
        const { pid, isThread, pidSpace } = this.#machine
        this.#connection.clients.heard.run(this.#owner, isThread ? -pid : pid, pidSpace, step.now + GONE_MS)
        step.aliveUntil = step.now + GONE_MS
      }
      return done
    })
    if (step.aliveUntil !== undefined) this.#aliveUntil = step.aliveUntil
    for (const [owner, news] of step.news) this.#teller.tell(owner, news)
    for (const resource of step.passedOver) this.#teller.passedOver(resource)
    return result
  }
}

const MOST_KEYS = 1_000

/** The bytes of keys. The same ones come again, with their releases if with nothing else, and a buffer costs more than the rest. */
class Keys {
  readonly #known = new Map<string, Buffer>()

  of(resource: string): Buffer {
    let key = this.#known.get(resource)
    if (key) return key
    if (this.#known.size >= MOST_KEYS) this.#known.clear()
    key = Buffer.from(resource)
    this.#known.set(resource, key)
    return key
  }
}

/** What one transaction knows, and what follows from it once it is committed. */
class OpenStep implements Step {
  readonly connection: Connection
  readonly now: number
  readonly prefix: Buffer
  readonly owner: string
  readonly news = new Map<string, News[]>()
  readonly passedOver = new Set<string>()
  /** Whether something of ours waits. */
  saysAlive = false
  aliveUntil: number | undefined
  readonly #machine: Machine
  readonly #lives = new Map<string, ReturnType<Step['life']>>()

  constructor(connection: Connection, machine: Machine, prefix: Buffer, owner: string) {
    this.connection = connection
    this.#machine = machine
    this.prefix = prefix
    this.owner = owner
    this.now = machine.now()
  }

  /** Takes a step on a resource, settled; undefined if there is none. */
  on<T>(name: string, ifMissing: 'make', asker: string | undefined, step: (resource: Resource) => T): T
  on<T>(name: string, ifMissing: 'find', asker: string | undefined, step: (resource: Resource) => T): T | undefined
  on<T>(name: string, ifMissing: 'make' | 'find', asker: string | undefined, step: (resource: Resource) => T): T | undefined {
    const resource = Resource.find(this, name) ?? (ifMissing === 'make' ? Resource.make(this, name) : undefined)
    if (!resource) return undefined
    resource.settle(asker)
    const result = step(resource)
    resource.save()
    return result
  }

  /** A process that the system does not know is gone, whatever it said; of one that we cannot see, only its word counts. */
  life(owner: string): ReturnType<Step['life']> {
    // Asked once: one that has died may have had thousands waiting.
    if (!this.#lives.has(owner)) this.#lives.set(owner, this.#lifeOf(owner))
    return this.#lives.get(owner)
  }

  #lifeOf(owner: string): ReturnType<Step['life']> {
    if (owner === this.owner) return { until: Infinity, isCertain: true }
    const [client] = this.connection.clients.find.all(owner) as { pid: number; pid_space: string; alive_until: number }[]
    if (!client || client.alive_until <= this.now) return undefined
    const state = client.pid_space === this.#machine.pidSpace ? this.#machine.stateOf(Math.abs(client.pid)) : 'unknown'
    return state === 'gone' ? undefined : { until: client.alive_until, isCertain: state === 'running' && client.pid > 0 }
  }

  tell(owner: string, news: News): void {
    const told = this.news.get(owner)
    if (told) told.push(news)
    else this.news.set(owner, [news])
  }
}

const RELEASED: ReleaseState = { status: 'released' }
const NOT_HELD: ReleaseState = { status: 'not-held' }

function lengthen(resource: Resource, holder: Parameters<Resource['saveHolder']>[0], expiresAt: number): void {
  if (expiresAt > holder.expiresAt) resource.saveHolder({ ...holder, expiresAt })
}
