/**
 * The contract between the core and a store.
 *
 * A *resource* is what a key names. A *claim* asks for some of its slots, in a first-come-first-served queue: it *holds*
 * them as soon as every earlier live claim and it fit into the resource's limit together; until then it *waits*. An
 * *owner* is the process (one manager in it) that makes claims. An *epoch* numbers the grants of a resource; it only grows,
 * and a fence is made from it. A *wake-up* is what the store tells a process unasked.
 *
 * Every method takes one atomic step per claim on the store. A backend has no wait loops, retries of claims or logging;
 * those live once, above it. Methods reject only when the whole request failed, with a `HoldfastError`; what is wrong with
 * one claim is that claim's `failed` state and leaves its neighbours alone.
 */
import type { Clock } from './clock.js'
import type { HoldfastError } from './errors.js'

/** As many slots as there can be: what a writer takes, and the limit of a read-write lock. */
export const ALL_SLOTS = 2 ** 31 - 1

export interface Claim {
  /** 128 random bits in hex. Whoever knows it can release the claim, and its owner can renew it. */
  readonly id: string
  readonly resource: string
  /** How many slots it takes, out of how many. */
  readonly take: number
  readonly limit: number
  readonly ttlMs: number
  readonly type?: string
  /** JSON text. */
  readonly metadata?: string
  /** Of a session's claim: which session's. */
  readonly lease?: Leased
  /** Its place in the queue as the store last told it: brings back one that was passed over. */
  place?: string
  /** Its token was told to somebody, who may take it over. Until then nobody can, unless a session has it: that is found by its note. */
  isTold?: boolean
}

/**
 * What ties the claims of a session together. A store that has leases of its own (`Backend.leaseTtlMs`) keeps them on one: they end
 * together, and whoever asks in the name of the lease finds what it has there. Any other store has no need to look at this.
 */
export interface Leased {
  readonly id: bigint
  /** What keeps the session itself, or something that it has. */
  readonly role: 'session' | 'member'
  /** Of a session: it was there before, and may be another process's until it is taken up. */
  readonly isTakenUp?: boolean
  /** What a candidate says to all who look. */
  readonly value?: string
}

export type Failed = { readonly status: 'failed'; readonly error: HoldfastError }

export type ClaimState =
  | { readonly status: 'held'; readonly epoch: bigint; readonly waiting: number }
  | ({ readonly status: 'queued'; readonly place: string } & Blocker)
  | ({ readonly status: 'refused' } & Blocker)
  /** It holds, but was revoked: it has to be released before it can be claimed anew. */
  | { readonly status: 'revoked'; readonly epoch: bigint }
  | Failed

/** What stands between a claim and its resource. */
export interface Blocker {
  /** Of several, the one that will be free first. None: only waiters are in the way. */
  readonly holder: Holder | undefined
  /** Waiters before this claim, and in all (itself not counted). */
  readonly ahead: number
  readonly waiting: number
}

export interface Holder {
  /** Undefined for an outsider that does not tell, such as a plain SET NX on Redis. */
  readonly owner: string | undefined
  readonly epoch: bigint | undefined
  readonly heldForMs: number | undefined
  /** Or less, where that is not told exactly. Undefined if it never expires by itself. */
  readonly expiresInMs: number | undefined
  readonly type?: string
  readonly metadata?: string
}

/** Holds are their own renewals: what it says may be another thing by the time of the answer. */
export interface Renewal {
  readonly claim: Claim
  /** What should be left from now on. It never shortens, unless `exact`. */
  readonly ttlMs: number
  readonly exact: boolean
  /**
   * The token of a claim that was given away (`tokenOf`): under the same epoch it becomes this one, with an id of its own. So
   * only one can take it over, and nothing that its last owner still has on its way touches it.
   */
  readonly from?: string
  /** Whether the answer has to say how many wait. Else a backend may leave that out. */
  readonly counting?: boolean
}

/** An exact renewal that arrives later than this does not shorten: it may be an old one, and an extension may have come since. */
export const EXACT_WITHIN_MS = 2_000

export type RenewState =
  | { readonly status: 'held'; readonly waiting: number | undefined }
  /** Revoked: still in the way of others until it is released, but not to be renewed any more. */
  | { readonly status: 'lost' | 'revoked' }
  | Failed

