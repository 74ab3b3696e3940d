/**
 * All the claims of one manager on one backend: makes them, brings each to its resource through a claim loop, keeps what is
 * held, and passes wake-ups on to whom they concern. Locks, semaphores and the rest differ in what their claims take.
 */
import { randomFillSync } from 'node:crypto'
import { Answers } from './answer.js'
import type { Backend, BackendFactory, RenewState, ResourceState, RevokeState, Scope, WakeUp } from './backend.js'
import { Batcher, OwnClaim } from './batcher.js'
import { Breather } from './breather.js'
import type { ClaimLoop } from './claim-loop.js'
import type { Clock } from './clock.js'
import { deadlineOf } from './deadline.js'
import { ManagerClosedError, OwnershipLostError, type HoldfastError } from './errors.js'
import { Events } from './events.js'
import { Hold, type HoldTerms } from './hold.js'
import { Keeper } from './keeper.js'
import { LocalQueue } from './local-queue.js'
import { Registry } from './registry.js'
import { Seat, type SeatSurroundings, type Slots } from './seat.js'
import { Waiter, type ClaimRequest, type Use } from './waiter.js'
import { Withdrawals } from './withdrawals.js'

/** A hold of another's, by its id and its token. */
interface Given {
  readonly id: string
  readonly token: string
}

/** All managers of a process share its event loop. */
const breather = new Breather()

export class Claims implements SeatSurroundings {
  readonly owner: string
  readonly backend: Backend
  readonly answers: Answers
  readonly batcher: Batcher
  readonly breather = breather
  readonly events: Events
  readonly clock: Clock
  readonly keeper: Keeper
  readonly #withdrawals: Withdrawals
  /** By resource. */
  readonly #queues = new Registry<LocalQueue>()
  readonly #adopted = new RecentSet(MOST_RECENT)
  /** Until they are adopted they go by the name that they had here: news of their grant may still come. */
  readonly #givenAway = new RecentSet(MOST_RECENT)
  readonly #adopting = new Set<Promise<Hold>>()
  readonly #onLost: (hold: Hold) => void
  #closing: Promise<void> | undefined

