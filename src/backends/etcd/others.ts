/** What can be done to claims of any process, as they stand in a line. Each only as it was seen: it may be another by now. */
import type { Claim, ReleaseState, RevokeState } from '../../core/backend.js'
import { writeValue } from './claim-value.js'
import { BackendError } from '../../core/errors.js'
import type { EtcdClient } from './client/client.js'
import type { Compare, RequestOp } from './client/messages.js'
import { endOf, toBytes, type Keys } from './keys.js'
import type { Line, Standing } from './line.js'
import { writeMessage, type Message } from './mailbox.js'
import { lineOf } from './requests.js'
import type { Outcome, Txns } from './txns.js'

/** Between a read and what is written on the strength of it, somebody may have come. */
export const TRIES = 5
/** Of the holders of one resource, each with a message. */
const MOST_AT_ONCE = 50

export class Others {
  readonly #client: EtcdClient
  readonly #txns: Txns
  readonly #keys: Keys

  constructor(client: EtcdClient, txns: Txns, keys: Keys) {
    this.#client = client
    this.#txns = txns
    this.#keys = keys
  }

  async read(directory: string): Promise<Line> {
    return lineOf(directory, await this.#client.range({ key: toBytes(directory), rangeEnd: toBytes(endOf(directory)) }))
  }

  delete(standings: readonly Standing[]): Promise<Outcome> {
    const success = standings.map(({ key }): RequestOp => ({ kind: 'delete', key: toBytes(key) }))
    return this.#txns.run({ kind: 'release', compare: standings.map(isAsSeen), success, isLikely: true })
  }

  /** By whoever knows its id. */
  async release({ id, resource }: Claim): Promise<ReleaseState> {
    for (let tries = 1; tries <= TRIES; tries++) {
      const line = await this.read(this.#keys.directory(resource))
      const standing = line.standings.find(({ value }) => value?.id === id)
      if (!standing) break
      const { succeeded, isRepeated } = await this.delete([standing])
      if (succeeded) return { status: line.holds(standing) ? 'released' : 'not-held' }
      if (isRepeated) return { status: 'unknown' }
    }
    return { status: 'not-held' }
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    const directory = this.#keys.directory(resource)
    for (let tries = 1; ; tries++) {
      const line = await this.read(directory)
      const holders = line.standings.slice(0, line.holders)
      if (holders.length === 0) return 'free'
      const ours = holders.filter(isOurs)
      if (when === 'told' && ours.length === 0) return 'outsider'
      const isDone = when === 'now' ? await this.#free(holders) : await this.#markRevoked(ours)
      if (isDone) return when === 'now' ? 'freed' : 'told'
      if (tries === TRIES) throw new BackendError('The claims of the holders are being changed by others.', { transient: true })
    }
  }

  /** → whether all of them were as they were seen. */
  async #free(holders: readonly Standing[]): Promise<boolean> {
    let isDone = true
    for (let i = 0; i < holders.length; i += MOST_AT_ONCE) {
      const some = holders.slice(i, i + MOST_AT_ONCE)
      const { succeeded, isRepeated } = await this.delete(some)
      // Awaited: whoever revokes may close at once. But what is freed is freed: they find out by themselves, too.
      if (succeeded || isRepeated) await this.#tell(some, 'lost').catch(() => {})
      else isDone = false
    }
    return isDone
  }

  /** They are told in the same step: who is not, would hold until it looks, which it has no reason to. */
  async #markRevoked(holders: readonly Standing[]): Promise<boolean> {
    let isDone = true
    for (const some of withDifferentLeases(holders)) {
      const success = some.flatMap((standing): RequestOp[] => [
        { kind: 'put', key: standing.key, value: writeValue({ ...standing.value!, revoked: true }), ignoreLease: true },
        { kind: 'txn', ...this.#telling(standing, 'revoked') },
      ])
      const { succeeded } = await this.#txns.run({ kind: 'other', compare: some.map(isAsSeen), success, isLikely: true })
      isDone &&= succeeded
    }
    return isDone
  }

  async tellHolders(line: Line, kind: Message[0]): Promise<void> {
    await this.#tell(line.standings.slice(0, line.holders).filter(isOurs), kind)
  }

  async #tell(standings: readonly Standing[], kind: Message[0]): Promise<void> {
    await Promise.all(standings.filter(isOurs).map((one) => this.#txns.run({ kind: 'other', ...this.#telling(one, kind), isLikely: false })))
  }

  /** Into the mailbox of its lease: who has none, or none any more, is not told. */
  #telling({ key, lease, createRevision }: Standing, kind: Message[0]): { readonly compare: Compare[]; readonly success: RequestOp[] } {
    const mailbox = this.#keys.mailbox(lease)
    const isThere: Compare = { key: mailbox, target: 'create', result: 'greater', value: 0n }
    return { compare: [isThere], success: [{ kind: 'put', key: mailbox, value: writeMessage([kind, key, String(createRevision)]), ignoreLease: true }] }
  }
}

function isOurs({ value }: Standing): boolean {
  return value !== undefined
}

function isAsSeen({ key, modRevision: value }: Standing): Compare {
  return { key: toBytes(key), target: 'mod', value }
}

/** A transaction takes only so many, and no two messages for one mailbox. */
function withDifferentLeases(standings: readonly Standing[]): readonly Standing[][] {
  const all: Standing[][] = []
  for (const standing of standings) {
    const fitting = all.find((some) => some.length < MOST_AT_ONCE && some.every(({ lease }) => lease !== standing.lease))
    if (fitting) fitting.push(standing)
    else all.push([standing])
  }
  return all
}