export type ReleaseState =
  /** Unknown: not held, but the client may have sent the request twice and the first may have released it. */
  | { readonly status: 'released' | 'not-held' | 'unknown' }
  | Failed

/** What `revoke` found: nobody, a holder that was told to let go, one whose resource was freed, or one that cannot be told. */
export type RevokeState = 'free' | 'told' | 'freed' | 'outsider'

export type WakeUp =
  /**
   * A claim holds. `since` is a local moment not after the store began to count its TTL; without it the time is not known
   * and the claim has to be asked for again. `forMs` is what it was granted for, if that is not its TTL: until it is renewed, or
   * asked for again. `waiting` is how many wait behind it.
   */
  | {
      readonly kind: 'granted'
      readonly resource: string
      readonly claimId: string
      readonly epoch: bigint
      readonly since: number | undefined
      readonly forMs?: number
      readonly waiting: number
    }
  /** A held claim has been revoked: it is to be released. Or it is lost: it is not there any more. */
  | { readonly kind: 'revoked' | 'lost'; readonly resource: string; readonly claimId: string }
  /** Others wait for what this claim holds, or is about to: the store tells it whenever somebody comes to be the first of them. */
  | { readonly kind: 'contended'; readonly resource: string; readonly claimId: string }
  /** Wake-ups may have been lost: what waits for this resource, or for any, asks again. */
  | { readonly kind: 'look'; readonly resource?: string }

/** A resource as it is now; expired claims are not in it. */
export interface ResourceState {
  readonly key: string
  readonly limit: number
  readonly holders: readonly (Holder & { readonly take: number })[]
  readonly waiters: readonly { readonly owner: string; readonly take: number }[]
}

export interface Traits {
  /** First come, first served. */
  readonly fair: boolean
  /** Whether a grant is told at once, or found out by asking. */
  readonly wakes: 'push' | 'poll'
  readonly minTtlMs: number
  /** Whether it tells when a holder expires, or only what is left at most. */
  readonly tellsExpiry: boolean
  /** Whether one that was granted and let it expire, or was passed over, can have its old place in the line back. */
  readonly keepsPlaces: boolean
  /** Whether limits other than 1 are served. */
  readonly counted: boolean
  /** A process that waits asks at least this often, or it counts as gone. Infinity: no need. */
  readonly heartbeatMs: number
  /** Whether it has a `store`. */
  readonly transactions: boolean
  /** Whether a commit to it can rest on `holds`. If not, such a commit is rejected with a `ConfigurationError`. */
  readonly ownership: boolean
}

/** What a key had at some revision. */
export interface Versioned {
  readonly value: Uint8Array
  /** Of the commit that wrote it. */
  readonly revision: bigint
}

/** What some keys had at one moment; undefined for one that was not there. */
export interface Snapshot {
  /** Of the last commit before that moment. */
  readonly revision: bigint
  readonly values: readonly (Versioned | undefined)[]
}

/** Of the revision of a key's value, which is 0 if it is not there. */
export interface Comparison {
  readonly key: string
  readonly is: 'equal' | 'at-most'
  readonly revision: bigint
}

/**
 * That a claim of ours holds its resource, under this epoch. One that waits, has expired by the store's clock, was released or is
 * another's by now does not; nor does one that was revoked, since it is to let go.
 */
export interface Held {
  readonly claim: Claim
  readonly epoch: bigint
}

/** No key is in both `puts` and `deletes`, or twice in one of them. */
export interface Commit {
  /** Everything is written if all of them are true; else nothing. */
  readonly comparisons: readonly Comparison[]
  /** And if all of these are true at that very moment: nobody else can come to hold the resource between the look and the write. */
  readonly holds?: readonly Held[]
  readonly puts: readonly { readonly key: string; readonly value: Uint8Array }[]
  readonly deletes: readonly string[]
  /** What to bring along in case of a conflict. */
  readonly reads: readonly string[]
}

export type CommitState =
  | { readonly status: 'committed'; readonly revision: bigint }
  /** Nothing was written. What was asked for in `reads`, as it is now. */
  | ({ readonly status: 'conflict' } & Snapshot)
  /** Nothing was written, whatever else there is to say: this claim does not hold, and perhaps others of `holds`. */
  | { readonly status: 'not-held'; readonly claim: Claim }
  /** The answer was lost, and there is no telling: it may have been carried out, or may yet be. */
  | { readonly status: 'unknown'; readonly error: HoldfastError }

