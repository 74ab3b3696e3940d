/**
 * Locks on a single Redis: each step is one script. The scripts are in `lua/`, the layout in `lua/_store.lua`.
 */
import {
  EXACT_WITHIN_MS,
  type Backend,
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
  type Traits,
} from '../../core/backend.js'
import { ServerClock } from '../../core/clock.js'
import { BackendError, ConfigurationError, ConnectorError } from '../../core/errors.js'
import { redisError, Script, type IoredisClient } from './client.js'
import { Keys } from './keys.js'
import * as lua from './lua.js'
import { aboutOf, codeOf, epochOf, failure, parseHolder, parseWaiter } from './replies.js'
import { WakeUps } from './wake-ups.js'

export interface RedisOptions {
  /** A grant counts only when this many replicas have it. Narrows what a failover can lose; does not close it. */
  readonly waitReplicas?: { readonly count: number; readonly timeoutMs: number }
}

/** A client that was made for this backend alone. */
export interface OwnClient {
  close(): void
  trouble(): Error | undefined
}

const scripts = {
  claim: new Script(lua.claim),
  renew: new Script(lua.renew),
  release: new Script(lua.release),
  revoke: new Script(lua.revoke),
  inspect: new Script(lua.inspect),
}

type Reply = readonly [serverMs: number, ...items: readonly unknown[][]]

const SCAN_PAGE = 200

