/**
 * Where leaders are announced on stores that have no such thing by themselves: a short log in the versioned store, which only the
 * leader can write (its claim is a condition of the commit). So what observers read is in order, and is never taken back.
 *
 * Without one in which that is possible there is only what the leader's claim says: then a leader cannot say anything new, and observers may
 * miss one who led for a moment.
 */
import { pause } from '../core/abort.js'
import type { Announcement, Board, Claim, Snapshot, VersionedStore } from '../core/backend.js'
import type { Claims } from '../core/claims.js'
import { BackendError, ConfigurationError } from '../core/errors.js'
import { noteOf, stateOf } from './session-note.js'

interface Entry {
  /** Begins at the epoch, which grows even if the store forgets: so whatever observers have heard was before. */
  readonly seq: string
  readonly epoch: string
  /** In hex. */
  readonly lease: string
  readonly value: string
}

/** What observers that are behind can still be told. */
const MOST_ENTRIES = 32
const MOST_BYTES = 64 * 1_024
/** While nothing happens, observers look ever more seldom: up to this many times `retryMs`. */
const MOST_PATIENT = 8

/** Up to where an observer has been told. */
type Seen = Pick<Announcement, 'epoch' | 'revision'>

const NOTHING: Seen = { epoch: 0n, revision: 0n }

/** By the epoch first: a store that has lost what was said counts anew, but no leader has an epoch that was there before. */
function isAfter({ epoch, revision }: Seen, seen: Seen | undefined): boolean {
  return !seen || epoch > seen.epoch || (epoch === seen.epoch && revision > seen.revision)
}

export class StoredBoard implements Board {
  readonly #claims: Claims
  readonly #retryMs: number

  constructor(claims: Claims, retryMs: number) {
    this.#claims = claims
    this.#retryMs = retryMs
  }

  /** Where a leader's claim can be a condition. */
  get #store(): VersionedStore | undefined {
    const { store, traits } = this.#claims.backend
    return traits.ownership ? store : undefined
  }

  async announce(claim: Claim, epoch: bigint, value: string): Promise<boolean> {
    return this.#store ? this.proclaim(claim, epoch, value) : true
  }

  async proclaim(claim: Claim, epoch: bigint, value: string): Promise<boolean> {
    const { answers } = this.#claims
    const store = this.#store
    if (!store) {
      throw new ConfigurationError('proclaim() needs a transaction that can require the leadership. On a Redis Cluster, give the manager a prefix with a tag, such as {app}.')
    }
    const key = keyOf(claim.resource)
    let found = (await answers.inTime(store.read([key])))!
    for (;;) {
      const entries = entriesIn(found)
      const entry: Entry = { seq: String(after(lastSeq(entries), epoch)), epoch: String(epoch), lease: claim.lease!.id.toString(16), value }
      const state = await answers.inTime(store.commit({
        comparisons: [{ key, is: 'equal', revision: found.values[0]?.revision ?? 0n }],
        holds: [{ claim, epoch }],
        puts: [{ key, value: write([...entries, entry]) }],
        deletes: [],
        reads: [key],
      }))
      if (state.status === 'committed') return true
      if (state.status === 'not-held') return false
      if (state.status === 'unknown') throw state.error
      // The leader before has said something, the last that it could.
      found = state
    }
  }

  async leader(resource: string): Promise<Announcement | undefined> {
    return (await this.#look(resource)).leader
  }

  async *observe(resource: string, signal: AbortSignal): AsyncIterable<Announcement> {
    let seen: Seen | undefined
    let patience = 1
    while (!signal.aborted) {
      const { news, upTo } = await this.#news(resource, seen)
      seen = upTo
      for (const leader of news) {
        if (signal.aborted) return
        yield leader
      }
      patience = news.length > 0 ? 1 : Math.min(MOST_PATIENT, patience * 1.2)
      await pause(this.#claims.clock, this.#retryMs * patience * (0.75 + Math.random() / 2), signal)
    }
  }

  /** At first who leads now, if it was announced; then what was said since. A store that cannot be asked has no news. */
  async #news(resource: string, seen: Seen | undefined): Promise<{ news: readonly Announcement[]; upTo: Seen | undefined }> {
    try {
      const { leader, entries, isAnnounced } = await this.#look(resource, seen !== undefined)
      if (seen === undefined || !this.#store) {
        const news = leader && isAnnounced && isAfter(leader, seen) ? [leader] : []
        return { news, upTo: news[0] ?? seen ?? entries.map(leaderOf).at(-1) ?? NOTHING }
      }
      const news = entries.map(leaderOf).filter((one) => isAfter(one, seen))
      return { news, upTo: news.at(-1) ?? seen }
    } catch (error) {
      if (error instanceof BackendError && error.transient) return { news: [], upTo: seen }
      throw error
    }
  }

  /** The log before the holder: whoever is announced in between is told of next. `isLogEnough`: nobody asks who leads now. */
  async #look(resource: string, isLogEnough = false): Promise<{ leader?: Announcement | undefined; entries: readonly Entry[]; isAnnounced?: boolean }> {
    const store = this.#store
    const entries = store ? entriesIn((await this.#claims.answers.inTime(store.read([keyOf(resource)])))!) : []
    const holder = isLogEnough && store ? undefined : (await stateOf(this.#claims, resource))?.holders[0]
    if (holder?.epoch === undefined) return { entries }
    const last = entries.at(-1)
    if (last && BigInt(last.epoch) === holder.epoch) return { leader: leaderOf(last), entries, isAnnounced: true }
    const note = noteOf(holder)
    const revision = store ? lastSeq(entries) : holder.epoch
    const leader = { value: note?.value ?? '', lease: BigInt(`0x${note?.lease ?? 0}`), epoch: holder.epoch, revision }
    return { leader, entries, isAnnounced: !store }
  }
}

/** No key of a transaction's begins like this, unless somebody means it to. */
function keyOf(resource: string): string {
  return `\0leaders/${resource}`
}

function lastSeq(entries: readonly Entry[]): bigint {
  return BigInt(entries.at(-1)?.seq ?? 0)
}

function after(last: bigint, epoch: bigint): bigint {
  return last < epoch ? epoch : last + 1n
}

function leaderOf({ value, lease, epoch, seq }: Entry): Announcement {
  return { value, lease: BigInt(`0x${lease}`), epoch: BigInt(epoch), revision: BigInt(seq) }
}

function entriesIn({ values: [found] }: Snapshot): readonly Entry[] {
  return found ? (JSON.parse(Buffer.from(found.value).toString()) as readonly Entry[]) : []
}

/** The latest, as many as there is room for. */
function write(entries: readonly Entry[]): Uint8Array {
  const bytes = Buffer.from(JSON.stringify(entries))
  const isTooMuch = entries.length > MOST_ENTRIES || (bytes.length > MOST_BYTES && entries.length > 1)
  return isTooMuch ? write(entries.slice(1)) : bytes
}
