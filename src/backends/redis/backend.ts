/**
 * Locks on a single Redis: each step is one script. The scripts are in `lua/`, the layout in `lua/_store.lua`.
 */
import type {
  Backend,
  Blocker,
  Claim,
  ClaimState,
  Failed,
  Holder,
  ReleaseState,
  Renewal,
  RenewState,
  ResourceState,
  RevokeState,
  Scope,
  Traits,
} from '../../core/backend.js'
import { ServerClock } from '../../core/clock.js'
import { BackendError, ConfigurationError, ConnectorError } from '../../core/errors.js'
import { redisError, redisItemError, Script, type IoredisClient } from './client.js'
import { Keys } from './keys.js'
import * as lua from './lua.js'
import { WakeUps } from './wake-ups.js'

export interface RedisOptions {
  /** A grant counts only when this many replicas have it. Narrows what a failover can lose; does not close it. */
  readonly waitReplicas?: { readonly count: number; readonly timeoutMs: number }
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
  readonly name = 'Redis'
  readonly traits: Traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: false, heartbeatMs: 800 }
  readonly #client: IoredisClient
  readonly #closeClient: (() => void) | undefined
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

  constructor(client: IoredisClient, scope: Scope, options: RedisOptions, closeClient?: () => void) {
    this.#client = client
    this.#closeClient = closeClient
    this.#scope = scope
    this.#options = options
    this.#keys = new Keys(scope.prefix)
    this.#wakeUps = new WakeUps(client, scope, this.#keys, this.#serverClock, options.waitReplicas === undefined)
    client.on('close', this.#onClose)
  }

  async ready(): Promise<void> {
    this.#isChecked = true
    let memory: string
    try {
      memory = await this.#client.info('memory')
    } catch (error) {
      const { message, cause } = redisError(error)
      throw new ConnectorError(message, { cause })
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
    const args = renewals.flatMap(({ claim, ttlMs, exact }) => [claim.id, ttlMs, exact ? '1' : '', aboutOf(claim) === '' ? '' : '1'])
    const sentAt = this.#scope.clock.now()
    const [serverMs, ...items] = await this.#run(scripts.renew, claims, args)
    this.#serverClock.observe(sentAt, serverMs)
    return items.map(renewState)
  }

  async release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    const args = claims.flatMap((claim) => [claim.id, claim.ttlMs, aboutOf(claim)])
    const disconnects = this.#disconnects
    const [, ...items] = await this.#run(scripts.release, claims, args)
    // The client sends again what was unanswered when the connection was lost: the first one may have released it.
    const notHeld = this.#disconnects === disconnects ? 'not-held' : 'unknown'
    return items.map((item) => failure(item) ?? { status: item[0] === 1 ? 'released' : notHeld })
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    const [, item] = await this.#run(scripts.revoke, [{ resource }], [when])
    const failed = failure(item!)
    if (failed) throw failed.error
    return item![0] as RevokeState
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
    this.#closeClient?.()
  }

  async #inspectAll(resources: readonly string[]): Promise<ResourceState[]> {
    const items = resources.map((resource) => ({ resource }))
    const [serverMs, ...replies] = await this.#run(scripts.inspect, items, [])
    return replies.flatMap((item, i) => {
      if (failure(item) || item[0] === '') return []
      const [value, pttl, about, members] = item as [string, number, string, string[]]
      const { holder, epoch } = parseHolder(value, pttl, about, serverMs)
      return { key: resources[i]!, limit: 1, holders: [{ ...holder, take: 1, epoch }], waiters: members.map(parseWaiter) }
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
      return (await script.run(this.#client, keys, [...head, ...args])) as Reply
    } catch (error) {
      throw redisError(error)
    }
  }

  #claimState(item: readonly unknown[], serverMs: number): ClaimState {
    const failed = failure(item)
    if (failed) return failed
    if (item[0] === 1) {
      const epoch = BigInt(item[1] as string)
      if (epoch > this.#highestEpoch) this.#highestEpoch = epoch
      return { status: 'held', epoch, waiting: Number(item[2]) }
    }
    const [, place, ahead, waiting, value, pttl, about, subscriptions] = item[0] === 0 ? item : [2, '', ...item.slice(1)]
    const holder = value === '' ? undefined : parseHolder(value as string, pttl as number, about as string, serverMs).holder
    const blocker: Blocker = { holder, ahead: Number(ahead), waiting: Number(waiting) }
    if (item[0] === 2) return { status: 'refused', ...blocker }
    this.#wakeUps.check(Number(subscriptions))
    return { status: 'queued', place: place as string, ...blocker }
  }

  async #claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    const args = claims.flatMap((claim) => [claim.id, claim.ttlMs, claim.place ?? '', aboutOf(claim)])
    const sentAt = this.#scope.clock.now()
    const [serverMs, ...items] = await this.#run(scripts.claim, claims, [ifBusy, ...args])
    this.#serverClock.observe(sentAt, serverMs)
    const states = items.map((item) => this.#claimState(item, serverMs))
    return states.some(({ status }) => status === 'held') ? this.#replicated(states) : states
  }

  /** The last write on this connection is the grant's own, so WAIT speaks of that. */
  async #replicated(states: readonly ClaimState[]): Promise<readonly ClaimState[]> {
    const { waitReplicas } = this.#options
    if (!waitReplicas) return states
    let replicas: number
    try {
      replicas = await this.#client.wait(waitReplicas.count, waitReplicas.timeoutMs)
    } catch (error) {
      throw redisError(error)
    }
    if (replicas >= waitReplicas.count) return states
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

function failure(item: readonly unknown[]): Failed | undefined {
  return item[0] === -1 ? { status: 'failed', error: redisItemError(item[1] as string) } : undefined
}

function renewState(item: readonly unknown[]): RenewState {
  if (item[0] === 1) return { status: 'held', waiting: Number(item[1]) }
  return failure(item) ?? { status: item[0] === 2 ? 'revoked' : 'lost' }
}

/** Type and metadata in one text; empty if there are none. */
function aboutOf({ type, metadata }: Claim): string {
  return type === undefined && metadata === undefined ? '' : JSON.stringify([type ?? null, metadata ?? null])
}

function parseAbout(about: string): { type?: string; metadata?: string } {
  if (about === '') return {}
  const [type, metadata] = JSON.parse(about) as [string | null, string | null]
  return { ...(type === null ? undefined : { type }), ...(metadata === null ? undefined : { metadata }) }
}

/** The value of a lock: ours, or whatever an outsider has put there. */
function parseHolder(value: string, pttl: number, about: string, serverMs: number): { holder: Holder; epoch: bigint | undefined } {
  const match = /^~?[0-9a-f]{32}\.(\d{1,20})\.(.+)$/s.exec(value)
  const expiresInMs = pttl < 0 ? undefined : pttl
  if (!match) return { holder: { owner: undefined, heldForMs: undefined, expiresInMs }, epoch: undefined }
  const epoch = BigInt(match[1]!)
  // An epoch is the grant's time in microseconds, unless it had to run ahead of the clock.
  const heldForMs = Math.max(0, serverMs - Number(epoch / 1000n))
  return { holder: { owner: match[2], heldForMs, expiresInMs, ...parseAbout(about) }, epoch }
}

function parseWaiter(member: string): { owner: string; take: number } {
  const [, take, owner] = /^[0-9a-f]+\|\d+\|(\d+)\|([^\n]*)\n/.exec(member)!
  return { owner: owner!, take: Number(take) }
}
