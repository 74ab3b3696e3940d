/**
 * All the claims of one manager on one backend: makes them, brings each to its resource through a claim loop, keeps what is
 * held, and passes wake-ups on to whom they concern. Locks, semaphores and the rest differ in what their claims take.
 */
import { randomFillSync } from 'node:crypto'
import { answered, answeredOne } from './answer.js'
import type { Backend, BackendFactory, Blocker, Claim, RenewState, ResourceState, RevokeState, WakeUp } from './backend.js'
import { ClaimLoop, type Grant, type Patience } from './claim-loop.js'
import type { Clock } from './clock.js'
import { deadlineOf } from './deadline.js'
import { ManagerClosedError, OwnershipLostError, type HoldfastError } from './errors.js'
import { Events } from './events.js'
import { Hold, type HoldTerms } from './hold.js'
import { Keeper } from './keeper.js'
import { LocalQueue } from './local-queue.js'
import { Withdrawals } from './withdrawals.js'

export interface ClaimRequest extends Patience, HoldTerms {
  readonly resource: string
  readonly take: number
  readonly limit: number
  readonly ttlMs: number
  readonly type: string | undefined
  readonly metadata: string | undefined
}

export interface Refusal {
  readonly blocker: Blocker
  readonly waitedMs: number
}

export class Claims {
  readonly owner: string
  readonly backend: Backend
  readonly events: Events
  readonly clock: Clock
  readonly keeper: Keeper
  readonly #withdrawals: Withdrawals
  readonly #loops = new Map<string, ClaimLoop>()
  readonly #queues = new Map<string, LocalQueue>()
  readonly #adopted = new RecentSet(MAX_ADOPTED)
  readonly #onEnded: (hold: Hold) => void
  #closing: Promise<void> | undefined

  constructor(factory: BackendFactory, scope: { prefix: string; owner: string; clock: Clock }, onEnded: (hold: Hold) => void) {
    const { prefix, owner, clock } = scope
    this.owner = owner
    this.clock = clock
    this.#onEnded = onEnded
    this.backend = factory({
      prefix,
      owner,
      clock,
      wake: (wakeUp) => this.#wake(wakeUp),
      warn: (warning) => this.events.warn(warning),
    })
    this.events = new Events({ owner, prefix, backend: this.backend.name })
    this.keeper = new Keeper(this.backend, clock, this.events)
    this.#withdrawals = new Withdrawals(this.backend, clock, this.events)
  }

