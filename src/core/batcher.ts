/**
 * Joins the requests of concurrent callers: what is asked for while requests are on their way travels together in the next.
 *
 * A lane is idle → nothing is on its way: what comes is sent at once
 *           busy → a flight is on its way: what comes is gathered, and sent when that has landed, or takes too long. When much has
 *                  come together it is sent as a second flight, so that the store has work while we read its answers: unless
 *                  one is better for that store (`Backend.flights`).
 *
 * Renewals have a lane of their own, so that nothing delays them. What may go wrong stays with whom it concerns:
 * - One bad claim never fails its neighbours: if a request as a whole is refused for good, each is asked for alone.
 * - A request that hangs blocks nobody: after a short while the lane goes on without it.
 * - The order per claim is kept. A release takes back what of its claim is still unsent, and waits for what is on its way: a claim
 *   that comes after its own release would be one that nobody knows of.
 */
import { ANSWER_MS, asHoldfastError, complete } from './answer.js'
import type { Backend, Claim, ClaimState, Leased, ReleaseState, Renewal, RenewState } from './backend.js'
import type { Clock, Timer } from './clock.js'
import { BackendError, LockNotHeldError } from './errors.js'

/** A request of this many takes the store a millisecond or two, in which it serves nobody else. */
const MOST_CLAIMS = 128
const MOST_RENEWALS = 1_000
/** So long a lane waits for an answer before it goes on without it. */
const HUNG_MS = 20
/** From so many on it pays to send two flights, one after the other. */
const WORTH_TWO_FLIGHTS = 16

type Send<Item, State> = (items: readonly Item[]) => Promise<readonly State[]>

/** Somebody who asks about one item, and is told its state or why there is none. */
export interface Call<Item, State> {
  readonly item: Item
  answered(state: State): void
  failed(error: unknown): void
}

type ClaimFields = { readonly [Field in keyof Claim]: Claim[Field] | undefined } & Omit<Claim, 'type' | 'metadata' | 'lease' | 'place' | 'isTold'>

/** A claim of this process: the store sees what it asks for, and we whether an answer is still to come. */
export class OwnClaim implements Claim {
  readonly id: string
  readonly resource: string
  readonly take: number
  readonly limit: number
  readonly ttlMs: number
  declare readonly type?: string
  declare readonly metadata?: string
  declare readonly lease?: Leased
  declare place?: string
  declare isTold?: boolean
  /** Its latest request, and the latest renewal that was asked for by itself. */
  #asked: Entry | undefined
  #renewing: Entry | undefined

  constructor({ id, resource, take, limit, ttlMs, type, metadata, lease, place }: ClaimFields) {
    this.id = id
    this.resource = resource
    this.take = take
    this.limit = limit
    this.ttlMs = ttlMs
    if (type !== undefined) this.type = type
    if (metadata !== undefined) this.metadata = metadata
    if (lease !== undefined) this.lease = lease
    if (place !== undefined) this.place = place
  }

  /** The same wish, by another name. */
  as(id: string): OwnClaim {
    const { resource, take, limit, ttlMs, type, metadata, lease, place } = this
    return new OwnClaim({ id, resource, take, limit, ttlMs, type, metadata, lease, place })
  }

  static asked(claim: OwnClaim): Entry | undefined {
    return claim.#asked
  }

  static asks(claim: OwnClaim, entry: Entry): void {
    claim.#asked = entry
  }

  static renewing(claim: OwnClaim): Entry | undefined {
    return claim.#renewing
  }

  static renews(claim: OwnClaim, entry: Entry): void {
    claim.#renewing = entry
  }
}

export class Batcher {
  readonly #backend: Backend
  readonly #clock: Clock
  readonly #work: Lane
  readonly #renewals: Lane
  readonly #release: Send<Claim, ReleaseState>
  readonly #queue: Send<Claim, ClaimState>
  readonly #leave: Send<Claim, ClaimState>
  readonly #renew: Send<Renewal, RenewState>

