/** The steps in etcd: what is asked for about one claim is a part of a transaction that others share. This is where their parts meet. */
import type {
  Claim, ClaimState, Held, ReleaseState, Renewal, RenewState, ResourceState, RevokeState, Scope,
} from '../../core/backend.js'
import type { Asker } from './askers.js'
import { Claiming } from './claiming.js'
import type { EtcdClient } from './client/client.js'
import { Directories } from './directories.js'
import { Fates } from './fates.js'
import { inspect } from './inspect.js'
import { Keys } from './keys.js'
import { Leases, type Lease, type LeaseListener } from './leases.js'
import type { Line } from './line.js'
import { Lookouts, type LookoutListener } from './lookouts.js'
import { readMessage } from './mailbox.js'
import { Others } from './others.js'
import type { OwnClaim } from './own-claim.js'
import { Releasing } from './releasing.js'
import { Renewing } from './renewing.js'
import { Sweeper } from './sweeper.js'
import { Txns } from './txns.js'

/** Whoever closes waits no longer for the server to know. */
const LEAVE_MS = 1_000

export class Steps implements LeaseListener, LookoutListener {
  readonly leases: Leases
  readonly #client: EtcdClient
  readonly #scope: Scope
  readonly #keys: Keys
  readonly #directories: Directories
  readonly #lookouts: Lookouts
  readonly #others: Others
  readonly #sweeper: Sweeper
  readonly #fates: Fates
  readonly #claiming: Claiming
  readonly #renewing: Renewing
  readonly #releasing: Releasing

  constructor(client: EtcdClient, scope: Scope) {
    const { clock } = scope
    const keys = new Keys(scope.prefix)
    const directories = new Directories(keys)
    const txns = new Txns(client, directories)
    const leases = new Leases(client, txns, keys, clock, this)
    const lookouts = new Lookouts(client, clock, this, directories)
    const others = new Others(client, txns, keys)
    const sweeper = new Sweeper(directories, clock, (own) => {
      directories.leaves(own)
      releasing.letGoOf(own).catch(() => {})
    })
    const fates = new Fates({ scope, txns, directories, lookouts, others, sweeper })
    const releasing = new Releasing({ scope, txns, directories, lookouts, others, sweeper, fates })
    const renewing = new Renewing({ scope, txns, leases, directories, others, sweeper, fates })
    this.leases = leases
    this.#client = client
    this.#scope = scope
    this.#keys = keys
    this.#directories = directories
    this.#lookouts = lookouts
    this.#others = others
    this.#sweeper = sweeper
    this.#fates = fates
    this.#claiming = new Claiming({ scope, keys, txns, leases, directories, lookouts, others, fates, renewing, releasing })
    this.#renewing = renewing
    this.#releasing = releasing
  }

  claim(claim: Claim, ifBusy: 'queue' | 'leave', asker: Asker<ClaimState>): void {
    this.#claiming.claim(claim, ifBusy, asker)
  }

  renew(renewal: Renewal): Promise<RenewState> {
    return this.#renewing.renew(renewal)
  }

  release(claim: Claim, asker: Asker<ReleaseState>): void {
    this.#releasing.release(claim, asker)
  }

  /** The session is another's by now, or will be, who has the same keys for the same things: none of them is touched from here any more. */
  async leave(id: bigint, waiting: 'stays' | 'goes'): Promise<void> {
    const lease = this.leases.ofSession(id)
    if (!lease) return
    this.leases.leave(lease)
    const left = this.#directories.on(lease)
    const going = waiting === 'goes' ? left.filter(({ isHeld }) => !isHeld) : []
    const staying = left.filter((own) => own.isInDoubt && !going.includes(own))
    // From now on nobody knows them by their name, who would delete them once more.
    for (const own of going) this.#directories.leaves(own)
    const gone = Promise.allSettled([
      ...going.map((own) => this.#releasing.letGoOf(own)),
      ...staying.map((own) => this.#releasing.askNoMore(own)),
      ...left.map(({ leaving }) => leaving),
    ])
    for (const own of left) if (!going.includes(own)) this.#fates.forget(own)
    await inTime(gone)
    for (const own of going) this.#fates.forget(own)
  }

  // Whosever it is

  revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    return this.#others.revoke(resource, when)
  }

  inspect(beginning: string): AsyncIterable<ResourceState> {
    return inspect(this.#client, this.#keys, beginning)
  }

  // What is known of a claim of ours

  known(claim: Claim): OwnClaim | undefined {
    return this.#directories.named(claim)
  }

  /** One that holds under this epoch, as far as is known: its place in the line is its epoch, too. */
  findHeld({ claim, epoch }: Held): OwnClaim | undefined {
    const own = this.known(claim)
    return own?.state === 'held' && own.createRevision === epoch && own.until > this.#scope.clock.now() ? own : undefined
  }

  // What leases and lookouts tell

  isUsed(lease: Lease): boolean {
    return this.#directories.some((own) => own.lease === lease || own.maybeOn?.has(lease) === true)
  }

  granted(own: OwnClaim, line: Line): void {
    this.#fates.granted(own, line)
  }

  vanished(own: OwnClaim): void {
    this.#fates.lost(own)
  }

  told(text: string): void {
    const message = readMessage(text)
    if (message) this.#fates.told(message)
  }

  mayHaveMissed(lease: Lease): void {
    this.#fates.lookAtAll(lease)
  }

  over(lease: Lease): void {
    const { session } = lease
    if (session) this.#scope.wake({ kind: 'lost', resource: session.resource, claimId: session.id })
    for (const own of this.#directories.on(lease)) this.#fates.lost(own)
    for (const own of this.#directories) if (own.maybeOn?.has(lease)) this.#fates.confirmLoss(own)
  }

  /** Known, but not there: lost. There, but not known: a request that was carried out after all that was known to be over. */
  attached(lease: Lease, keys: ReadonlySet<string>, askedAt: number): void {
    for (const own of this.#directories.on(lease)) {
      if (own.knownSince <= askedAt && !keys.has(own.key)) this.#fates.confirmLoss(own)
    }
    const known = new Set([this.#keys.mailbox(lease.id)])
    for (const { key } of this.#directories) known.add(key)
    // What else a session has may be what another process has, who has the session, too.
    if (lease.isSessions) return
    for (const key of keys) if (!known.has(key)) this.#fates.deleteUnknown(key, lease).catch(() => {})
  }

  async close(): Promise<void> {
    this.#fates.close()
    this.#sweeper.close()
    const waiting = [...this.#directories].filter(({ isHeld }) => !isHeld)
    this.#lookouts.close()
    await inTime(Promise.allSettled(waiting.map((own) => this.#releasing.letGoOf(own))))
    await inTime(this.leases.close())
  }
}

function inTime(work: Promise<unknown>): Promise<unknown> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, LEAVE_MS)))
  return Promise.race([work.catch(() => {}), timeout]).finally(() => clearTimeout(timer))
}
