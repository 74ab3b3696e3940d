/**
 * Keys with values and versions are what etcd has: a key is taken as it is, so that programs in Go share it, and revisions are
 * the server's.
 *
 * A commit whose answer was lost may have been carried out, and may still be. It is sent again if it writes a key that must have
 * one certain revision: no key ever has a revision again that it had before, so only one of the two can be carried out. If that is
 * then refused, it may be because the first was carried out. That it was not, and will not be, can be told if such a key still has its
 * revision, while another that has to have a certain one has not, or a claim that has to hold is gone: it never comes back under its
 * epoch. What cannot be told is unknown. One that writes nothing fails.
 *
 * A claim that was seen to hold goes on holding for as long as its key is there, created when it was. But its value may say that it
 * was revoked, or is another's by now; so that is compared, too. It also changes when the claim goes to another lease: then the commit
 * is sent again, with the value as it was found. What a session has says what the session wants, and is its own while it is there.
 */
import type { Claim, Commit, CommitState, Comparison, Held, Snapshot, Versioned, VersionedStore } from '../../core/backend.js'
import { readValue, writeValue } from './claim-value.js'
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import type { Compare, KeyValue, RangeResponse, RequestOp, TxnRequest, TxnResponse } from './client/messages.js'
import { etcdError, mayBeDone } from './errors.js'
import { toBytes } from './keys.js'
import { TRIES } from './others.js'
import type { OwnClaim } from './own-claim.js'

/** Gives a claim of this process if it holds under that epoch, as far as is known here. */
type FindHeld = (held: Held) => Pick<OwnClaim, 'key' | 'value'> | undefined

export class EtcdVersionedStore implements VersionedStore {
  readonly #client: Pick<EtcdClient, 'txn'>
  readonly #checkOpen: () => void
  readonly #findHeld: FindHeld

  constructor(client: Pick<EtcdClient, 'txn'>, checkOpen: () => void, findHeld: FindHeld) {
    this.#client = client
    this.#checkOpen = checkOpen
    this.#findHeld = findHeld
  }

  async read(keys: readonly string[], at?: bigint): Promise<Snapshot | undefined> {
    this.#checkOpen()
    try {
      const success = keys.map((key) => rangeOf(key, at))
      const { revision, responses } = await this.#client.txn({ success })
      return { revision: at ?? revision, values: responses.map(kvOf).map(versionedOf) }
    } catch (error) {
      if (at !== undefined && error instanceof EtcdError && error.reason === 'compacted') return undefined
      throw etcdError(error)
    }
  }

  async commit(commit: Commit): Promise<CommitState> {
    this.#checkOpen()
    const owned: OwnedKey[] = []
    for (const held of commit.holds ?? []) {
      const own = this.#findHeld(held)
      if (!own) return { status: 'not-held', claim: held.claim }
      owned.push(new OwnedKey(held, own.key, held.claim.lease ? undefined : Buffer.from(writeValue(own.value))))
    }
    let unknown: CommitState | undefined
    for (let tries = 1; ; tries++) {
      let response: TxnResponse
      try {
        response = await this.#client.txn(requestOf(commit, owned, unknown !== undefined))
      } catch (error) {
        if (unknown) return unknown
        if (!mayBeDone(error) || commit.puts.length + commit.deletes.length === 0) throw etcdError(error)
        unknown = { status: 'unknown', error: etcdError(error) }
        if (guardsOf(commit).length > 0) continue
        return unknown
      }
      const { succeeded, revision, responses } = response
      if (succeeded) return { status: 'committed', revision }
      const kvs = responses.map(kvOf)
      const values = kvs.splice(0, commit.reads.length).map(versionedOf)
      for (const one of owned) one.seen = kvs.shift()
      const missing = owned.find((one) => !one.isHeld)
      if (!missing && owned.some((one) => one.isChanged) && tries < TRIES) {
        for (const one of owned) if (one.value) one.value = one.seen!.value
        continue
      }
      if (unknown && !isOver(commit, owned, kvs.map(versionedOf))) return unknown
      return missing ? { status: 'not-held', claim: missing.claim } : { status: 'conflict', revision, values }
    }
  }
}

