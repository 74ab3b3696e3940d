/**
 * In etcd a leader's words are the value of its key, and etcd keeps what was there before: whoever observes follows the history of
 * all candidates' keys, and so misses no leader, unless it was compacted away.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Announcement, Board, Claim } from '../../core/backend.js'
import { BackendError } from '../../core/errors.js'
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import type { KeyValue, WatchEvent } from './client/messages.js'
import type { Watch } from './client/watch.js'
import { etcdError, mayBeDone } from './errors.js'
import { endOf, fromBytes, isIn, memberDirectory, toBytes } from './keys.js'
import type { OwnClaim } from './own-claim.js'

/** Of a write whose answer is lost, or that somebody else's came before. */
const TRIES = 5
const READ_AGAIN_MS = 200
/** So long a member, or etcd 3.4 while its leader changes, may be behind what it has told already. */
const A_MOMENT_MS = 5_000
const A_LONG_TIME_MS = 600_000

export class EtcdBoard implements Board {
  readonly #client: EtcdClient
  readonly #known: (claim: Claim) => OwnClaim | undefined
  readonly #checkOpen: () => void

  constructor(client: EtcdClient, known: (claim: Claim) => OwnClaim | undefined, checkOpen: () => void) {
    this.#client = client
    this.#known = known
    this.#checkOpen = checkOpen
  }

  /** It was put there with its key, unless that was there before: then perhaps with another value, and perhaps by us. */
  async announce(claim: Claim, epoch: bigint, value: string): Promise<boolean> {
    const own = this.#known(claim)
    return own && !own.wasThere && claim.lease?.value === value ? true : this.#say(claim, epoch, value, 'may be said')
  }

  proclaim(claim: Claim, epoch: bigint, value: string): Promise<boolean> {
    return this.#say(claim, epoch, value, 'is new')
  }

  /** As it was read: what is late of an earlier proclamation must not take a later one back. */
  async #say(claim: Claim, epoch: bigint, value: string, state: 'is new' | 'may be said'): Promise<boolean> {
    this.#checkOpen()
    const own = this.#known(claim)
    if (!own) return false
    const key = toBytes(own.key)
    let maybeSaid = state === 'may be said'
    for (let tries = 1; ; tries++) {
      try {
        const [found] = (await this.#client.range({ key })).kvs
        if (found?.createRevision !== epoch) return false
        // Whoever observes is told of each time that it is put.
        if (maybeSaid && found.value.toString() === value) return true
        maybeSaid = true
        const { succeeded } = await this.#client.txn({
          compare: [{ key, target: 'mod', value: found.modRevision }],
          success: [{ kind: 'put', key, value: Buffer.from(value), lease: own.lease.id }],
        })
        if (succeeded) return true
        if (tries >= TRIES) throw new BackendError('The value of the leader is being changed by others.', { transient: true })
      } catch (error) {
        if (!mayBeDone(error) || tries >= TRIES) throw etcdError(error)
      }
    }
  }

  async leader(resource: string): Promise<Announcement | undefined> {
    this.#checkOpen()
    try {
      const directory = memberDirectory(resource)
      const { kvs, revision } = await this.#client.range(rangeOf(directory))
      const first = firstOf(candidatesIn(directory, kvs))
      return first && announced(first, revision)
    } catch (error) {
      throw etcdError(error)
    }
  }

  observe(resource: string, signal: AbortSignal): AsyncIterable<Announcement> {
    this.#checkOpen()
    return new Observation(memberDirectory(resource), this.#client).run(signal)
  }
}

/**
 * What one observer has seen.
 *
 *   unknown   → a watch is there, or is being made; then the candidates are read
 *   following → they are known, and each event brings them up to date
 *   following → following   the stream was lost: the next watch begins where the last has ended
 *   following → unknown     what happened meanwhile is not kept any more, or a snapshot was restored: what was known never happened
 */
class Observation {
  readonly #directory: string
  readonly #client: EtcdClient
  readonly #news: Announcement[] = []
  /** Undefined while they are not known. */
  #candidates: Map<string, KeyValue> | undefined
  /** Events that came before they were. */
  #early: WatchEvent[] = []
  /** What is known is of this revision, or later. */
  #revision = 0n
  #behindSince: number | undefined
  #leader: KeyValue | undefined
  #watch: Watch | undefined
  #error: unknown
  #isOver = false
  #wake = (): void => {}

  constructor(directory: string, client: EtcdClient) {
    this.#directory = directory
    this.#client = client
  }

