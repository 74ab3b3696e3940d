/** What can be done to claims of any process, as they stand in a line. Each only as it was seen: it may be another by now. */
import type { Claim, ReleaseState, RevokeState } from '../../core/backend.js'
import { writeValue } from './claim-value.js'
import type { EtcdClient } from './client/client.js'
import type { Compare, RequestOp } from './client/messages.js'
import { endOf, toBytes, type Keys } from './keys.js'
import type { Line, Standing } from './line.js'
import { writeMessage, type Message } from './mailbox.js'
import { lineOf } from './requests.js'
import type { Outcome, Txns } from './txns.js'

/** Between a read and what is written on the strength of it, somebody may have come. */
export const TRIES = 5
/** Of the holders of one resource. */
const MOST_AT_ONCE = 100

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
      const { succeeded } = await this.delete([standing])
      if (succeeded) return { status: line.holds(standing) ? 'released' : 'not-held' }
    }
    return { status: 'not-held' }
  }

  async revoke(resource: string, when: 'told' | 'now'): Promise<RevokeState> {
    const directory = this.#keys.directory(resource)
    for (let tries = 1; ; tries++) {
      const line = await this.read(directory)
      const holders = line.standings.slice(0, line.holders)
      if (holders.length === 0) return 'free'
      const ours = holders.filter(({ value }) => value !== undefined)
      if (when === 'told' && ours.length === 0) return 'outsider'
      const outcomes = when === 'now'
        ? inTransactions(holders).map((some) => this.delete(some))
        : inTransactions(ours).map((some) => this.#markRevoked(some))
      const isDone = (await Promise.all(outcomes)).every(({ succeeded }) => succeeded)
      if (!isDone && tries < TRIES) continue
      // Awaited: whoever revokes may close at once, and nothing else would tell them.
      const told = this.tellHolders(line, when === 'now' ? 'lost' : 'revoked')
      // What is freed is freed: they find out by themselves.
      await (when === 'now' ? told.catch(() => {}) : told)
      return when === 'now' ? 'freed' : 'told'
    }
  }

  #markRevoked(standings: readonly Standing[]): Promise<Outcome> {
    const success = standings.map(({ key, value }): RequestOp => ({
      kind: 'put', key: toBytes(key), value: writeValue({ ...value!, revoked: true }), ignoreLease: true,
    }))
    return this.#txns.run({ kind: 'other', compare: standings.map(isAsSeen), success, isLikely: true })
  }

  /** Into the mailboxes of those who hold: who has none, or none any more, is not told. */
  async tellHolders(line: Line, kind: Message[0]): Promise<void> {
    const ours = line.standings.slice(0, line.holders).filter(({ value }) => value !== undefined)
    await Promise.all(ours.map(({ key, lease, createRevision }) => {
      const mailbox = toBytes(this.#keys.mailbox(lease))
      const put: RequestOp = { kind: 'put', key: mailbox, value: writeMessage([kind, key, String(createRevision)]), ignoreLease: true }
      const isThere: Compare = { key: mailbox, target: 'create', result: 'greater', value: 0n }
      return this.#txns.run({ kind: 'other', compare: [isThere], success: [put], isLikely: false })
    }))
  }
}

function isAsSeen({ key, modRevision: value }: Standing): Compare {
  return { key: toBytes(key), target: 'mod', value }
}

/** So many at a time as a transaction takes. */
function inTransactions(standings: readonly Standing[]): (readonly Standing[])[] {
  return Array.from({ length: Math.ceil(standings.length / MOST_AT_ONCE) }, (_, i) => standings.slice(i * MOST_AT_ONCE, (i + 1) * MOST_AT_ONCE))
}