export class RedisBackend implements Backend {
  readonly name = 'redis'
  readonly traits: Traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: false, heartbeatMs: 800 }
  readonly #client: IoredisClient
  readonly #own: OwnClient | undefined
  readonly #scope: Scope
  readonly #options: RedisOptions
  readonly #keys: Keys
  readonly #serverClock = new ServerClock()
  readonly #wakeUps: WakeUps
  /** Sent along, so that epochs go on growing even if the server has forgotten its last and its clock was set back. */
  #highestEpoch = 0n
  #disconnects = 0
  #isChecked = false
  #isClosed = false
  readonly #onClose = () => {
    this.#disconnects++
    this.#serverClock.forget()
  }

  constructor(client: IoredisClient, scope: Scope, options: RedisOptions, own?: OwnClient) {
    this.#client = client
    this.#own = own
    this.#scope = scope
    this.#options = options
    this.#keys = new Keys(scope.prefix)
    this.#wakeUps = new WakeUps(client, scope, this.#keys, this.#serverClock, {
      // The grant was written by another connection: WAIT has to follow a write of our own.
      grantsCount: options.waitReplicas === undefined,
      onEpoch: (epoch) => this.#noteEpoch(epoch),
    })
    client.on('close', this.#onClose)
  }

  get trouble(): Error | undefined {
    return this.#own?.trouble()
  }

  async ready(): Promise<void> {
    this.#isChecked = true
    let memory = ''
    try {
      // ioredis goes on in database 0 when there is none of that number.
      const database = this.#own && this.#client.options?.db
      if (database) await this.#client.select(database)
      memory = await this.#client.info('memory')
    } catch (error) {
      const { message, cause } = redisError(error)
      // A user may be forbidden to ask.
      if (!/NOPERM/.test(message)) throw new ConnectorError(message, { cause })
    }
    const policy = /^maxmemory_policy:(\S+)/m.exec(memory)?.[1]
    if (policy !== undefined && policy !== 'noeviction') {
      this.#scope.warn(
        `Redis has maxmemory-policy ${policy}: when memory runs out it may evict locks, and two could hold one. Set it to noeviction.`,
      )
    }
  }

  async claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    const { served, restore } = this.#onlyLocks(claims)
    if (served.length === 0) return restore([])
    const isFirst = ({ place }: Claim) => place === undefined
    if (ifBusy === 'leave' || this.#wakeUps.isOn || !served.some(isFirst)) return restore(await this.#claim(served, ifBusy))
    // Most claims never wait, so there is no subscription until one has to; and none is queued that could not be told.
    const states = await this.#claim(served, 'leave')
    const busy = served.filter((_, i) => states[i]!.status === 'refused')
    if (busy.length === 0) return restore(states)
    await this.#wakeUps.open()
    const queued = (await this.#claim(busy, 'queue')).values()
    return restore(states.map((state) => (state.status === 'refused' ? queued.next().value! : state)))
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    const claims = renewals.map(({ claim }) => claim)
    const sentAt = this.#scope.clock.now()
    const serverNow = this.#serverClock.atMost(sentAt)
    const args = renewals.flatMap(({ claim, ttlMs, exact, from }) => {
      const shortenUntil = exact && serverNow !== undefined ? serverNow + EXACT_WITHIN_MS : ''
      return [claim.id, ttlMs, shortenUntil, aboutOf(claim) === '' ? '' : '1', from ?? '']
    })
    const [serverMs, ...items] = await this.#run(scripts.renew, claims, args)
    this.#serverClock.observe(sentAt, serverMs)
    return items.map((item) => this.#renewState(item))
  }

  async release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    const args = claims.flatMap((claim) => [claim.id, claim.ttlMs, aboutOf(claim)])
    const disconnects = this.#disconnects
    const [, ...items] = await this.#run(scripts.release, claims, args)
    // The client sends again what was unanswered when the connection was lost: the first one may have released it.
    const notHeld = this.#disconnects === disconnects ? 'not-held' : 'unknown'
    return items.map((item) => failure(item) ?? { status: codeOf(item) === 1 ? 'released' : notHeld })
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    let seen: string | null
    try {
      seen = await this.#client.get(this.#keys.of(resource)[0])
    } catch (error) {
      throw redisError(error)
    }
    if (seen === null) return 'free'
    for (;;) {
      const [, item] = await this.#run(scripts.revoke, [{ resource }], [when, seen])
      const failed = failure(item!)
      if (failed) throw failed.error
      const [state, current] = item as [RevokeState | 'changed', string]
      if (state !== 'changed') return state
      // Whoever was seen is out, by this request or before it; unless the same hold was adopted meanwhile.
      const epoch = epochOf(current)
      if (epoch === undefined || epoch !== epochOf(seen)) return 'freed'
      seen = current
    }
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    const seen = new Set<string>()
    let cursor = '0'
    do {
      let locks: string[]
      try {
        ;[cursor, locks] = await this.#client.scan(cursor, 'MATCH', this.#keys.patternFor(prefix), 'COUNT', SCAN_PAGE)
      } catch (error) {
        throw redisError(error)
      }
      // SCAN may name a key more than once.
      const resources = locks.map((lock) => this.#keys.resourceOf(lock)).filter((resource) => !seen.has(resource) && seen.add(resource))
      if (resources.length > 0) yield* await this.#inspectAll(resources)
    } while (cursor !== '0')
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    await this.#wakeUps.close()
    this.#client.off('close', this.#onClose)
    this.#own?.close()
  }

  async #inspectAll(resources: readonly string[]): Promise<ResourceState[]> {
    const items = resources.map((resource) => ({ resource }))
    const [serverMs, ...replies] = await this.#run(scripts.inspect, items, [])
    return replies.flatMap((item, i) => {
      if (failure(item)) return []
      const [value, pttl, about, members] = item as [string, number, string, string[]]
      const holder = parseHolder(value, Number(pttl), about, serverMs)
      return holder ? { key: resources[i]!, limit: 1, holders: [{ ...holder, take: 1 }], waiters: members.map(parseWaiter) } : []
    })
  }

  async #run(script: Script, items: readonly { resource: string }[], args: readonly (string | number)[]): Promise<Reply> {
    if (this.#isClosed) throw new ConnectorError('This Redis backend is closed.')
    // Whoever did not come by connect() should hear of a store that evicts locks, too.
    if (!this.#isChecked) this.ready().catch(() => {})
    const keys = [this.#keys.fence]
    for (const { resource } of items) keys.push(...this.#keys.of(resource))
    const head = [this.#scope.owner, String(this.#highestEpoch), this.#keys.wake]
    try {
      const [serverMs, ...replies] = (await script.run(this.#client, keys, [...head, ...args])) as [number, ...unknown[][]]
      return [Number(serverMs), ...replies]
    } catch (error) {
      throw redisError(error)
    }
  }

  #claimState(item: readonly unknown[], { resource }: Claim, serverMs: number): ClaimState {
    const failed = failure(item)
    if (failed) return failed
    switch (codeOf(item)) {
      case 1: {
        const [, epoch, waiting, passedOver] = item
        this.#noteEpoch(BigInt(epoch as string))
        this.#wakeUps.openSoon()
        this.#passedOver(passedOver, resource)
        return { status: 'held', epoch: BigInt(epoch as string), waiting: Number(waiting) }
      }
      case 0: {
        const [, place, ahead, waiting, value, pttl, about, subscriptions, passedOver] = item
        this.#wakeUps.check(Number(subscriptions))
        this.#passedOver(passedOver, resource)
        return { status: 'queued', place: place as string, ...this.#blocker([ahead, waiting, value, pttl, about], serverMs) }
      }
      case 3:
        return { status: 'revoked', epoch: BigInt(item[1] as string) }
      default:
        return { status: 'refused', ...this.#blocker(item.slice(1), serverMs) }
    }
  }

  #blocker([ahead, waiting, value, pttl, about]: readonly unknown[], serverMs: number): Blocker {
    const holder = parseHolder(value as string, Number(pttl), about as string, serverMs)
    if (holder?.epoch !== undefined) this.#noteEpoch(holder.epoch)
    return { holder, ahead: Number(ahead), waiting: Number(waiting) }
  }

  /** Whoever was passed over was so with all that its process had waiting there: they have to come back, too. */
  #passedOver(flag: unknown, resource: string): void {
    if (Number(flag) === 1) this.#scope.wake({ kind: 'look', resource })
  }

  #renewState(item: readonly unknown[]): RenewState {
    const failed = failure(item)
    if (failed) return failed
    if (codeOf(item) !== 1) return { status: codeOf(item) === 2 ? 'revoked' : 'lost' }
    this.#noteEpoch(BigInt(item[2] as string))
    return { status: 'held', waiting: Number(item[1]) }
  }

  #noteEpoch(epoch: bigint): void {
    if (epoch > this.#highestEpoch) this.#highestEpoch = epoch
  }

  async #claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    const args = claims.flatMap((claim) => [claim.id, claim.ttlMs, claim.place ?? '', aboutOf(claim)])
    const sentAt = this.#scope.clock.now()
    const disconnects = this.#disconnects
    const how = ifBusy === 'queue' && !this.#wakeUps.isOn ? 'deaf' : ifBusy
    const [serverMs, ...items] = await this.#run(scripts.claim, claims, [how, ...args])
    this.#serverClock.observe(sentAt, serverMs)
    const states = items.map((item, i) => this.#claimState(item, claims[i]!, serverMs))
    return states.some(({ status }) => status === 'held') ? this.#replicated(states, disconnects) : states
  }

  /** The last write on this connection is the grant's own, so WAIT speaks of that. */
  async #replicated(states: readonly ClaimState[], disconnects: number): Promise<readonly ClaimState[]> {
    const { waitReplicas } = this.#options
    if (!waitReplicas) return states
    let replicas: number
    try {
      replicas = await this.#client.wait(waitReplicas.count, waitReplicas.timeoutMs)
    } catch (error) {
      throw redisError(error)
    }
    // On another connection than the grant's, WAIT would speak of nothing.
    if (replicas >= waitReplicas.count && this.#disconnects === disconnects) return states
    const message = `Only ${replicas} of ${waitReplicas.count} replicas have the lock after ${waitReplicas.timeoutMs} ms (waitReplicas).`
    const failed: Failed = { status: 'failed', error: new BackendError(message, { transient: true }) }
    return states.map((state) => (state.status === 'held' ? failed : state))
  }

  /** Sets aside claims on counted resources, which this backend does not serve. */
  #onlyLocks(claims: readonly Claim[]) {
    const isLock = ({ take, limit }: Claim) => take === 1 && limit === 1
    const served = claims.filter(isLock)
    const restore = (states: readonly ClaimState[]): readonly ClaimState[] => {
      if (served.length === claims.length) return states
      const rest = states.values()
      return claims.map((claim) => (isLock(claim) ? rest.next().value! : { status: 'failed', error: new ConfigurationError(NOT_COUNTED) }))
    }
    return { served, restore }
  }
}

const NOT_COUNTED = 'Semaphores and read-write locks are not there yet on Redis.'
