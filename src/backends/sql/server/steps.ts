/** The steps in the database: lists go as JSON, sorted by key so that two lists cannot wait for each other, and come back in order. */
import {
  EXACT_WITHIN_MS, type Blocker, type Claim, type ClaimState, type Holder, type ReleaseState, type Renewal,
  type RenewState, type ResourceState, type RevokeState, type Scope,
} from '../../../core/backend.js'
import type { ServerClock } from '../../../core/clock.js'
import { anotherLimit, neverHolds } from '../../../core/slots.js'
import type { Database, ShortStepName, StepName } from './database.js'
import type { OwnClaims } from './own-claims.js'
import type { Retries } from './retries.js'

export interface StepListener {
  /** Whether what is told to this process reaches it. */
  readonly hears: boolean
  /** `saidSo`: whether the database was told that it hears. `isNearer`: it has just come, or come nearer. */
  queued(resource: string, saidSo: boolean, isNearer: boolean): void
  held(): void
  /** A claim of ours was passed over while nothing was heard of us: others may have been, too. */
  passedOver(resource: string): void
}

interface StepSurroundings {
  readonly database: Database
  readonly scope: Scope
  readonly retries: Retries
  readonly claims: OwnClaims
  readonly listener: StepListener
  readonly serverClock: ServerClock
}

const PAGE = 200

export class Steps {
  readonly #database: Database
  readonly #scope: Scope
  readonly #retries: Retries
  readonly #claims: OwnClaims
  readonly #listener: StepListener
  readonly #prefix: string
  readonly #serverClock: ServerClock

  constructor({ database, scope, retries, claims, listener, serverClock }: StepSurroundings) {
    this.#database = database
    this.#scope = scope
    this.#retries = retries
    this.#claims = claims
    this.#listener = listener
    this.#serverClock = serverClock
    this.#prefix = hex(scope.prefix)
  }

  async claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]> {
    const list = new SortedList(claims.filter((claim) => !neverHolds(claim)), ({ resource }) => resource)
    for (const claim of list.items) this.#claims.add(claim)
    const isShort = this.#database.hasShortSteps && list.size === 1 && isPlain(list.items[0]!)
    const asked = isShort ? list.ofOne(({ id, ttlMs }) => [id, String(ttlMs)]) : [
      list.toJson(({ id, take, limit, ttlMs, type, metadata, place }) => ({
        id, take, slots: limit, ttl: ttlMs, type: hex(type), metadata: hex(metadata), place: placeOf(place),
      })),
    ]
    let saidSo = false
    const answers = list.size === 0 ? [] : await this.#call<ClaimAnswer[]>(isShort ? 'claimLock' : 'claim', () => {
      saidSo = this.#listener.hears
      return [this.#prefix, this.#scope.owner, ...asked, String(ifBusy === 'queue'), String(saidSo)]
    })
    const states = new Map(list.items.map((claim, i) => [claim, this.#claimState(claim, answers[i]!, saidSo)]))
    return claims.map((claim) => states.get(claim) ?? neverHolds(claim)!)
  }

  #claimState(claim: Claim, answer: ClaimAnswer, saidSo: boolean): ClaimState {
    const { resource } = claim
    switch (answer[0]) {
      case 'held':
        this.#claims.holds(claim)
        this.#listener.held()
        if (answer[3]) this.#listener.passedOver(resource)
        return { status: 'held', epoch: BigInt(answer[1]), waiting: answer[2] }
      case 'queued':
        this.#listener.queued(resource, saidSo, this.#claims.waits(claim, answer[2]))
        if (answer[5]) this.#listener.passedOver(resource)
        return { status: 'queued', place: answer[1], ...blockerOf(answer[2], answer[3], answer[4]) }
      case 'refused':
        this.#claims.remove(claim)
        return { status: 'refused', ...blockerOf(answer[1], answer[2], answer[3]) }
      case 'revoked':
        return { status: 'revoked', epoch: BigInt(answer[1]) }
      case 'limit':
        this.#claims.remove(claim)
        return anotherLimit(claim, answer[1])
    }
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    const serverNow = this.#serverClock.atMost(this.#scope.clock.now())
    const exactUntil = serverNow === undefined ? undefined : serverNow + EXACT_WITHIN_MS
    const list = new SortedList(renewals, ({ claim }) => claim.resource)
    const asked = list.toJson(({ claim: { id }, ttlMs, exact, from }) => ({
      id, ttl: ttlMs, ...(exact && { exact_until: exactUntil }), ...(from !== undefined && { given: from }),
    }))
    const answers = await this.#call<RenewAnswer[]>('renew', () => [this.#prefix, this.#scope.owner, asked])
    return list.inOrder(list.items.map(({ claim }, i): RenewState => {
      const [status, waiting] = answers[i]!
      if (status !== 'held') {
        this.#claims.lost(claim)
        return { status }
      }
      // One that was given to us is new here.
      this.#claims.add(claim)
      return { status, waiting }
    }))
  }

  async release(claims: readonly Claim[]): Promise<readonly ReleaseState[]> {
    for (const claim of claims) this.#claims.remove(claim)
    const list = new SortedList(claims, ({ resource }) => resource)
    const isShort = this.#database.hasShortSteps && list.size === 1
    const asked = isShort ? list.ofOne(({ id }) => [id]) : [list.toJson(({ id }) => ({ id }))]
    let wasMayBeDone = false
    const answers = await this.#call<ReleaseAnswer[]>(isShort ? 'releaseLock' : 'release', (mayBeDone) => {
      wasMayBeDone = mayBeDone
      return [this.#prefix, this.#scope.owner, ...asked]
    })
    return list.inOrder(answers.map((status) => ({ status: status === 'not-held' && wasMayBeDone ? 'unknown' : status })))
  }

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.#call<RevokeState>('revoke', () => [this.#prefix, this.#scope.owner, hex(resource), String(when === 'now')])
  }

  async *inspect(prefix: string): AsyncIterable<ResourceState> {
    for (let after: string | null = ''; after !== null; ) {
      const from: string = after
      const [last, resources]: InspectAnswer = await this.#call<InspectAnswer>('inspect', () => [this.#prefix, hex(prefix), from, String(PAGE)])
      for (const [key, limit, holders, waiters] of resources) {
        yield {
          key: text(key),
          limit,
          holders: holders.map(([holder, take]) => ({ ...describe(holder), take })),
          waiters: waiters.map(([owner, take]) => ({ owner, take })),
        }
      }
      after = last
    }
  }

  readNews(): Promise<readonly string[]> {
    return this.#call<string[]>('readNews', () => [this.#scope.owner])
  }

  async leave(): Promise<void> {
    await this.#call('leave', () => [this.#scope.owner])
  }

  /** One process does it for all. */
  async tidy(idleMs: number): Promise<void> {
    if (!(await this.#call<boolean>('tidy', () => [String(idleMs)]))) return
    for (let after: [string, string] | null = ['', '']; after; ) {
      const [prefix, key]: [string, string] = after
      after = await this.#call<[string, string] | null>('tidyPage', () => [this.#scope.owner, String(idleMs), prefix, key, String(PAGE)])
    }
  }

  async #call<T>(step: StepName | ShortStepName, values: (mayBeDone: boolean) => readonly string[]): Promise<T> {
    return this.#retries.run(async (mayBeDone) => {
      const sentAt = this.#scope.clock.now()
      const [serverMs, answer] = JSON.parse(await this.#database.call(step, values(mayBeDone))) as [number | null, T]
      if (serverMs !== null) this.#serverClock.observe(sentAt, serverMs)
      return answer
    })
  }
}