/** The key of a claim that has to hold. */
class OwnedKey {
  readonly claim: Claim
  readonly epoch: bigint
  readonly key: Buffer
  /** What it should have; anything, if it is a session's. */
  value: Buffer | undefined
  /** What it had when the commit was refused. */
  seen: KeyValue | undefined

  constructor({ claim, epoch }: Held, key: string, value: Buffer | undefined) {
    this.claim = claim
    this.epoch = epoch
    this.key = toBytes(key)
    this.value = value
  }

  get isGone(): boolean {
    return this.seen?.createRevision !== this.epoch
  }

  get isHeld(): boolean {
    if (this.isGone || !this.value) return !this.isGone
    const value = readValue(this.seen!.value)
    return value?.id === this.claim.id && !value.revoked
  }

  get isChanged(): boolean {
    return this.value !== undefined && !this.seen?.value.equals(this.value)
  }
}

/** True once, and never again when it has become false. */
function isCertain({ is, revision }: Comparison): boolean {
  return is === 'equal' && revision !== 0n
}

/** What the commit itself makes false for good. */
function guardsOf({ comparisons, puts, deletes }: Commit): readonly Comparison[] {
  const written = new Set([...puts.map(({ key }) => key), ...deletes])
  return comparisons.filter((one) => isCertain(one) && written.has(one.key))
}

/** What was refused now has not been carried out before, and will not be. `found`: what is at the keys of its certain comparisons. */
function isOver(commit: Commit, owned: readonly OwnedKey[], found: readonly (Versioned | undefined)[]): boolean {
  const certain = commit.comparisons.filter(isCertain)
  const stands = new Map(certain.map((one, i) => [one, found[i]?.revision === one.revision]))
  const isUndone = guardsOf(commit).some((one) => stands.get(one))
  return isUndone && (owned.some((one) => one.isGone) || certain.some((one) => !stands.get(one)))
}

/** If it is refused it tells what is at the keys that were asked for, at those of the claims, and `again` at those of certain comparisons. */
function requestOf({ comparisons, puts, deletes, reads }: Commit, owned: readonly OwnedKey[], again: boolean): TxnRequest {
  return {
    compare: [
      ...owned.flatMap(({ key, epoch, value }): Compare[] => [
        { key, target: 'create', value: epoch },
        ...(value ? [{ key, target: 'value', value } as const] : []),
      ]),
      ...comparisons.map(compareOf),
    ],
    success: [
      ...puts.map(({ key, value }): RequestOp => ({ kind: 'put', key: Buffer.from(key), value })),
      ...deletes.map((key): RequestOp => ({ kind: 'delete', key: Buffer.from(key) })),
    ],
    failure: [
      ...reads.map((key) => rangeOf(key)),
      ...owned.map(({ key }): RequestOp => ({ kind: 'range', key })),
      ...(again ? comparisons.filter(isCertain).map(({ key }) => rangeOf(key)) : []),
    ],
  }
}

function compareOf({ key, is, revision }: Comparison): Compare {
  const about = { key: Buffer.from(key), target: 'mod' } as const
  return is === 'equal' ? { ...about, value: revision } : { ...about, result: 'less', value: revision + 1n }
}

function rangeOf(key: string, revision?: bigint): RequestOp {
  return { kind: 'range', key: Buffer.from(key), ...(revision !== undefined && { revision }) }
}

function kvOf(response: unknown): KeyValue | undefined {
  return (response as RangeResponse).kvs[0]
}

function versionedOf(found: KeyValue | undefined): Versioned | undefined {
  return found && { value: found.value, revision: found.modRevision }
}