  constructor(backend: Backend, clock: Clock) {
    this.#backend = backend
    this.#clock = clock
    this.#release = (claims) => backend.release(claims)
    this.#queue = (claims) => backend.claim(claims, 'queue')
    this.#leave = (claims) => backend.claim(claims, 'leave')
    this.#renew = (renewals) => backend.renew(renewals)
    // Releases go first: they may free what is asked for in the same breath.
    this.#work = new Lane([this.#release, this.#queue, this.#leave], MOST_CLAIMS, backend, clock)
    this.#renewals = new Lane([this.#renew], MOST_RENEWALS, backend, clock)
  }

  claim(call: Call<OwnClaim, ClaimState>, ifBusy: 'queue' | 'leave'): void {
    const entry = new Entry(call, ifBusy === 'queue' ? this.#queue : this.#leave)
    OwnClaim.asks(call.item, entry)
    this.#work.add(entry)
  }

  release(call: Call<OwnClaim, ReleaseState>): void {
    const claim = call.item
    const entry = new Entry(call, this.#release)
    const renewing = OwnClaim.renewing(claim)
    if (renewing?.isUnsent) this.#renewals.takeBack(renewing, claim)
    const asked = OwnClaim.asked(claim)
    if (asked?.isUnsent) this.#work.takeBack(asked, claim)
    if (!asked?.call) this.#work.add(entry)
    else this.#after(asked, () => this.#work.add(entry))
  }

  renew(call: Call<Renewal & { readonly claim: OwnClaim }, RenewState>): void {
    const entry = new Entry(call, this.#renew)
    OwnClaim.renews(call.item.claim, entry)
    this.#renewals.add(entry)
  }

  /** They are gathered already. */
  async renewAll(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    return complete(await this.#backend.renew(renewals), renewals.length, this.#backend)
  }

  /** When it is answered, or overdue. */
  #after(asked: Entry, task: () => void): void {
    const overdue = this.#clock.timer(ANSWER_MS, () => asked.whenSettled?.(), 'background')
    const before = asked.whenSettled
    asked.whenSettled = () => {
      asked.whenSettled = undefined
      overdue.cancel()
      before?.()
      task()
    }
  }
}

/** What waits to be sent, or to be answered. */
class Entry {
  /** Until it is settled. */
  call: Call<any, any> | undefined
  readonly send: Send<any, any>
  isSent = false
  whenSettled: (() => void) | undefined

  constructor(call: Call<any, any>, send: Send<any, any>) {
    this.call = call
    this.send = send
  }

  get isUnsent(): boolean {
    return !this.isSent && this.call !== undefined
  }
}

function resourceOf({ call }: Entry): string {
  const item = call!.item as Claim | Renewal
  return 'claim' in item ? item.claim.resource : item.resource
}

/** What a part of the store that hangs must not hold up is sent apart from it. */
export function byPart<Item>(items: readonly Item[], { partOf }: Backend, nameOf: (item: Item) => string): Iterable<readonly Item[]> {
  if (!partOf || items.length < 2) return [items]
  const parts = new Map<unknown, Item[]>()
  for (const item of items) {
    const part = partOf(nameOf(item))
    const others = parts.get(part)
    if (others) others.push(item)
    else parts.set(part, [item])
  }
  return parts.values()
}

/** What was sent together. */
interface Flight {
  readonly sentAt: number
  unanswered: number
}

class Lane {
  /** What travels together is sent in this order. */
  readonly #order: readonly Send<any, any>[]
  readonly #most: number
  readonly #mostFlights: number
  readonly #backend: Backend
  readonly #clock: Clock
  /** What was taken back is settled, but stays here until then: many may be taken back at once. */
  #unsent: Entry[] = []
  #takenBack = 0
  /** What the lane waits for; those that hang are not among them. */
  #flights: Flight[] = []
  #isDue = false
  #hung: Timer | undefined

  constructor(order: readonly Send<any, any>[], most: number, backend: Backend, clock: Clock) {
    this.#order = order
    this.#most = most
    this.#mostFlights = backend.flights ?? 2
    this.#backend = backend
    this.#clock = clock
  }

  add(entry: Entry): void {
    this.#unsent.push(entry)
    if (this.#isDue) return
    const [flight] = this.#flights
    if (!flight) this.#flushSoon()
    else if (this.#unsent.length - this.#takenBack >= WORTH_TWO_FLIGHTS && this.#flights.length < this.#mostFlights) this.#flushSoon()
    else if (!this.#hung) this.#flushIfItHangs(flight)
  }

  /** What is unsent of a claim that is released is not sent any more. */
  takeBack(entry: Entry, { resource }: Claim): void {
    this.#takenBack++
    const error = new LockNotHeldError(resource, `"${resource}" was released meanwhile.`)
    this.#answer(entry, { status: 'failed', error })
  }

  #flushIfItHangs(flight: Flight): void {
    const leftMs = flight.sentAt + HUNG_MS - this.#clock.now()
    const goOn = () => {
      this.#flights = []
      this.#flushSoon()
    }
    if (leftMs <= 0) goOn()
    else this.#hung = this.#clock.timer(leftMs, goOn, 'background')
  }

  /** When everything has run that the last answers have set going: all that it asks for can travel together. */
  #flushSoon(): void {
    this.#isDue = true
    process.nextTick(() => this.#flush())
  }

  #flush(): void {
    this.#isDue = false
    this.#hung?.cancel()
    this.#hung = undefined
    const entries = this.#takenBack === 0 ? this.#unsent : this.#unsent.filter(({ isUnsent }) => isUnsent)
    this.#unsent = []
    this.#takenBack = 0
    if (entries.length === 0) return
    for (const entry of entries) entry.isSent = true
    const isWorthTwo = this.#mostFlights > 1 && entries.length >= WORTH_TWO_FLIGHTS && this.#flights.length === 0
    const most = isWorthTwo ? Math.ceil(entries.length / 2) : entries.length
    for (let i = 0; i < entries.length; i += most) this.#depart(isWorthTwo ? entries.slice(i, i + most) : entries)
  }

  #depart(entries: readonly Entry[]): void {
    const flight = { sentAt: this.#clock.now(), unanswered: 0 }
    this.#flights.push(flight)
    for (const send of this.#order) {
      const its = entries.every((entry) => entry.send === send) ? entries : entries.filter((entry) => entry.send === send)
      for (const part of byPart(its, this.#backend, resourceOf)) {
        for (let i = 0; i < part.length; i += this.#most) this.#send(part.length > this.#most ? part.slice(i, i + this.#most) : part, flight)
      }
    }
  }

  #send(entries: readonly Entry[], flight: Flight): void {
    flight.unanswered++
    this.#request(entries).then(
      (states) => this.#answered(entries, states, flight),
      (error: unknown) => this.#failed(entries, error, flight),
    )
  }

  #answered(entries: readonly Entry[], states: readonly unknown[], flight: Flight): void {
    try {
      complete(states, entries.length, this.#backend)
    } catch (error) {
      return this.#failed(entries, error, flight)
    }
    for (let i = 0; i < entries.length; i++) this.#answer(entries[i]!, states[i])
    this.#landed(flight)
  }

  #failed(entries: readonly Entry[], error: unknown, flight: Flight): void {
    const isForGood = !(error instanceof BackendError && error.transient)
    if (isForGood && entries.length > 1) for (const entry of entries) this.#send([entry], flight)
    else for (const entry of entries) this.#fail(entry, error)
    this.#landed(flight)
  }

  #request(entries: readonly Entry[]): Promise<readonly unknown[]> {
    try {
      return entries[0]!.send(entries.map(({ call }) => call!.item as unknown))
    } catch (error) {
      return Promise.reject(asHoldfastError(error, this.#backend))
    }
  }

  #landed(flight: Flight): void {
    if (--flight.unanswered > 0) return
    const at = this.#flights.indexOf(flight)
    if (at < 0) return
    this.#flights.splice(at, 1)
    if (this.#unsent.length > 0 && !this.#isDue) this.#flushSoon()
  }

  #answer(entry: Entry, state: unknown): void {
    this.#settle(entry).answered(state)
  }

  #fail(entry: Entry, error: unknown): void {
    this.#settle(entry).failed(error)
  }

  /** Its claim may live long: it must not hold on to whoever has asked. */
  #settle(entry: Entry): Call<any, any> {
    const { call } = entry
    entry.call = undefined
    entry.whenSettled?.()
    return call!
  }
}
