/**
 * The one place that callers of this process share in the store's queue for a resource, if one claim is right for all of them:
 * the same TTL, renewal, type and metadata. Others, and those who want strict fairness, have a seat each.
 *
 *   vacant → nobody is here: the seat is forgotten
 *   asking → a claim loop brings its claim to the resource, for whoever is first in line here
 *   held   → one of them holds
 *
 *   vacant → asking → held → held     the next in line has been served in memory, with no request: another hold of the same claim
 *                     held → asking   its turn is over, or the hold was lost or given away: a fresh claim, behind those who wait
 *   asking → vacant                   the last in line has left; its claim is withdrawn
 *   held   → vacant                   nobody was left to serve; the claim was released
 *
 * A *turn* is what a process has of a resource before others have theirs. While others wait, it lasts for one pass over the
 * line as it was when that became known, but no less than 2 and no more than 50 ms. A process learns that others wait from every
 * answer and grant, from the store's hint, and for want of all that from renewals, which come often while it serves in memory.
 * The turn also ends when the fences of the claim's epoch are used up, or its TTL has run down. If nobody else waits, the fresh
 * claim holds at once.
 */
import type { Blocker } from './backend.js'
import type { Breather } from './breather.js'
import type { Clock } from './clock.js'
import { ClaimLoop, type Grant, type Outcome, type Surroundings } from './claim-loop.js'
import type { HoldfastError } from './errors.js'
import type { Events } from './events.js'
import { Hold, TURNS, type HoldSurroundings } from './hold.js'
import { Line } from './line.js'
import type { ClaimRequest, Waiter } from './waiter.js'
import type { OwnClaim } from './batcher.js'

export interface Slots {
  readonly take: number
  readonly limit: number
}

/** What a seat needs from the process around it. */
export interface SeatSurroundings extends Surroundings, HoldSurroundings {
  readonly owner: string
  readonly clock: Clock
  readonly events: Events
  readonly breather: Breather
  newClaim(seat: Seat): OwnClaim
  /** A claim of the seat's is on its way. */
  pursues(loop: ClaimLoop): void
  vacant(seat: Seat): void
}

const SHORTEST_TURN_MS = 2
const LONGEST_TURN_MS = 50

export class Seat implements Outcome {
  readonly resource: string
  readonly slots: Slots
  readonly request: ClaimRequest
  readonly #around: SeatSurroundings
  readonly #line = new Line<Waiter>()
  #loop: ClaimLoop | undefined
  #hold: Hold | undefined
  /** Since when others are known to wait. */
  #contendedAt = Infinity
  /** How many of those who were in line then are still to be served. */
  #passLeft = 0
  /** How many wait elsewhere, as far as is known. */
  #othersWaiting = 0

  constructor(resource: string, slots: Slots, request: ClaimRequest, around: SeatSurroundings) {
    this.resource = resource
    this.slots = slots
    this.request = request
    this.#around = around
  }

  /** Whether a claim that is right for those here is right for this one, too. */
  suits({ take, limit }: Slots, { ttlMs, retryMs, renewEveryMs, type, metadata }: ClaimRequest): boolean {
    const { slots, request } = this
    return (
      ttlMs === request.ttlMs &&
      type === request.type &&
      metadata === request.metadata &&
      renewEveryMs === request.renewEveryMs &&
      retryMs === request.retryMs &&
      take === slots.take &&
      limit === slots.limit
    )
  }

  get hasLine(): boolean {
    return this.#line.first !== undefined
  }

