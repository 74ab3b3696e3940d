/**
 * The steps on Redis, for items of one slot: each is one script. The scripts are in `lua/`, the layout in `lua/_store.lua`.
 */
import {
  EXACT_WITHIN_MS,
  type Blocker,
  type Claim,
  type ClaimState,
  type Failed,
  type ReleaseState,
  type Renewal,
  type RenewState,
  type ResourceState,
  type RevokeState,
  type Scope,
} from '../../core/backend.js'
import { BackendError, ConnectorError, type HoldfastError } from '../../core/errors.js'
import type { RedisClient } from './client.js'
import { isMigrating, redisError } from './errors.js'
import type { Keys } from './keys.js'
import * as lua from './lua.js'
import { aboutOf, codeOf, epochOf, failure, parseHolder, parseWaiter, type Item } from './replies.js'
import { Script, type Reply } from './script.js'
import { ServerClocks } from './server-clocks.js'
import { readTaken, ShortPath } from './short-path.js'
import { WakeUps } from './wake-ups.js'

export interface RedisOptions {
  /** A grant counts only when this many replicas have it. Narrows what a failover can lose; does not close it. Not in a cluster. */
  readonly waitReplicas?: { readonly count: number; readonly timeoutMs: number }
}

const scripts = {
  claim: new Script(lua.claim),
  renew: new Script(lua.renew),
  release: new Script(lua.release),
  revoke: new Script(lua.revoke),
  inspect: new Script(lua.inspect),
  keep: new Script(lua.keep),
  take: new Script(lua.take),
  drop: new Script(lua.drop),
  lone: new Script(lua.lone),
}

export interface Named {
  readonly resource: string
}

/** Redis counts up to 2^63 - 1; no clock shows as much as this in microseconds for 140,000 years. */
const HIGHEST_EPOCH = 2n ** 62n

export class Steps {
  readonly #client: RedisClient
  readonly #scope: Scope
  readonly #options: RedisOptions
  readonly #keys: Keys
  readonly #shortPath: ShortPath
  readonly #serverClocks = new ServerClocks()
  readonly #wakeUps: WakeUps
  /** By slot: who answered last. */
  readonly #nodes = new Map<number, string>()
  /** By slot. Sent along, so that epochs go on growing even if the server has forgotten its last and its clock was set back. */
  readonly #highestEpochs = new Map<number, bigint>()
  #disconnects = 0
  #isClosed = false
  readonly #stopWatching: () => void