type HolderAnswer = [owner: string, epoch: string, heldForMs: number, expiresInMs: number, type: string | null, metadata: string | null]

type ClaimAnswer =
  | ['held', epoch: string, waiting: number, passedOver: boolean]
  | ['queued', place: string, ahead: number, waiting: number, holder: HolderAnswer | null, passedOver: boolean]
  | ['refused', ahead: number, waiting: number, holder: HolderAnswer | null]
  | ['revoked', epoch: string]
  | ['limit', slots: number]

type RenewAnswer = ['held', waiting: number] | ['lost' | 'revoked', undefined]

type ReleaseAnswer = 'released' | 'not-held'

type InspectAnswer = [
  last: string | null,
  resources: [key: string, limit: number, holders: [HolderAnswer, take: number][], waiters: [owner: string, take: number][]][],
]

/** Items in the order of their keys, as bytes: the one order in which everybody locks them. */
class SortedList<Item extends object> {
  readonly items: readonly Item[]
  readonly #keys: readonly string[]
  readonly #order: readonly number[]

  constructor(items: readonly Item[], resourceOf: (item: Item) => string) {
    const keys = items.map((item) => hex(resourceOf(item)))
    this.#order = [...keys.keys()].sort((a, b) => compare(keys[a]!, keys[b]!))
    this.items = this.#order.map((i) => items[i]!)
    this.#keys = this.#order.map((i) => keys[i]!)
  }

  get size(): number {
    return this.items.length
  }

  toJson(fields: (item: Item) => object): string {
    return JSON.stringify(this.items.map((item, i) => ({ key: this.#keys[i], ...fields(item) })))
  }

  /** The key of the only one, and what else there is to say of it. */
  ofOne(words: (item: Item) => readonly string[]): readonly string[] {
    return [this.#keys[0]!, ...words(this.items[0]!)]
  }

  /** What came of the items, in the order in which they were given. */
  inOrder<State>(states: readonly State[]): State[] {
    const ordered: State[] = []
    for (const [i, at] of this.#order.entries()) ordered[at] = states[i]!
    return ordered
  }
}

/** Hexadecimal digits are in the order of the bytes. */
function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

function hex(value: string): string
function hex(value: string | undefined): string | undefined
function hex(value: string | undefined): string | undefined {
  return value === undefined ? undefined : Buffer.from(value).toString('hex')
}

function text(bytes: string): string {
  return Buffer.from(bytes, 'hex').toString()
}

/** What is none of ours would be an error for the whole list. */
function placeOf(place: string | undefined): string | undefined {
  return place !== undefined && /^\d{1,18}$/.test(place) ? place : undefined
}

function blockerOf(ahead: number, waiting: number, holder: HolderAnswer | null): Blocker {
  return { holder: holder ? describe(holder) : undefined, ahead, waiting }
}

function describe([owner, epoch, heldForMs, expiresInMs, type, metadata]: HolderAnswer): Holder {
  return {
    owner,
    epoch: BigInt(epoch),
    heldForMs,
    expiresInMs,
    ...(type !== null && { type: text(type) }),
    ...(metadata !== null && { metadata: text(metadata) }),
  }
}

/** Of a lock, and nothing more to say about it. */
function isPlain({ take, limit, type, metadata, place }: Claim): boolean {
  return take === 1 && limit === 1 && type === undefined && metadata === undefined && place === undefined
}
