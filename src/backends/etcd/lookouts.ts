/**
 * Who waits in this process, and for what: one watch for each resource, on all of its claims, however many wait here. It is kept for a
 * moment after the last of them, since a resource that was wanted by several is likely to be so again.
 *
 *   opening → the watch is being made; then the line is read once
 *   looking → the line is known, and each event brings it up to date
 *   (the stream is lost) → opening
 *
 * Every half a minute the line is read all the same: whoever waits behind an outsider would else rely on the watch alone.
 *
 * A watch that begins now, and a read after it is there: one that begins at a revision of the past is served every 100 ms only.
 */
import type { Clock, Timer } from '../../core/clock.js'
import type { EtcdClient } from './client/client.js'
import type { RangeResponse, WatchEvent } from './client/messages.js'
import type { Watch } from './client/watch.js'
import type { Directories } from './directories.js'
import { endOf, fromBytes, isIn, toBytes } from './keys.js'
import { Line, standingOf, standingsIn, type Standing } from './line.js'
import type { OwnClaim } from './own-claim.js'

export interface LookoutListener {
  granted(own: OwnClaim, line: Line): void
  /** Its key is not there any more. */
  vanished(own: OwnClaim): void
}

const KEPT_MS = 1_000
const READ_AGAIN_MS = 50
/** A member that does not apply what was agreed on any more is well in all else, and its watches tell nothing. */
const LOOK_EVERY_MS = 30_000

export class Lookouts {
  readonly #client: EtcdClient
  readonly #clock: Clock
  readonly #listener: LookoutListener
  readonly #directories: Pick<Directories, 'tidy'>
  readonly #all = new Set<Lookout>()

  constructor(client: EtcdClient, clock: Clock, listener: LookoutListener, directories: Pick<Directories, 'tidy'>) {
    this.#client = client
    this.#clock = clock
    this.#listener = listener
    this.#directories = directories
  }

  join(own: OwnClaim): void {
    const { directory } = own
    if (!directory.lookout) {
      directory.lookout = new Lookout(directory.name, this.#client, this.#clock, this.#listener, (lookout) => {
        this.#all.delete(lookout)
        directory.lookout = undefined
        this.#directories.tidy(directory)
      })
      this.#all.add(directory.lookout)
    }
    directory.lookout.join(own)
  }

  leave(own: OwnClaim): void {
    own.directory.lookout?.leave(own)
  }

  close(): void {
    for (const lookout of this.#all) lookout.close()
  }
}

export class Lookout {
  readonly #directory: string
  readonly #client: EtcdClient
  readonly #clock: Clock
  readonly #listener: LookoutListener
  readonly #onEnd: (lookout: Lookout) => void
  readonly #waiting = new Map<string, OwnClaim>()
  readonly #watch: Watch
  /** Undefined while it is not known. */
  #standings: Map<string, Standing> | undefined
  /** What is known is of this revision, or later. */
  #revision = 0n
  /** Events that came before the line was read. */
  #early: WatchEvent[] = []
  #opened = 0
  #end: Timer | undefined
  #look: Timer | undefined
  #isClosed = false

  constructor(directory: string, client: EtcdClient, clock: Clock, listener: LookoutListener, onEnd: (lookout: Lookout) => void) {
    this.#directory = directory
    this.#client = client
    this.#clock = clock
    this.#listener = listener
    this.#onEnd = onEnd
    this.#watch = client.watch({ key: toBytes(directory), rangeEnd: toBytes(endOf(directory)) }, {
      onCreated: (revision) => {
        this.#early = []
        void this.#read(revision)
      },
      onEvents: (events) => this.#happened(events),
      onLost: () => this.#forget(),
    })
  }

  join(own: OwnClaim): void {
    this.#waiting.set(own.key, own)
    this.#end?.cancel()
    this.#end = undefined
    // It may have become its turn while the answer was on its way.
    if (this.#standings && own.createRevision <= this.#revision) this.#settle()
  }

  leave(own: OwnClaim): void {
    // Another may have its key by now.
    if (this.#waiting.get(own.key) === own) this.#waiting.delete(own.key)
    if (this.#waiting.size > 0 || this.#isClosed) return
    this.#end?.cancel()
    this.#end = this.#clock.timer(KEPT_MS, () => this.close(), 'background')
  }

  close(): void {
    this.#isClosed = true
    this.#end?.cancel()
    this.#look?.cancel()
    this.#watch.close()
    this.#onEnd(this)
  }

  #forget(): void {
    this.#standings = undefined
    this.#opened++
  }

  /** As of a revision that is not before that of the watch: what is between the two would be missed. */
  async #read(watchedFrom: bigint): Promise<void> {
    this.#forget()
    const opened = this.#opened
    const isStale = () => this.#isClosed || this.#opened !== opened
    try {
      const answer = await this.#range()
      if (isStale()) return
      // While its leader changes, etcd 3.4 may answer with what was true a moment ago.
      if (answer.revision < watchedFrom) throw new Error('This is of the past.')
      this.#known(answer)
    } catch {
      if (isStale()) return
      this.#clock.timer(READ_AGAIN_MS, () => void (isStale() || this.#read(watchedFrom)), 'background')
      return
    }
    this.#apply(this.#early)
    this.#early = []
    this.#settle()
    this.#lookLater(opened)
  }

  #range(): Promise<RangeResponse> {
    return this.#client.range({ key: toBytes(this.#directory), rangeEnd: toBytes(endOf(this.#directory)) })
  }

  #known({ kvs, revision }: RangeResponse): void {
    this.#standings = new Map(standingsIn(this.#directory, kvs).map((standing) => [standing.key, standing]))
    this.#revision = revision
  }

  #lookLater(opened: number): void {
    this.#look?.cancel()
    this.#look = this.#clock.timer(LOOK_EVERY_MS, () => void this.#lookAgain(opened), 'background')
  }

  async #lookAgain(opened: number): Promise<void> {
    const answer = await this.#range().catch(() => undefined)
    if (this.#isClosed || this.#opened !== opened) return
    if (answer && answer.revision > this.#revision) {
      this.#known(answer)
      this.#settle()
    }
    this.#lookLater(opened)
  }

  #happened(events: readonly WatchEvent[]): void {
    if (!this.#standings) return void this.#early.push(...events)
    this.#apply(events)
    this.#settle()
  }

  #apply(events: readonly WatchEvent[]): void {
    const known = this.#revision
    for (const event of events) {
      if (event.modRevision <= known) continue
      const key = fromBytes(event.key)
      if (event.type === 'delete') this.#standings!.delete(key)
      else if (isIn(key, this.#directory.length)) this.#standings!.set(key, standingOf(event))
      this.#revision = event.modRevision
    }
  }

  #settle(): void {
    if (this.#waiting.size === 0) return
    const line = new Line(this.#standings!.values())
    const granted = line.standings.slice(0, line.holders).flatMap(({ key, createRevision }) => {
      const own = this.#waiting.get(key)
      // What is known may be older than a claim, and be about another that had its key before.
      return own?.createRevision === createRevision ? own : []
    })
    // Of a session that two processes have, one can have let go of a key, and made it anew.
    const isThere = ({ key, createRevision }: OwnClaim) => this.#standings!.get(key)?.createRevision === createRevision
    const vanished = [...this.#waiting.values()].filter((own) => own.createRevision <= this.#revision && !isThere(own))
    for (const own of granted) this.#listener.granted(own, line)
    for (const own of vanished) this.#listener.vanished(own)
  }
}