  constructor(client: RedisClient, scope: Scope, keys: Keys, options: RedisOptions) {
    this.#client = client
    this.#scope = scope
    this.#options = options
    this.#keys = keys
    this.#shortPath = new ShortPath(keys, scope.clock)
    this.#wakeUps = new WakeUps(client, scope, keys, this.#serverClocks, {
      // The grant was written by another connection: WAIT has to follow a write of our own.
      grantsCount: options.waitReplicas === undefined,
      onEpoch: (resource, epoch) => this.#noteEpoch(this.#keys.slotOf(resource), epoch),
    })
    this.#stopWatching = client.onDisconnect(() => {
      this.#disconnects++
      this.#serverClocks.forget()
      this.#wakeUps.doubt()
    })
  }

  /** Takes what is free; the rest is claimed the long way. */
  async claim(slot: number, claims: readonly Claim[], ifBusy: 'hearing' | 'leave'): Promise<readonly ClaimState[]> {
    if (this.#options.waitReplicas || !this.#shortPath.isFor(claims)) return this.#claimInFull(slot, claims, ifBusy)
    const { owner, clock } = this.#scope
    const words = this.#shortPath.wordsToTake(claims, slot, owner, this.#highestEpochOf(slot), this.#client.isCluster)
    const sentAt = clock.now()
    const [, , [reply]] = await this.#run(scripts.take, 1 + 2 * claims.length, words)
    const taken = readTaken(String(reply))
    if (!taken) return this.#claimInFull(slot, claims, ifBusy)
    const { epoch, states, node } = taken
    this.#note(slot, node, sentAt, Math.floor(epoch / 1_000))
    this.#noteEpoch(slot, BigInt(epoch + states.length - 1))
    this.#wakeUps.openSoon(node)
    const held = (i: number): ClaimState => ({ status: 'held', epoch: BigInt(epoch + i), waiting: 0 })
    if (!states.includes('0')) return claims.map((_, i) => held(i))
    const left = claims.filter((_, i) => states[i] === '0')
    for (const claim of left) this.#shortPath.foundBusy(claim)
    if (left.length === claims.length) return this.#claimInFull(slot, claims, ifBusy)
    const rest = await settled(left, this.#claimInFull(slot, left, ifBusy))
    return claims.map((_, i) => (states[i] === '1' ? held(i) : rest.next().value!))
  }

  async #claimInFull(slot: number, claims: readonly Claim[], ifBusy: 'hearing' | 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    const words = this.#words(slot, claims)
    words.push(ifBusy)
    for (const claim of claims) words.push(wordOf(claim, claim.place ?? ''))
    const sentAt = this.#scope.clock.now()
    const disconnects = this.#disconnects
    const [serverMs, node, items] = await this.#run(scripts.claim, keysFor(claims), words)
    this.#note(slot, node, sentAt, serverMs)
    const states = items.map((item, i) => this.#claimState(item, claims[i]!, slot, node, serverMs))
    if (ifBusy === 'hearing' && states.some(isRefused)) return this.#queue(slot, node, claims, states)
    return this.#options.waitReplicas && states.some(({ status }) => status === 'held') ? this.#replicated(states, disconnects) : states
  }

  /**
   * Most claims never wait, so there is no subscription until one has to. The script queues nobody who could not be told, unless
   * the subscription is not to be had.
   */
  async #queue(slot: number, node: string, claims: readonly Claim[], states: readonly ClaimState[]): Promise<readonly ClaimState[]> {
    await this.#wakeUps.open(node)
    const busy = claims.filter((_, i) => isRefused(states[i]!))
    const asked = this.#claimInFull(slot, busy, 'queue')
    const queued = busy.length === claims.length ? (await asked).values() : await settled(busy, asked)
    return states.map((state) => (isRefused(state) ? queued.next().value! : state))
  }

  async renew(slot: number, renewals: readonly Renewal[]): Promise<readonly (RenewState | Failed)[]> {
    // Half way between two nodes, some of the keys are here and some there.
    const mayBeForOne = (error: unknown) => isForGood(error) || isMigrating(error)
    const keep = (all: readonly Renewal[]) => orApart(all, (some) => this.#keep(slot, some), mayBeForOne)
    const inFull = (all: readonly Renewal[]) => orApart(all, (some) => this.#renewInFull(slot, some), isForGood)
    if (renewals.every(isPlain)) return keep(renewals)
    // Once: by the time of the answer a hold may have been passed on, and not be plain any more.
    const arePlain = renewals.map(isPlain)
    const plain = renewals.filter((_, i) => arePlain[i])
    if (plain.length === 0) return inFull(renewals)
    const others = renewals.filter((_, i) => !arePlain[i])
    const [kept, rest] = (await Promise.all([keep(plain), inFull(others)])).map((states) => states.values())
    return arePlain.map((isPlain) => (isPlain ? kept : rest)!.next().value!)
  }

  /** Most are about nothing but the lock's own key. */
  async #keep(slot: number, renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    const words: string[] = []
    const [{ ttlMs }] = renewals as [Renewal]
    let ids = ''
    let isSameTtl = true
    for (const renewal of renewals) {
      words.push(this.#keys.lockOf(renewal.claim.resource))
      ids += renewal.claim.id
      isSameTtl &&= renewal.ttlMs === ttlMs
    }
    words.push(this.#scope.owner, this.#client.isCluster ? '@' : '', ids)
    if (isSameTtl) words.push(String(ttlMs))
    else for (const renewal of renewals) words.push(String(renewal.ttlMs))
    const sentAt = this.#scope.clock.now()
    const [serverMs, node, states] = await this.#run(scripts.keep, renewals.length, words)
    this.#note(slot, node, sentAt, serverMs)
    return Array.from(String(states), (state) => KEPT[state]!)
  }

  async #renewInFull(slot: number, renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    const sentAt = this.#scope.clock.now()
    const node = this.#nodes.get(slot)
    const serverNow = node === undefined ? undefined : this.#serverClocks.at(node).atMost(sentAt)
    const words = this.#words(slot, renewals.map(({ claim }) => claim))
    for (const { claim, ttlMs, exact, from } of renewals) {
      const shortenUntil = exact && serverNow !== undefined ? `${serverNow + EXACT_WITHIN_MS} ${node}` : ''
      words.push(claim.id, String(ttlMs), shortenUntil, aboutOf(claim) === '' ? '' : '1', from ?? '')
    }
    try {
      const [serverMs, answering, items] = await this.#run(scripts.renew, keysFor(renewals), words)
      this.#note(slot, answering, sentAt, serverMs)
      return items.map((item) => this.#renewState(item, slot))
    } catch (error) {
      if (!isMigrating(error)) throw error
      const alone = async (renewal: Renewal) =>
        renewal.from === undefined ? (await this.#keep(slot, [renewal]))[0]! : failed(error)
      return Promise.all(renewals.map((renewal) => alone(renewal).catch(failed)))
    }
  }

  /** Drops what nobody waits for; the rest is released the long way. */
  async release(slot: number, claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    const disconnects = this.#disconnects
    if (!this.#shortPath.isFor(claims)) return this.#releaseInFull(slot, claims, disconnects)
    let states: string
    try {
      const [, , [reply]] = await this.#run(scripts.drop, 2 * claims.length, this.#shortPath.wordsToDrop(claims))
      states = String(reply)
    } catch (error) {
      if (!isMigrating(error)) throw error
      return this.#releaseAlone(claims, error)
    }
    if (!states.includes('0')) return claims.map(() => RELEASED)
    const left = claims.filter((_, i) => states[i] === '0')
    for (const claim of left) this.#shortPath.foundBusy(claim)
    if (left.length === claims.length) return this.#releaseInFull(slot, claims, disconnects)
    const rest = await settled(left, this.#releaseInFull(slot, left, disconnects))
    return claims.map((_, i) => (states[i] === '1' ? RELEASED : rest.next().value!))
  }

  async #releaseInFull(slot: number, claims: readonly Claim[], disconnects: number): Promise<readonly ReleaseState[]> {
    const words = this.#words(slot, claims)
    for (const claim of claims) words.push(wordOf(claim))
    try {
      const [, , items] = await this.#run(scripts.release, keysFor(claims), words)
      // The client may have sent again what was unanswered when a connection was lost: the first one may have released it.
      const notHeld = this.#disconnects === disconnects ? 'not-held' : 'unknown'
      return items.map((item) => failure(item) ?? { status: codeOf(item) === 1 ? 'released' : notHeld })
    } catch (error) {
      if (!isMigrating(error)) throw error
      return this.#releaseAlone(claims, error)
    }
  }

  /** By the locks' own keys, while the others cannot be reached. */
  #releaseAlone(claims: readonly Claim[], why: unknown): Promise<readonly ReleaseState[]> {
    const alone = async ({ resource, id }: Claim): Promise<ReleaseState> => {
      const [, , [item]] = await this.#run(scripts.lone, 1, [this.#keys.lockOf(resource), id])
      // What is not held may wait, in a queue that cannot be reached now.
      return codeOf(item!) === 1 ? RELEASED : failed(why)
    }
    return Promise.all(claims.map((claim) => alone(claim).catch(failed)))
  }

  async inspect(slot: number, resources: readonly Named[]): Promise<readonly (ResourceState | undefined)[]> {
    const [serverMs, , items] = await this.#run(scripts.inspect, keysFor(resources), this.#words(slot, resources))
    return items.map((item, i) => {
      if (failure(item)) return undefined
      const [value, pttl, about, members] = item as [string, number, string, string[]]
      const holder = parseHolder(value, Number(pttl), about, serverMs)
      return holder && { key: resources[i]!.resource, limit: 1, holders: [{ ...holder, take: 1 }], waiters: members.map(parseWaiter) }
    })
  }

  #run(script: Script, numberOfKeys: number, words: readonly string[]): Promise<Reply> {
    if (this.#isClosed) return Promise.reject(new ConnectorError('This Redis backend is closed.'))
    return script.run(this.#client, numberOfKeys, words)
  }

  /** What every script begins with: its keys, and the arguments that are the same for all items. */
  #words(slot: number, items: readonly Named[]): string[] {
    const words = [this.#keys.fence(slot)]
    for (const { resource } of items) {
      const [lock, queue, heard, meta] = this.#keys.of(resource)
      words.push(lock, queue, heard, meta)
    }
    words.push(this.#scope.owner, this.#highestEpochOf(slot), this.#keys.wake)
    return words
  }

  #highestEpochOf(slot: number): string {
    return String(this.#highestEpochs.get(slot) ?? 0n)
  }

  async revoke(slot: number, resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    const [, , [held]] = await this.#run(scripts.inspect, keysFor([resource]), this.#words(slot, [{ resource }]))
    throwIfFailed(held!)
    let [seen] = held as [string]
    if (seen === '') return 'free'
    for (;;) {
      const [, , [item]] = await this.#run(scripts.revoke, keysFor([resource]), [...this.#words(slot, [{ resource }]), when, seen])
      throwIfFailed(item!)
      const [state, current] = item as readonly unknown[] as [RevokeState | 'changed', string]
      if (state !== 'changed') return state
      // Whoever was seen is out, by this request or before it; unless the same hold was adopted meanwhile.
      const epoch = epochOf(current)
      if (epoch === undefined || epoch !== epochOf(seen)) return 'freed'
      seen = current
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#wakeUps.close()
    this.#stopWatching()
  }

  #claimState(item: Item, { resource }: Claim, slot: number, node: string, serverMs: number): ClaimState {
    if (typeof item !== 'object') {
      const [epochText, waiting, passedOver] = String(item).split(' ')
      const epoch = BigInt(epochText!)
      this.#noteEpoch(slot, epoch)
      this.#wakeUps.openSoon(node)
      this.#passedOver(passedOver, resource)
      return { status: 'held', epoch, waiting: Number(waiting ?? 0) }
    }
    switch (codeOf(item)) {
      case 0: {
        const [, place, ahead, waiting, value, pttl, about, subscriptions, passedOver] = item
        this.#wakeUps.check(node, Number(subscriptions))
        this.#passedOver(passedOver, resource)
        return { status: 'queued', place: place as string, ...this.#blocker([ahead, waiting, value, pttl, about], slot, serverMs) }
      }
      case 3:
        return { status: 'revoked', epoch: BigInt(item[1] as string) }
      case 2:
        return { status: 'refused', ...this.#blocker(item.slice(1), slot, serverMs) }
      default:
        return failure(item)!
    }
  }

  #blocker([ahead, waiting, value, pttl, about]: readonly unknown[], slot: number, serverMs: number): Blocker {
    const holder = parseHolder(value as string, Number(pttl), about as string, serverMs)
    if (holder?.epoch !== undefined) this.#noteEpoch(slot, holder.epoch)
    return { holder, ahead: Number(ahead), waiting: Number(waiting) }
  }

  /** Whoever was passed over was so with all that its process had waiting there: they have to come back, too. */
  #passedOver(flag: unknown, resource: string): void {
    if (Number(flag) === 1) this.#scope.wake({ kind: 'look', resource })
  }

  #renewState(item: Item, slot: number): RenewState {
    const code = codeOf(item)
    if (typeof item !== 'object' || code !== 1) return failure(item) ?? { status: code === 2 ? 'revoked' : 'lost' }
    this.#noteEpoch(slot, BigInt(item[2] as string))
    return { status: 'held', waiting: Number(item[1]) }
  }

  #note(slot: number, node: string, sentAt: number, serverMs: number): void {
    this.#nodes.set(slot, node)
    this.#serverClocks.at(node).observe(sentAt, serverMs)
  }

  #noteEpoch(slot: number, epoch: bigint): void {
    // Anybody may publish, or set a lock's key; the counter must not be set to where it cannot go on.
    if (epoch > HIGHEST_EPOCH) return
    const highest = this.#highestEpochs.get(slot)
    if (highest === undefined || epoch > highest) this.#highestEpochs.set(slot, epoch)
  }

  /** The last write on this connection is the grant's own, so WAIT speaks of that. */
  async #replicated(states: readonly ClaimState[], disconnects: number): Promise<readonly ClaimState[]> {
    const { count, timeoutMs } = this.#options.waitReplicas!
    const replicas = await asked(this.#client.wait!(count, timeoutMs))
    // On another connection than the grant's, WAIT would speak of nothing.
    if (replicas >= count && this.#disconnects === disconnects) return states
    const message = `Only ${replicas} of ${count} replicas have the lock after ${timeoutMs} ms (waitReplicas).`
    const unsafe = failed(new BackendError(message, { transient: true }))
    return states.map((state) => (state.status === 'held' ? unsafe : state))
  }
}

function isRefused({ status }: ClaimState): boolean {
  return status === 'refused'
}

/** Of what `#run` rejects with. */
export function failed(error: unknown): Failed {
  return { status: 'failed', error: error as HoldfastError }
}

export function isForGood(error: unknown): boolean {
  return !(error instanceof BackendError && error.transient)
}

/** Of a second request, for what the first has left. That the others are known must not be lost with it. */
async function settled<State>(items: readonly unknown[], states: Promise<readonly State[]>): Promise<Iterator<State | Failed>> {
  try {
    return (await states).values()
  } catch (error) {
    return items.map(() => failed(error)).values()
  }
}

/** All together; if they are refused for what may be the matter with one of them only, each by itself. */
export async function orApart<Item, State>(
  items: readonly Item[],
  step: (items: readonly Item[]) => Promise<readonly State[]>,
  mayBeForOne: (error: unknown) => boolean,
): Promise<readonly (State | Failed)[]> {
  try {
    return await step(items)
  } catch (error) {
    if (items.length === 1 || !mayBeForOne(error)) throw error
    return Promise.all(items.map((item) => step([item]).then(([state]) => state!, failed)))
  }
}

/** The fence's, and four for each item. */
function keysFor(items: readonly unknown[]): number {
  return 1 + 4 * items.length
}

/** What a script has to know of a claim, in one text: each word on its own takes longer than to put them together. */
function wordOf(claim: Claim, place?: string): string {
  const about = aboutOf(claim)
  const word = `${claim.id} ${claim.ttlMs}`
  if (about === '' && !place) return word
  return place === undefined ? `${word} ${about}` : `${word} ${place} ${about}`
}

/** Nothing but that the lock is to stay what it is for a while longer. */
function isPlain({ claim, exact, from, counting }: Renewal): boolean {
  return !exact && !counting && from === undefined && claim.type === undefined && claim.metadata === undefined
}

const RELEASED: ReleaseState = { status: 'released' }

const KEPT: Readonly<Record<string, RenewState>> = {
  0: { status: 'lost' },
  1: { status: 'held', waiting: undefined },
  2: { status: 'revoked' },
}

function throwIfFailed(item: Item): void {
  const { error } = failure(item) ?? {}
  if (error) throw error
}

/** Errors of the client, in our words. */
export async function asked<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer
  } catch (error) {
    throw redisError(error)
  }
}