  /** The hold, or why there is none within `waitMs`. */
  acquire(request: ClaimRequest): Promise<Hold | Refusal> {
    return new Promise((resolve, reject) => {
      this.assertOpen()
      request.signal?.throwIfAborted()
      const askedAt = this.clock.now()
      const claim = this.#newClaim(request)
      const loop: ClaimLoop = new ClaimLoop(claim, request, this, {
        held: (grant) => resolve(this.#hold(loop.claim, grant, 0, request, this.clock.now() - askedAt)),
        refused: ({ holder, ahead, waiting }) => {
          const refusal = { blocker: { holder, ahead, waiting }, waitedMs: this.clock.now() - askedAt }
          this.events.emit('refused', claim.resource, refusal)
          resolve(refusal)
        },
        cancelled: (reason) => {
          this.events.emit('cancelled', claim.resource, { reason, waitedMs: this.clock.now() - askedAt })
          reject(reason)
        },
        failed: (error) => {
          this.events.emit('claim-failed', claim.resource, { error })
          reject(error)
        },
      })
      this.#loops.set(claim.id, loop)
      loop.start()
    })
  }

  /** Takes up a hold that was given away as another claim. */
  async adopt(claim: Claim, given: { id: string; token: string }, epoch: bigint, turn: number, terms: HoldTerms): Promise<Hold> {
    this.assertOpen()
    // The same text again has the same claim: it is held, being taken up or given on by now.
    if (this.#adopted.has(claim.id)) throw new OwnershipLostError(claim.resource, 'it has been adopted already')
    this.#adopted.add(claim.id)
    const sentAt = this.clock.now()
    const renewal = { claim, ttlMs: claim.ttlMs, exact: false, from: given.token }
    let state: RenewState
    try {
      state = await answeredOne(this.backend.renew([renewal]), this.clock, this.backend)
      if (state.status === 'failed') throw state.error
    } catch (error) {
      this.#adopted.delete(claim.id)
      throw error
    }
    if (state.status === 'lost') {
      throw new OwnershipLostError(claim.resource, 'it ended, or was adopted by another, before it could be adopted')
    }
    const deadline = deadlineOf(sentAt, claim.ttlMs)
    if (state.status === 'revoked' || this.clock.now() >= deadline || this.#closing) {
      // It is ours by now, or nobody's, and nobody will use it.
      this.withdraw(state.status === 'revoked' ? { ...claim, id: given.id } : claim)
      this.assertOpen()
      throw new OwnershipLostError(claim.resource, 'it ended while it was being adopted')
    }
    return this.#hold(claim, { epoch, deadline, unanswered: undefined }, turn, terms, 0)
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    this.assertOpen()
    const state = await answered(this.backend.revoke(resource, when), this.clock, this.backend)
    if (state === 'told' || state === 'freed') this.events.emit('revoked', resource, { when })
    return state
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    this.assertOpen()
    const resources = this.backend.inspect(prefix)[Symbol.asyncIterator]()
    for (;;) {
      const next = await answered(resources.next(), this.clock, this.backend)
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
    return (this.#closing ??= this.#close())
  }

  async #close(): Promise<void> {
    const holds = this.keeper.all()
    for (const hold of holds) hold.closing()
    for (const loop of this.#loops.values()) loop.cancel(new ManagerClosedError())
    await answered(this.#freeAll(holds), this.clock, this.backend).catch(() => {})
    this.keeper.stop()
    await this.backend.close()
  }

  async #freeAll(holds: readonly Hold[]): Promise<void> {
    const release = (hold: Hold) =>
      hold.release().catch((error: HoldfastError) => this.events.emit('release-failed', hold.key, { error }))
    await Promise.all(holds.map(release))
    await this.#withdrawals.close()
  }

  #hold(claim: Claim, grant: Grant, turn: number, terms: HoldTerms, waitedMs: number): Hold {
    const hold = new Hold(claim, grant, turn, terms, this)
    this.events.emit('acquired', claim.resource, { fence: hold.fence, ttlMs: claim.ttlMs, waitedMs })
    return hold
  }

  #newClaim({ resource, take, limit, ttlMs, type, metadata }: ClaimRequest): Claim {
    return {
      id: newId(),
      resource,
      take,
      limit,
      ttlMs: Math.max(ttlMs, this.backend.traits.minTtlMs),
      ...(type === undefined ? undefined : { type }),
      ...(metadata === undefined ? undefined : { metadata }),
    }
  }

  #wake(wakeUp: WakeUp): void {
    switch (wakeUp.kind) {
      case 'granted': {
        const loop = this.#loops.get(wakeUp.claimId)
        if (loop) loop.granted(wakeUp.epoch, wakeUp.since)
        else if (!this.keeper.get(wakeUp.claimId)) this.#withdrawals.cameBack(wakeUp.claimId)
        break
      }
      case 'revoked':
        this.keeper.get(wakeUp.claimId)?.lose('it was revoked')
        this.#loops.get(wakeUp.claimId)?.look()
        break
      case 'contended':
        break
      case 'look':
        if (wakeUp.resource !== undefined) this.#queues.get(wakeUp.resource)?.look()
        else for (const loop of this.#loops.values()) loop.look()
    }
  }

  // What claim loops and holds need from here.

  queued(loop: ClaimLoop, { holder, ahead, waiting }: Blocker): void {
    const { resource } = loop.claim
    let queue = this.#queues.get(resource)
    if (!queue) this.#queues.set(resource, (queue = new LocalQueue()))
    queue.join(loop)
    queue.heard(this.clock.now())
    this.events.emit('waiting', resource, { blocker: { holder, ahead, waiting } })
  }

  asks({ claim }: ClaimLoop): void {
    if (claim.place !== undefined) this.#queues.get(claim.resource)?.heard(this.clock.now())
  }

  heartbeatAt(loop: ClaimLoop): number {
    return this.#queues.get(loop.claim.resource)!.heartbeatAt(loop, this.backend.traits.heartbeatMs)
  }

  another(loop: ClaimLoop): Claim {
    const claim = { ...loop.claim, id: newId() }
    this.#loops.delete(loop.claim.id)
    this.#loops.set(claim.id, loop)
    return claim
  }

  done(loop: ClaimLoop): void {
    const { id, resource } = loop.claim
    this.#loops.delete(id)
    const queue = this.#queues.get(resource)
    if (!queue) return
    queue.leave(loop)
    if (queue.isEmpty) this.#queues.delete(resource)
  }

  withdraw(claim: Claim, unanswered?: Promise<unknown>, ttlMs?: number): void {
    this.#withdrawals.start(claim, unanswered, ttlMs)
  }

  failed(loop: ClaimLoop, error: HoldfastError): void {
    this.events.emit('claim-failed', loop.claim.resource, { error })
  }

  ended(hold: Hold): void {
    this.#onEnded(hold)
  }
}

const MAX_ADOPTED = 10_000

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
