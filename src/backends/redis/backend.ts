/** Redis, as the core sees it: each list is split by slot, and for each slot there is a step. */
import type {
  Backend, Claim, ClaimState, Failed, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope, Traits,
} from '../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../core/errors.js'
import type { OwnClient, RedisClient } from './client.js'
import { redisError } from './errors.js'
import { Keys } from './keys.js'
import { asked, failed, isForGood, orApart, Steps, type Named, type RedisOptions } from './steps.js'
import { RedisVersionedStore } from './versioned-store.js'

const SCAN_PAGE = 200

export class RedisBackend implements Backend {
  readonly name = 'redis'
  readonly traits: Traits
  /** In a cluster, what cannot share a script anyway. */
  readonly partOf: ((resource: string) => number) | undefined
  readonly #client: RedisClient
  readonly #own: OwnClient | undefined
  readonly #scope: Scope
  readonly #keys: Keys
  readonly #steps: Steps
  readonly store: RedisVersionedStore
  #isChecked = false
  #isClosed = false

  constructor(client: RedisClient, scope: Scope, options: RedisOptions, own?: OwnClient) {
    this.#client = client
    this.#own = own
    this.#scope = scope
    if (client.isCluster && !isWhole(scope.prefix)) {
      throw new ConfigurationError(`On a cluster a prefix has no "{", or something in "{…}", unlike "${scope.prefix}".`)
    }
    this.#keys = new Keys(scope.prefix, client.isCluster)
    const ownership = this.#keys.areTogether
    this.traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership }
    this.#steps = new Steps(client, scope, this.#keys, options)
    this.store = new RedisVersionedStore(client, this.#keys, scope)
    this.partOf = client.isCluster ? (resource) => this.#keys.slotOf(resource) : undefined
  }

  get trouble(): Error | undefined {
    return this.#own?.trouble()
  }

  async ready(): Promise<void> {
    this.#isChecked = true
    const policies = new Set<string>()
    try {
      await this.#own?.ready()
      const masters = await this.#client.masters()
      // Of a cluster one that answers will do: it may well be about to replace another.
      const memories = await Promise.allSettled(masters.map((master) => master.call('INFO', 'memory')))
      const answers = memories.flatMap((memory) => (memory.status === 'fulfilled' ? String(memory.value) : []))
      if (answers.length === 0) throw (memories[0] as PromiseRejectedResult | undefined)?.reason ?? new Error('There is no master.')
      for (const memory of answers) policies.add(/^maxmemory_policy:(\S+)/m.exec(memory)?.[1] ?? 'noeviction')
    } catch (error) {
      const said = redisError(error)
      // A user may be forbidden to ask.
      if (!/NOPERM/.test(said.message)) throw new ConnectorError(said.message, { cause: said.cause })
    }
    policies.delete('noeviction')
    for (const policy of policies) {
      this.#scope.warn(
        `Redis has maxmemory-policy ${policy}: when memory runs out it may evict locks, and two could hold one. Set it to noeviction.`,
      )
    }
  }

  claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    // Whoever did not come by connect() should hear of a store that evicts locks, too.
    if (!this.#isChecked) this.ready().catch(() => {})
    const how = ifBusy === 'queue' ? 'hearing' : 'leave'
    if (claims.every(isLock)) return this.#perSlot(claims, resourceOf, (slot, some) => this.#steps.claim(slot, some, how))
    return this.#onlyLocks(claims, ifBusy)
  }

  async #onlyLocks(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    const states = (await this.claim(claims.filter(isLock), ifBusy)).values()
    return claims.map((claim) => (isLock(claim) ? states.next().value! : failed(new ConfigurationError(NOT_COUNTED))))
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    return this.#perSlot(renewals, ({ claim }) => claim.resource, (slot, some) => this.#steps.renew(slot, some))
  }

  release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    return this.#perSlot(claims, resourceOf, (slot, some) => this.#steps.release(slot, some))
  }

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.#steps.revoke(this.#keys.slotOf(resource), resource, when)
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    const seen = new Set<string>()
    for (const master of await asked(this.#client.masters())) {
      let cursor = '0'
      do {
        const page = asked(master.call('SCAN', cursor, 'MATCH', this.#keys.patternFor(prefix), 'COUNT', String(SCAN_PAGE)))
        const [next, locks] = (await page) as [string, string[]]
        cursor = String(next)
        // SCAN may name a key more than once.
        const fresh = locks.map((lock) => this.#keys.resourceOf(lock)).filter((resource) => !seen.has(resource) && seen.add(resource))
        const resources = fresh.map((resource) => ({ resource }))
        yield* (await this.#perSlot(resources, resourceOf, (slot, some) => this.#steps.inspect(slot, some))).flatMap(listed)
      } while (cursor !== '0')
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return
    this.#isClosed = true
    this.store.close()
    await this.#steps.close()
    this.#own?.close()
  }

  /** Splits a list by slot. What fails for one slot is the failure of its items only. */
  #perSlot<Item, State>(
    items: readonly Item[],
    nameOf: (item: Item) => string,
    step: (slot: number, items: readonly Item[]) => Promise<readonly State[]>,
  ): Promise<readonly (State | Failed)[]> {
    if (items.length === 0) return Promise.resolve([])
    if (!this.#client.isCluster || items.length === 1) return step(this.#keys.slotOf(nameOf(items[0]!)), items)
    return this.#split(items, nameOf, step)
  }

  async #split<Item, State>(
    items: readonly Item[],
    nameOf: (item: Item) => string,
    step: (slot: number, items: readonly Item[]) => Promise<readonly State[]>,
  ): Promise<readonly (State | Failed)[]> {
    const slots = new Map<number, number[]>()
    for (const [at, item] of items.entries()) {
      const slot = this.#keys.slotOf(nameOf(item))
      const places = slots.get(slot)
      if (places) places.push(at)
      else slots.set(slot, [at])
    }
    const states = new Array<State | Failed>(items.length)
    const each = Array.from(slots, async ([slot, places]) => {
      let some: readonly (State | Failed)[]
      try {
        some = await orApart(places.map((at) => items[at]!), (part) => step(slot, part), isForGood)
      } catch (error) {
        some = places.map(() => failed(error))
      }
      for (const [i, at] of places.entries()) states[at] = some[i]!
    })
    await Promise.all(each)
    return states
  }
}

const NOT_COUNTED = 'Semaphores and read-write locks are not there yet on Redis.'

function isLock({ take, limit }: Claim): boolean {
  return take === 1 && limit === 1
}

/** Whether the tags of the keys that begin with it still count: the first "{" decides. */
function isWhole(prefix: string): boolean {
  const open = prefix.indexOf('{')
  return open < 0 || prefix.indexOf('}', open) > open + 1
}

function resourceOf({ resource }: Named): string {
  return resource
}

/** What is gone since, or cannot be read, is left out. */
function listed(state: ResourceState | Failed | undefined): ResourceState[] {
  return state && 'key' in state ? [state] : []
}