  constructor(factory: BackendFactory, scope: Pick<Scope, 'prefix' | 'owner' | 'clock' | 'retryMs'>, onLost: (hold: Hold) => void) {
    const { prefix, owner, clock, retryMs } = scope
    this.owner = owner
    this.clock = clock
    this.#onLost = onLost
    this.backend = factory({
      prefix,
      owner,
      clock,
      retryMs,
      wake: (wakeUp) => this.#wake(wakeUp),
      warn: (warning) => this.events.warn(warning),
    })
    this.events = new Events({ owner, prefix, backend: this.backend.name })
    this.answers = new Answers(clock, this.backend)
    this.batcher = new Batcher(this.backend, clock)
    this.keeper = new Keeper(this.backend, this.batcher, clock, this.events, ({ resource, id }) => this.#queues.get(resource)?.hold(id))
    this.#withdrawals = new Withdrawals(this.backend, this.batcher, clock, this.events)
  }

  /** What `use` makes, at that very moment, of the hold, or of why there is none within `waitMs`. */
  acquire<T>(resource: string, slots: Slots, request: ClaimRequest, use: Use<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      this.assertOpen()
      request.signal?.throwIfAborted()
      const seat = this.#seatFor(resource, slots, request)
      seat.join(new Waiter(request, seat, this, { use, resolve, reject }))
    })
  }

  #seatFor(resource: string, slots: Slots, request: ClaimRequest): Seat {
    const isShared = request.fairness === 'bounded' && request.autoRenew && request.waitMs > 0
    if (!isShared) return new Seat(resource, slots, request, this)
    const { seats } = this.#queueFor(resource)
    let seat = seats.find((one) => one.suits(slots, request))
    if (!seat) seats.push((seat = new Seat(resource, slots, request, this)))
    return seat
  }

  #queueFor(resource: string): LocalQueue {
    let queue = this.#queues.get(resource)
    if (!queue) this.#queues.add((queue = new LocalQueue(resource)))
    return queue
  }

  /** Takes up a hold that was given away as another claim; or, with nothing `given`, one that is this very claim. */
  adopt(claim: OwnClaim, given: Given | undefined, epoch: bigint, turn: number, terms: HoldTerms): Promise<Hold> {
    const adoption = this.#adopt(claim, given, epoch, turn, terms)
    this.#adopting.add(adoption)
    const over = () => this.#adopting.delete(adoption)
    adoption.then(over, over)
    return adoption
  }

  async #adopt(claim: OwnClaim, given: Given | undefined, epoch: bigint, turn: number, terms: HoldTerms): Promise<Hold> {
    this.assertOpen()
    // The same text again has the same claim: it is held, being taken up or given on by now. What a session has may well come back.
    const isOnce = given !== undefined && !claim.lease
    if (isOnce && this.#adopted.has(claim.id)) throw new OwnershipLostError(claim.resource, 'it has been adopted already')
    if (isOnce) this.#adopted.add(claim.id)
    if (this.#withdrawals.has(claim)) throw new OwnershipLostError(claim.resource, 'it was let go of, and is on its way out')
    const sentAt = this.clock.now()
    const renewal = { claim, ttlMs: claim.ttlMs, exact: false, ...(given && { from: given.token }) }
    let state: RenewState
    try {
      state = await this.answers.of((answered, failed) => this.batcher.renew({ item: renewal, answered, failed }))
      if (state.status === 'failed') throw state.error
    } catch (error) {
      this.#adopted.delete(claim.id)
      throw error
    }
    if (state.status === 'lost') {
      throw new OwnershipLostError(claim.resource, 'it ended, or was adopted by another, before it could be adopted')
    }
    const deadline = deadlineOf(sentAt, claim.ttlMs)
    if (state.status === 'revoked' || this.clock.now() >= deadline || this.#closing || this.#withdrawals.has(claim)) {
      // It is ours by now, or nobody's, and nobody will use it.
      this.withdraw(state.status === 'revoked' && given ? claim.as(given.id) : claim)
      this.assertOpen()
      throw new OwnershipLostError(claim.resource, 'it ended while it was being adopted')
    }
    const hold = new Hold(claim, { epoch, deadline, turn, now: this.clock.now() }, terms, this)
    this.events.emit('acquired', claim.resource, { fence: hold.fence, ttlMs: claim.ttlMs, waitedMs: 0 })
    return hold
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    this.assertOpen()
    const state = await this.answers.inTime(this.backend.revoke(resource, when))
    if (state === 'told' || state === 'freed') this.events.emit('revoked', resource, { when })
    return state
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    this.assertOpen()
    const resources = this.backend.inspect(prefix)[Symbol.asyncIterator]()
    for (;;) {
      const next = await this.answers.inTime(resources.next())
      if (next.done) return
      let wantsMore = false
      try {
        yield next.value
        wantsMore = true
      } finally {
        if (!wantsMore) await resources.return?.()
      }
    }
  }

  assertOpen(): void {
    if (this.#closing) throw new ManagerClosedError()
  }

  /** Tells everybody first, then frees everything held and queued; a store that does not answer is not waited for long. */
  close(): Promise<void> {
    if (this.#closing) return this.#closing
    let closed!: (done: Promise<void>) => void
    // Before anybody is told: whoever hears of it may ask for more, or close it, too.
    this.#closing = new Promise((resolve) => (closed = resolve))
    closed(this.#close())
    return this.#closing
  }

  async #close(): Promise<void> {
    for (const hold of this.keeper.all()) hold.closing(new ManagerClosedError())
    for (const queue of this.#queues) {
      // Also those whose hold is just being lost or given away.
      for (const seat of [...queue.seats]) seat.cancel(new ManagerClosedError())
      for (const loop of queue.claims) loop.outcome.cancel(new ManagerClosedError())
    }
    // Whoever was told may have handed something over meanwhile.
    await this.answers.inTime(this.#freeAll(this.keeper.all())).catch(() => {})
    this.keeper.stop()
    this.answers.stop()
    await this.backend.close()
  }

  async #freeAll(holds: readonly Hold[]): Promise<void> {
    const release = (hold: Hold) =>
      hold.release().catch((error: HoldfastError) => this.events.emit('release-failed', hold.key, { error }))
    await Promise.all(holds.map(release))
    // What is being adopted is given back when that is done.
    await Promise.allSettled(this.#adopting)
    await this.#withdrawals.close()
  }

  #wake(wakeUp: WakeUp): void {
    if (wakeUp.kind === 'look' && wakeUp.resource === undefined) {
      for (const each of this.#queues) each.look()
      return
    }
    const queue = this.#queues.get(wakeUp.resource!)
    if (wakeUp.kind === 'look') return queue?.look()
    const { claimId } = wakeUp
    const loop = queue?.claim(claimId)
    const hold = queue?.hold(claimId)
    switch (wakeUp.kind) {
      case 'granted':
        if (loop) loop.granted(wakeUp.epoch, wakeUp.since, wakeUp.waiting, wakeUp.forMs)
        else if (!hold && !this.#givenAway.has(claimId)) this.#withdrawals.cameBack(claimId, wakeUp.resource)
        break
      case 'revoked':
        hold?.lose('it was revoked')
        loop?.look()
        break
      case 'lost':
        hold?.lose('the store has ended it')
        loop?.look()
        break
      case 'contended':
        // It can overtake the grant's own reply.
        loop?.outcome.contended()
        if (hold?.isKept) hold.seat?.contended()
    }
  }

  // What seats, claim loops and holds need from here.

  newClaim({ resource, slots, request }: Seat): OwnClaim {
    const { take, limit } = slots
    const { type, metadata, lease, claimId } = request
    const ttlMs = Math.max(request.ttlMs, this.backend.traits.minTtlMs)
    return new OwnClaim({ id: claimId ?? newId(), resource, take, limit, ttlMs, type, metadata, lease })
  }

  pursues(loop: ClaimLoop): void {
    this.#queueFor(loop.claim.resource).join(loop)
  }

  vacant(seat: Seat): void {
    const queue = this.#queues.get(seat.resource)
    const at = queue ? queue.seats.indexOf(seat) : -1
    if (!queue || at < 0) return
    queue.seats.splice(at, 1)
    this.#tidy(queue)
  }

  #tidy(queue: LocalQueue): void {
    if (queue.isEmpty) this.#queues.remove(queue)
  }

  queued(loop: ClaimLoop): void {
    this.#queues.get(loop.claim.resource)!.heard(this.clock.now())
  }

  asks({ claim }: ClaimLoop): void {
    if (claim.place !== undefined) this.#queues.get(claim.resource)?.heard(this.clock.now())
  }

  heartbeatAt(loop: ClaimLoop): number {
    return this.#queues.get(loop.claim.resource)!.heartbeatAt(loop, this.backend.traits.heartbeatMs)
  }

  epochOf({ resource, id }: OwnClaim): bigint | undefined {
    return this.#queues.get(resource)?.hold(id)?.epoch
  }

  another({ claim }: ClaimLoop): OwnClaim {
    return claim.as(newId())
  }

  done(loop: ClaimLoop): void {
    const queue = this.#queues.get(loop.claim.resource)!
    queue.leave(loop)
    this.#tidy(queue)
  }

  withdraw(claim: OwnClaim, ttlMs?: number): void {
    this.#withdrawals.start(claim, ttlMs)
  }

  failed(loop: ClaimLoop, error: HoldfastError): void {
    this.events.emit('claim-failed', loop.claim.resource, { error })
  }

  began(hold: Hold): void {
    this.#queueFor(hold.key).holds.push(hold)
    this.keeper.add(hold)
  }

  ended(hold: Hold): void {
    this.keeper.remove(hold)
    const queue = this.#queues.get(hold.key)
    if (queue) {
      queue.holds.splice(queue.holds.indexOf(hold), 1)
      this.#tidy(queue)
    }
    if (hold.isGivenAway) this.#givenAway.add(hold.claim.id)
    if (hold.isLost) this.#onLost(hold)
  }

  /** What this process holds of a resource, in the order of its acquisition. */
  holdsOn(resource: string): readonly Hold[] {
    return this.#queues.get(resource)?.holds ?? []
  }
}

const MOST_RECENT = 10_000

/** Remembers the latest of what was added. */
class RecentSet extends Set<string> {
  readonly #most: number

  constructor(most: number) {
    super()
    this.#most = most
  }

  override add(value: string): this {
    super.add(value)
    if (this.size > this.#most) this.delete(this.values().next().value!)
    return this
  }
}

const pool = Buffer.alloc(16 * 256)
let used = pool.length

/** 128 random bits; drawn in bulk, which is many times cheaper than one by one. */
function newId(): string {
  if (used === pool.length) {
    randomFillSync(pool)
    used = 0
  }
  return pool.toString('hex', used, (used += 16))
}
