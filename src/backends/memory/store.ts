/**
 * The reference implementation of the rule: a claim holds as soon as every earlier live claim and it fit into the resource's
 * limit together. Each method is one step, on one claim. There are no timers: a hold that has expired ends with the next
 * step on its resource, whoever takes it.
 */
import type {
  Claim, ClaimState, Commit, CommitState, Held, ReleaseState, Renewal, RenewState, ResourceState, RevokeState,
} from '../../core/backend.js'
import { anotherLimit, neverHolds } from '../../core/slots.js'
import { describe, Resource, type Hold, type Member } from './resource.js'
import { MemoryVersionedStore } from './versioned-store.js'

export class MemoryStore {
  readonly #now: () => number
  /** By prefix, then by key, so that no two pairs can mean the same. Only what is in use is here. */
  readonly #resources = new Map<string, Map<string, Resource>>()
  readonly #entries = new Map<string, MemoryVersionedStore>()
  /** Begins with the time of day in microseconds: fences that were kept somewhere are lower, also after a restart. */
  #lastEpoch = BigInt(Date.now()) * 1_000n
  /** One count for all resources: a ticket stays in order even if its resource was idle meanwhile. */
  #lastTicket = 0

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
  }

  /** How many resources are in use, or were when last looked at. */
  get size(): number {
    let size = 0
    for (const resources of this.#resources.values()) size += resources.size
    return size
  }

  /** What transactions work on. */
  entriesOf(prefix: string): MemoryVersionedStore {
    let entries = this.#entries.get(prefix)
    if (!entries) this.#entries.set(prefix, (entries = new MemoryVersionedStore()))
    return entries
  }

  async commit(member: Member, commit: Commit): Promise<CommitState> {
    const now = this.#now()
    const missing = commit.holds?.find((held) => !this.#holds(member, held, now))
    return missing ? { status: 'not-held', claim: missing.claim } : this.entriesOf(member.prefix).commit(commit)
  }

  #holds(member: Member, { claim, epoch }: Held, now: number): boolean {
    const hold = this.#find(member.prefix, claim.resource, now)?.hold(claim.id)
    return hold?.member === member && hold.epoch === epoch && !hold.revoked
  }

  claim(member: Member, claim: Claim, ifBusy: 'queue' | 'leave'): ClaimState {
    const { id, take, limit } = claim
    const never = neverHolds(claim)
    if (never) return never
    const now = this.#now()
    const resource = this.#find(member.prefix, claim.resource, now) ?? this.#add(member.prefix, claim.resource, limit)
    if (resource.limit !== limit) return anotherLimit(claim, resource.limit)

    const hold = resource.hold(id)
    // It can only end now. Queueing behind itself would let it hold twice, where there is room for two.
    if (hold?.revoked) return { status: 'revoked', epoch: hold.epoch }
    if (hold) {
      this.#refresh(resource, hold, now + claim.ttlMs)
      return { status: 'held', epoch: hold.epoch, waiting: resource.waiting }
    }

    const waiter = resource.waiter(id)
    const ticket = waiter?.ticket ?? this.#ticket(resource, claim.place)
    if (!waiter && resource.admits(take, ticket)) {
      const { epoch } = resource.grant(member, claim, now)
      return { status: 'held', epoch, waiting: resource.waiting }
    }
    if (ifBusy === 'queue') {
      if (!waiter) resource.enqueue(member, claim, ticket)
      if (resource.isFirst(ticket)) this.#hint(resource)
      return { status: 'queued', place: String(ticket), ...resource.blocker(ticket, now) }
    }
    if (waiter) {
      resource.withdraw(waiter)
      this.#settle(resource, now)
    }
    return { status: 'refused', ...resource.blocker(ticket, now) }
  }

  renew(member: Member, { claim, ttlMs, exact, from }: Renewal): RenewState {
    const now = this.#now()
    const resource = this.#find(member.prefix, claim.resource, now)
    const given = from !== undefined && !resource?.hold(claim.id) ? resource?.given(from) : undefined
    if (given?.revoked) return { status: 'revoked' }
    if (given) resource!.takeOver(given, member, claim)
    const hold = resource?.hold(claim.id)
    if (!resource || !hold || hold.member !== member) return { status: 'lost' }
    if (hold.revoked) return { status: 'revoked' }
    if (exact) resource.expireAt(hold, now + ttlMs)
    this.#refresh(resource, hold, now + ttlMs)
    return { status: 'held', waiting: resource.waiting }
  }

  release(member: Member, claim: Claim): ReleaseState {
    const now = this.#now()
    const resource = this.#find(member.prefix, claim.resource, now)
    const hold = resource?.hold(claim.id)
    const waiter = resource?.waiter(claim.id)
    if (!resource || !(hold || waiter)) return { status: 'not-held' }
    if (hold) resource.end(hold)
    if (waiter) resource.withdraw(waiter)
    // Also after a waiter: one that was too big for what is free may have kept smaller ones from it.
    this.#settle(resource, now)
    return { status: hold ? 'released' : 'not-held' }
  }

  revoke(member: Member, key: string, when: 'told' | 'now'): RevokeState {
    const now = this.#now()
    const resource = this.#find(member.prefix, key, now)
    const holds = resource?.holds() ?? []
    if (!resource || holds.length === 0) return 'free'
    for (const hold of holds) {
      hold.revoked = true
      // Also if it was told before: whoever asks twice has seen no effect.
      hold.member.tell({ kind: 'revoked', resource: key, claimId: hold.claim.id })
      if (when === 'now') resource.end(hold)
    }
    if (when === 'told') return 'told'
    this.#settle(resource, now)
    return 'freed'
  }

  *inspect(member: Member, prefix: string): Generator<ResourceState> {
    const keys = [...this.#resources.get(member.prefix)?.keys() ?? []]
    for (const key of keys) {
      if (!key.startsWith(prefix)) continue
      const now = this.#now()
      const resource = this.#find(member.prefix, key, now)
      if (!resource) continue
      yield {
        key,
        limit: resource.limit,
        holders: resource.holds().map((hold) => ({ ...describe(hold, now), take: hold.claim.take })),
        waiters: resource.waiters().map(({ member: { owner }, claim: { take } }) => ({ owner, take })),
      }
    }
  }

  /** A process goes: what it waits for is withdrawn, and what it holds stays until it expires. */
  leave(member: Member): void {
    const touched = new Set<Resource>()
    // All of them first, or the next of its own would be let in.
    for (const waiter of [...member.waiting]) {
      waiter.resource.withdraw(waiter)
      touched.add(waiter.resource)
    }
    const now = this.#now()
    for (const resource of touched) this.#settle(resource, now)
  }

  /** Whoever hands over in memory has to know that others wait. */
  #hint(resource: Resource): void {
    for (const { member, claim, revoked } of resource.holds()) {
      if (!revoked) member.tell({ kind: 'contended', resource: resource.key, claimId: claim.id })
    }
  }

  /** Never shortens. */
  #refresh(resource: Resource, hold: Hold, moment: number): void {
    if (moment > hold.expiresAt) resource.expireAt(hold, moment)
  }

  /** The ticket that was told as a place before, if it can be that; else a new one. */
  #ticket(resource: Resource, place: string | undefined): number {
    const told = Number(place)
    if (Number.isSafeInteger(told) && told > 0 && told <= this.#lastTicket && !resource.isTaken(told)) return told
    this.#lastTicket += 1
    return this.#lastTicket
  }

  #find(prefix: string, key: string, now: number): Resource | undefined {
    const resource = this.#resources.get(prefix)?.get(key)
    if (resource) this.#settle(resource, now)
    return resource?.idle ? undefined : resource
  }

  #add(prefix: string, key: string, limit: number): Resource {
    const resource = new Resource(prefix, key, limit, () => (this.#lastEpoch += 1n))
    let resources = this.#resources.get(prefix)
    if (!resources) this.#resources.set(prefix, (resources = new Map()))
    resources.set(key, resource)
    return resource
  }

  #settle(resource: Resource, now: number): void {
    resource.settle(now)
    if (!resource.idle) return
    const resources = this.#resources.get(resource.prefix)
    resources?.delete(resource.key)
    if (resources?.size === 0) this.#resources.delete(resource.prefix)
  }
}
