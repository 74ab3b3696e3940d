/**
 * Keys with values and versions are what etcd has: a key is taken as it is, so that programs in Go share it, and revisions are
 * the server's.
 *
 * A commit whose answer was lost may have been carried out, and may still be. It is sent again if it writes a key that must have
 * one certain revision: no key ever has a revision again that it had before, so only one of the two can be carried out. If that is
 * then refused, it may be because the first was carried out. That it was not, and will not be, can be told if such a key still has its
 * revision, while another that has to have a certain one has not. What cannot be told is unknown.
 */
import type { Commit, CommitState, Comparison, Snapshot, Versioned, VersionedStore } from '../../core/backend.js'
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import type { Compare, RangeResponse, RequestOp, TxnRequest, TxnResponse } from './client/messages.js'
import { etcdError, mayBeDone } from './errors.js'

export class EtcdVersionedStore implements VersionedStore {
  readonly #client: Pick<EtcdClient, 'txn'>
  readonly #checkOpen: () => void

  constructor(client: Pick<EtcdClient, 'txn'>, checkOpen: () => void) {
    this.#client = client
    this.#checkOpen = checkOpen
  }

  async read(keys: readonly string[], at?: bigint): Promise<Snapshot | undefined> {
    this.#checkOpen()
    try {
      const success = keys.map((key) => rangeOf(key, at))
      const { revision, responses } = await this.#client.txn({ success })
      return { revision: at ?? revision, values: responses.map(valueOf) }
    } catch (error) {
      if (at !== undefined && error instanceof EtcdError && error.reason === 'compacted') return undefined
      throw etcdError(error)
    }
  }

  async commit(commit: Commit): Promise<CommitState> {
    this.#checkOpen()
    const request = requestOf(commit)
    try {
      return stateOf(await this.#client.txn(request))
    } catch (error) {
      if (!mayBeDone(error)) throw etcdError(error)
      return this.#again(commit, request, error)
    }
  }

  async #again(commit: Commit, request: TxnRequest, lost: unknown): Promise<CommitState> {
    const unknown: CommitState = { status: 'unknown', error: etcdError(lost) }
    const guards = guardsOf(commit)
    if (guards.length === 0) return unknown
    const certain = commit.comparisons.filter(isCertain)
    // Beside what was asked for, what they have now.
    const failure = [...request.failure!, ...certain.map(({ key }) => rangeOf(key))]
    let response: TxnResponse
    try {
      response = await this.#client.txn({ ...request, failure })
    } catch {
      return unknown
    }
    if (response.succeeded) return stateOf(response)
    const found = response.responses.slice(commit.reads.length).map(valueOf)
    const stands = new Map(certain.map((one, i) => [one, found[i]?.revision === one.revision]))
    const isUndone = guards.some((one) => stands.get(one))
    const willNotBe = certain.some((one) => !stands.get(one))
    return isUndone && willNotBe ? stateOf({ ...response, responses: response.responses.slice(0, commit.reads.length) }) : unknown
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

function requestOf({ comparisons, puts, deletes, reads }: Commit): TxnRequest {
  return {
    compare: comparisons.map(compareOf),
    success: [
      ...puts.map(({ key, value }): RequestOp => ({ kind: 'put', key: Buffer.from(key), value })),
      ...deletes.map((key): RequestOp => ({ kind: 'delete', key: Buffer.from(key) })),
    ],
    failure: reads.map((key) => rangeOf(key)),
  }
}

function compareOf({ key, is, revision }: Comparison): Compare {
  const about = { key: Buffer.from(key), target: 'mod' } as const
  return is === 'equal' ? { ...about, value: revision } : { ...about, result: 'less', value: revision + 1n }
}

function rangeOf(key: string, revision?: bigint): RequestOp {
  return { kind: 'range', key: Buffer.from(key), ...(revision !== undefined && { revision }) }
}

function stateOf({ succeeded, revision, responses }: TxnResponse): CommitState {
  return succeeded ? { status: 'committed', revision } : { status: 'conflict', revision, values: responses.map(valueOf) }
}

function valueOf(response: unknown): Versioned | undefined {
  const [found] = (response as RangeResponse).kvs
  return found && { value: found.value, revision: found.modRevision }
}