/**
 * Keys with values, and one count of commits over all of them: each commit has a higher *revision* than all that can be read before
 * it. These keys have nothing to do with resources; but a commit can rest on our holding some.
 */
export interface VersionedStore {
  /** Now; or `at` an earlier revision: then nothing, if the store cannot tell any more what was there. */
  read(keys: readonly string[], at?: bigint): Promise<Snapshot | undefined>
  /** Carried out once or not at all, however often it has to be sent. It rejects only if nothing was written, and nothing will be. */
  commit(commit: Commit): Promise<CommitState>
}

/** Who leads an election, and with what words. */
export interface Announcement {
  readonly value: string
  /** 0 for one who has none. */
  readonly lease: bigint
  /** Of its grant. */
  readonly epoch: bigint
  /** Grows with everything that a leader of this election says. */
  readonly revision: bigint
}

/** Where leaders are announced: who leads, and what they say. */
export interface Board {
  /** Says with what value a claim has come to lead. False if it does not hold any more: nothing was said. */
  announce(claim: Claim, epoch: bigint, value: string): Promise<boolean>
  /** The same, of another value. */
  proclaim(claim: Claim, epoch: bigint, value: string): Promise<boolean>
  leader(resource: string): Promise<Announcement | undefined>
  /** Who leads, then whatever changes, in order; until `signal` aborts, and then without an error. */
  observe(resource: string, signal: AbortSignal): AsyncIterable<Announcement>
}

/** For whom a backend is opened: one manager. */
export interface Scope {
  readonly prefix: string
  /** Unique: no other process, and no other manager in this one, has it. */
  readonly owner: string
  readonly clock: Clock
  /** How often to look where nothing tells. */
  readonly retryMs: number
  wake(wakeUp: WakeUp): void
  /** Something an operator should know, such as a store that may evict locks. */
  warn(warning: string): void
}

/** What `redisBackend(client)` and the like give. One factory can serve several managers. */
export type BackendFactory = (scope: Scope) => Backend

export interface Backend {
  readonly name: string
  readonly traits: Traits
  /** Whether the store is there and fit for locks; `connect` asks it first, and closes the backend if it takes too long. */
  ready(): Promise<void>
  /**
   * Which part of the store a resource is in, if it has several of which each can fail or hang by itself: what is in another
   * travels apart, so that it need not wait for an answer that does not come.
   */
  readonly partOf?: ((resource: string) => unknown) | undefined
  /**
   * How many requests are worth having on their way at once, when much is asked for: with two, the store has work while we read its
   * answers; with one, more travels together, where a request costs much by itself. Two, unless it says so.
   */
  readonly flights?: 1 | 2
  /** What keeps the store from being reached at the moment, if that is known. */
  readonly trouble?: Error | undefined
  /**
   * Idempotent by claim id: asked again it reports the state, and a claim that holds has at least its TTL again (so a reply
   * lost on the way is safe to ask for again). With `leave`, a claim that cannot hold at once leaves no trace.
   */
  claim(claims: readonly Claim[], ifBusy: 'queue' | 'leave'): Promise<readonly ClaimState[]>
  renew(renewals: readonly Renewal[]): Promise<readonly RenewState[]>
  /** Also withdraws a claim that waits. The same step hands the resource to whoever is next. */
  release(claims: readonly Claim[]): Promise<readonly ReleaseState[]>
  /** Takes a resource from whoever holds it: told (by a wake-up if it listens, else by its next renewal), or freed now. */
  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState>
  inspect(prefix: string): AsyncIterable<ResourceState>
  /** What transactions need, where it can be had. */
  readonly store?: VersionedStore | undefined
  /** Of a store that has leases of its own: what one of them lasts when it is renewed. Undefined if there is none. */
  readonly leaseTtlMs?: ((lease: bigint) => Promise<number | undefined>) | undefined
  /**
   * What this process has on such a lease is left to the lease, and to whoever else keeps it: from now on nothing of it is released
   * from here. What only waits stays there with the rest, or goes first: then that has been tried, once, when it resolves. It never
   * rejects.
   */
  readonly leaveLease?: ((lease: bigint, waiting: 'stays' | 'goes') => Promise<void>) | undefined
  /** Where leaders are announced, if the store does that by itself. */
  readonly board?: Board | undefined
  /** Stops listening. Closes only what it opened itself. */
  close(): Promise<void>
}