  join(waiter: Waiter): void {
    this.#line.join(waiter)
    if (!this.#loop && !this.#hold) return this.#ask(waiter.askedAt)
    if (this.#line.size === 1) this.#hold?.waitedFor()
    if (!this.#around.events.hears('waiting')) return
    const blocker = this.#blocker(this.#line.size - 1)
    if (blocker) waiter.waits(blocker)
  }

  leave(waiter: Waiter): void {
    this.#line.leave(waiter)
    if (this.#line.first || !this.#loop) return
    this.#loop.cancel()
    this.#loop = undefined
    this.#around.vacant(this)
  }

  /** Sends everybody away, whoever else leaves because of that. */
  cancel(reason: unknown): void {
    for (const waiter of this.#line.leaving()) waiter.cancel(reason)
  }

  verdict(waiter: Waiter, waitedMs: number): Blocker | HoldfastError {
    const verdict = this.#loop?.verdict(waitedMs)
    return verdict instanceof Error ? verdict : this.#blocker(this.#line.before(waiter))!
  }

  /** What is in the way of somebody in line with so many before it here. */
  #blocker(before: number): Blocker | undefined {
    const elsewhere = this.#hold ? this.#ownBlocker(this.#hold) : this.#loop?.blocker
    if (!elsewhere) return undefined
    const { holder, ahead, waiting } = elsewhere
    return { holder, ahead: ahead + before, waiting: waiting + this.#line.size - 1 }
  }

  #ownBlocker({ epoch, acquiredAt, endsAt }: Hold): Blocker {
    const { owner, clock } = this.#around
    const { type, metadata } = this.request
    const now = clock.now()
    const holder = {
      owner,
      epoch,
      heldForMs: now - acquiredAt,
      expiresInMs: Math.max(0, endsAt - now),
      ...(type === undefined ? undefined : { type }),
      ...(metadata === undefined ? undefined : { metadata }),
    }
    return { holder, ahead: 0, waiting: this.#othersWaiting }
  }

  #ask(now: number, known?: Blocker): void {
    this.#contendedAt = Infinity
    this.#othersWaiting = 0
    const { waitMs, retryMs, autoRenew } = this.request
    const pursuit = { ifBusy: waitMs === 0 ? 'leave' : 'queue', retryMs, autoRenew } as const
    this.#loop = new ClaimLoop(this.#around.newClaim(this), pursuit, this.#around, this, now, known)
    this.#around.pursues(this.#loop)
    this.#loop.start()
  }

  // What comes of asking.

  held({ claim, epoch, deadline, waiting, now }: Grant): void {
    this.#loop = undefined
    const waiter = this.#line.first!
    this.#line.leave(waiter)
    // If others were known to wait before the grant was, it is one of those who were in line then.
    this.#passLeft--
    this.waiting(waiting)
    this.#hold = new Hold(claim, { epoch, deadline, turn: 0, now }, waiter.request, this.#around, this)
    waiter.held(this.#hold)
    this.queued()
  }

  refused(blocker: Blocker): void {
    this.#loop = undefined
    const waiters = [...this.#line.leaving()]
    this.#around.vacant(this)
    for (const waiter of waiters) waiter.refused(blocker)
  }

  failed(error: HoldfastError): void {
    this.#loop = undefined
    const waiters = [...this.#line.leaving()]
    this.#around.vacant(this)
    for (const waiter of waiters) waiter.failed(error)
  }

  /** Those in line have to wait, and it is known for what. */
  queued(): void {
    if (!this.#around.events.hears('waiting')) return
    const blockers = [...this.#line].map((waiter, before) => [waiter, this.#blocker(before)!] as const)
    // Whoever hears of it may send some of them away.
    for (const [waiter, blocker] of blockers) if (this.#line.has(waiter)) waiter.waits(blocker)
  }

  // What becomes of the hold.

  contended(): void {
    this.waiting(Math.max(1, this.#othersWaiting))
  }

  /** So many wait elsewhere. */
  waiting(others: number): void {
    this.#othersWaiting = others
    if (others === 0 || this.#contendedAt < Infinity) return
    this.#contendedAt = this.#around.clock.now()
    this.#passLeft = this.#line.size
  }

  /** Lets the next in line have it, if there is one and it may. */
  handOver(hold: Hold, now: number): (() => void) | undefined {
    const next = this.#line.first
    if (!next || hold !== this.#hold || !this.#mayGoOn(hold, now)) return undefined
    this.#line.leave(next)
    this.#passLeft--
    // From here on it is granted, though it may be told a little later.
    next.stop()
    const successor = hold.passOn(next.request, now)
    this.#hold = successor
    return () => this.#around.breather.run(now, () => next.held(successor))
  }

  #mayGoOn(hold: Hold, now: number): boolean {
    const turnMs = now - this.#contendedAt
    const isTurnOver = turnMs >= LONGEST_TURN_MS || (turnMs >= SHORTEST_TURN_MS && this.#passLeft <= 0)
    // One that was extended is not what those in line have asked for.
    const isAsAsked = !hold.isExtended && hold.remainsFor(now) >= hold.ttlMs / 2
    return !isTurnOver && isAsAsked && hold.turn + 1 < TURNS
  }

  /** The hold is over otherwise than by a hand-over. */
  ended(hold: Hold): void {
    if (hold !== this.#hold) return
    this.#hold = undefined
    const others = this.#othersWaiting
    // Those in line know what they wait for: until the store answers, that others are first.
    if (this.#line.first) this.#ask(this.#around.clock.now(), { holder: undefined, ahead: others, waiting: others })
    else this.#around.vacant(this)
  }
}