  async *run(signal: AbortSignal): AsyncIterable<Announcement> {
    const wake = () => this.#wake()
    signal.addEventListener('abort', wake)
    this.#follow()
    try {
      while (!signal.aborted) {
        if (this.#error) throw etcdError(this.#error)
        const news = this.#news.shift()
        if (news) yield news
        else await this.#happens()
      }
    } finally {
      this.#isOver = true
      this.#watch?.close()
      signal.removeEventListener('abort', wake)
    }
  }

  /** The stream does not keep the process alive; whoever waits for what it tells does. */
  async #happens(): Promise<void> {
    const awake = setInterval(() => {}, A_LONG_TIME_MS)
    try {
      await new Promise<void>((resolve) => (this.#wake = resolve))
    } finally {
      clearInterval(awake)
    }
  }

  /** `from`: what has happened since then is told as well. */
  #follow(from?: bigint): void {
    if (this.#isOver) return
    let isFromNow = from === undefined
    const watch = this.#client.watch({ ...rangeOf(this.#directory), ...(from !== undefined && { startRevision: from }) }, {
      onCreated: (revision) => {
        if (isFromNow) void this.#read(revision)
        else if (revision < this.#revision) void this.#catchUp(watch)
        // Made once more, since what it should begin with was compacted.
        isFromNow = true
      },
      onEvents: (events) => {
        if (this.#candidates) this.#apply(events)
        else this.#early.push(...events)
      },
      onLost: () => {
        watch.close()
        this.#follow(this.#candidates && this.#revision + 1n)
      },
      onRefused: (error) => this.#failed(error),
    })
    this.#watch = watch
  }

  /** As of a revision that is not before that of the watch. */
  async #read(watchedFrom: bigint): Promise<void> {
    const watch = this.#watch
    this.#candidates = undefined
    this.#early = []
    while (!this.#isOver && this.#watch === watch) {
      try {
        const { kvs, revision } = await this.#client.range(rangeOf(this.#directory))
        if (this.#isOver || this.#watch !== watch) return
        if (revision >= watchedFrom && !this.#isOfThePast(revision)) return this.#known(kvs, revision)
      } catch (error) {
        if (!(error instanceof EtcdError && error.transient)) return this.#failed(error)
      }
      await sleep(READ_AGAIN_MS, undefined, { ref: false })
    }
  }

  /** The watch begins with what this member has not heard of yet; or with what it never will. */
  async #catchUp(watch: Watch): Promise<void> {
    while (!this.#isOver && this.#watch === watch) {
      try {
        const { revision } = await this.#client.range({ ...rangeOf(this.#directory), countOnly: true })
        if (this.#isOver || this.#watch !== watch) return
        const isOfThePast = this.#isOfThePast(revision)
        if (revision >= this.#revision) return
        if (!isOfThePast) {
          watch.close()
          return this.#follow()
        }
      } catch {
        // Asked again, as is what is of the past.
      }
      await sleep(READ_AGAIN_MS, undefined, { ref: false })
    }
  }

  #isOfThePast(revision: bigint): boolean {
    if (revision >= this.#revision) this.#behindSince = undefined
    else this.#behindSince ??= performance.now()
    return this.#behindSince !== undefined && performance.now() - this.#behindSince < A_MOMENT_MS
  }

  #known(kvs: readonly KeyValue[], revision: bigint): void {
    this.#candidates = candidatesIn(this.#directory, kvs)
    this.#revision = revision
    this.#look()
    const early = this.#early
    this.#early = []
    this.#apply(early)
  }

  /** All that happened in one revision happened at once. */
  #apply(events: readonly WatchEvent[]): void {
    const known = this.#revision
    for (const [i, event] of events.entries()) {
      const revision = event.modRevision
      if (revision <= known) continue
      const key = fromBytes(event.key)
      if (event.type === 'delete') this.#candidates!.delete(key)
      else if (isIn(key, this.#directory.length)) this.#candidates!.set(key, event)
      this.#revision = revision
      if (events[i + 1]?.modRevision !== revision) this.#look()
    }
  }

  #look(): void {
    const first = firstOf(this.#candidates!)
    if (!first) return
    const { createRevision, modRevision } = first
    if (this.#leader?.createRevision === createRevision && this.#leader.modRevision === modRevision) return
    this.#leader = first
    this.#news.push(announced(first, this.#revision))
    this.#wake()
  }

  #failed(error: unknown): void {
    this.#error = error
    this.#wake()
  }
}

function rangeOf(directory: string): { readonly key: Buffer; readonly rangeEnd: Buffer } {
  return { key: toBytes(directory), rangeEnd: toBytes(endOf(directory)) }
}

function candidatesIn(directory: string, kvs: readonly KeyValue[]): Map<string, KeyValue> {
  const candidates = kvs.map((kv) => [fromBytes(kv.key), kv] as const)
  return new Map(candidates.filter(([key]) => isIn(key, directory.length)))
}

/** Who was there first leads. */
function firstOf(candidates: ReadonlyMap<string, KeyValue>): KeyValue | undefined {
  let first: KeyValue | undefined
  for (const one of candidates.values()) if (!first || one.createRevision < first.createRevision) first = one
  return first
}

function announced({ value, lease, createRevision }: KeyValue, revision: bigint): Announcement {
  return { value: value.toString(), lease, epoch: createRevision, revision }
}
