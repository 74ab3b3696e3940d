/**
 * One resource: who holds it, and who waits. The states of a claim, seen from here:
 *
 *   unknown → waiting → held → unknown
 *                       held → revoked → unknown
 *
 * - waiting: in the queue, at the place of its ticket
 * - held:    has its slots until it is released or expires
 * - revoked: has its slots in the same way, but can no longer be renewed
 */
import type { Blocker, Claim, Holder, WakeUp } from '../../core/backend.js'
import { TicketQueue } from './queue.js'

/** A process, as the store sees it. */
export interface Member {
  readonly prefix: string
  readonly owner: string
  /** Its claims that wait, so that they can leave with it. */
  readonly waiting: Set<Waiter>
  /** The time on its own clock. */
  now(): number
  tell(wakeUp: WakeUp): void
}

export interface Waiter {
  readonly claim: Claim
  readonly member: Member
  readonly ticket: number
  readonly resource: Resource
}

export interface Hold {
  /** A hold can be given away; then it is another's claim. */
  claim: Claim
  member: Member
  readonly epoch: bigint
  readonly grantedAt: number
  expiresAt: number
  revoked: boolean
}

export class Resource {
  readonly prefix: string
  readonly key: string
  readonly limit: number
  readonly #nextEpoch: () => bigint
  readonly #holds = new Map<string, Hold>()
  readonly #waiters = new Map<string, Waiter>()
  readonly #queue = new TicketQueue<Waiter>()
  #used = 0
  /** No hold expires before this, so that most steps need not look at them all. */
  #nextExpiry = Number.POSITIVE_INFINITY

  constructor(prefix: string, key: string, limit: number, nextEpoch: () => bigint) {
    this.prefix = prefix
    this.key = key
    this.limit = limit
    this.#nextEpoch = nextEpoch
  }

  get idle(): boolean {
    return this.#holds.size === 0 && this.#waiters.size === 0
  }

  get waiting(): number {
    return this.#waiters.size
  }

  /** In the order of their grants. */
  holds(): readonly Hold[] {
    return [...this.#holds.values()].sort((a, b) => Number(a.epoch - b.epoch))
  }

  waiters(): readonly Waiter[] {
    return [...this.#queue]
  }

  hold(id: string): Hold | undefined {
    return this.#holds.get(id)
  }

  waiter(id: string): Waiter | undefined {
    return this.#waiters.get(id)
  }

  /** Whether a ticket is somebody's in the queue. */
  isTaken(ticket: number): boolean {
    return this.#queue.has(ticket)
  }

  isFirst(ticket: number): boolean {
    return this.#queue.first?.ticket === ticket
  }

  /** Whether a claim with this ticket would hold at once: nobody waits before it, and it fits. */
  admits(take: number, ticket: number): boolean {
    return this.#queue.before(ticket) === 0 && this.#fits(take)
  }

  /** Ends what has expired and lets in whoever is next: the first step of everything that is done to a resource. */
  settle(now: number): void {
    if (now >= this.#nextExpiry) this.#purge(now)
    for (let next = this.#queue.first; next !== undefined && this.#fits(next.claim.take); next = this.#queue.first) {
      this.withdraw(next)
      const since = next.member.now()
      const { epoch } = this.grant(next.member, next.claim, now)
      next.member.tell({ kind: 'granted', resource: this.key, claimId: next.claim.id, epoch, since, waiting: this.waiting })
    }
  }

  grant(member: Member, claim: Claim, now: number): Hold {
    const hold = { claim, member, epoch: this.#nextEpoch(), grantedAt: now, expiresAt: 0, revoked: false }
    this.#holds.set(claim.id, hold)
    this.#used += claim.take
    this.expireAt(hold, now + claim.ttlMs)
    return hold
  }

  expireAt(hold: Hold, moment: number): void {
    hold.expiresAt = moment
    this.#nextExpiry = Math.min(this.#nextExpiry, moment)
  }

  /** Ends a hold; who is next comes in when the resource is settled. */
  end(hold: Hold): void {
    this.#holds.delete(hold.claim.id)
    this.#used -= hold.claim.take
  }

  /** The hold with this token. */
  given(token: string): Hold | undefined {
    return this.holds().find(({ claim, epoch, member }) => `${claim.id}.${epoch}.${member.owner}` === token)
  }

  /** The hold of a claim that was given away becomes another's. */
  takeOver(hold: Hold, member: Member, claim: Claim): void {
    this.#holds.delete(hold.claim.id)
    this.#holds.set(claim.id, hold)
    // It has the slots that it has, whatever the new claim says.
    hold.claim = { ...claim, take: hold.claim.take }
    hold.member = member
  }

  enqueue(member: Member, claim: Claim, ticket: number): Waiter {
    const waiter = { claim, member, ticket, resource: this }
    this.#waiters.set(claim.id, waiter)
    this.#queue.add(waiter)
    member.waiting.add(waiter)
    return waiter
  }

  withdraw(waiter: Waiter): void {
    this.#waiters.delete(waiter.claim.id)
    this.#queue.remove(waiter)
    waiter.member.waiting.delete(waiter)
  }

  /** What is in the way of a claim with this ticket, which may be in the queue or not. */
  blocker(ticket: number, now: number): Blocker {
    let first: Hold | undefined
    for (const hold of this.#holds.values()) if (first === undefined || isBefore(hold, first)) first = hold
    return {
      holder: first && describe(first, now),
      ahead: this.#queue.before(ticket),
      waiting: this.waiting - (this.#queue.has(ticket) ? 1 : 0),
    }
  }

  #fits(take: number): boolean {
    return this.#used + take <= this.limit
  }

  #purge(now: number): void {
    this.#nextExpiry = Number.POSITIVE_INFINITY
    for (const hold of this.#holds.values()) {
      if (hold.expiresAt <= now) this.end(hold)
      else this.#nextExpiry = Math.min(this.#nextExpiry, hold.expiresAt)
    }
  }
}

/** Will be free earlier; of two at the same time, the earlier grant. */
function isBefore(a: Hold, b: Hold): boolean {
  return a.expiresAt < b.expiresAt || (a.expiresAt === b.expiresAt && a.epoch < b.epoch)
}

export function describe({ member, claim, epoch, grantedAt, expiresAt }: Hold, now: number): Holder {
  return {
    owner: member.owner,
    epoch,
    heldForMs: now - grantedAt,
    expiresInMs: expiresAt - now,
    ...(claim.type === undefined ? {} : { type: claim.type }),
    ...(claim.metadata === undefined ? {} : { metadata: claim.metadata }),
  }
}
