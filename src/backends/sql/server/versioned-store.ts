/**
 * Keys with values and versions in the database: two functions, each one call and one transaction. A commit is known there by an id
 * for a while: if its answer was lost it is sent again under the same, and carried out once.
 */
import { randomBytes } from 'node:crypto'
import type { Commit, CommitState, Held, Scope, Snapshot, VersionedStore } from '../../../core/backend.js'
import { BackendError, HoldfastError } from '../../../core/errors.js'
import { tokenOf } from '../../../core/token.js'
import type { Database } from './database.js'
import type { Retries } from './retries.js'

type SnapshotAnswer = [revision: string, values: ([value: string, revision: string] | null)[]]
type CommitAnswer = ['committed', revision: string] | ['not-held', which: number] | ['conflict', SnapshotAnswer]

export class SqlVersionedStore implements VersionedStore {
  readonly #database: Database
  readonly #retries: Retries
  readonly #prefix: string
  readonly #owner: string
  /** Where commits can be seen early: all up to this revision is known to stay. */
  #kept = 0n

  constructor(database: Database, retries: Retries, { prefix, owner }: Pick<Scope, 'prefix' | 'owner'>) {
    this.#database = database
    this.#retries = retries
    this.#prefix = hex(prefix)
    this.#owner = owner
  }

  async read(keys: readonly string[], at?: bigint): Promise<Snapshot | undefined> {
    const words = [this.#prefix, listOf(keys), at === undefined ? '' : String(at)]
    const [answer, kept] = await this.#retries.run(async () => {
      const known = this.#database.showsEarly ? [String(this.#kept)] : []
      return parse<[SnapshotAnswer | null, kept?: string]>(await this.#database.call('readKeys', [...words, ...known]))
    })
    if (kept !== undefined) this.#isKept(BigInt(kept))
    return answer ? snapshotOf(answer, at) : undefined
  }

  #isKept(revision: bigint): void {
    if (revision > this.#kept) this.#kept = revision
  }

  async commit({ comparisons, holds = [], puts, deletes, reads }: Commit): Promise<CommitState> {
    const id = randomBytes(16).toString('hex')
    const sorted = [...holds].sort(byKey)
    const asked = [
      JSON.stringify(comparisons.map(({ key, is, revision }) => ({ key: hex(key), equal: Number(is === 'equal'), revision: String(revision) }))),
      JSON.stringify(sorted.map(({ claim, epoch }) => ({ key: hex(claim.resource), token: tokenOf(claim.id, epoch, this.#owner) }))),
      JSON.stringify(puts.map(({ key, value }) => ({ key: hex(key), value: hex(value) }))),
      listOf(deletes),
      listOf(reads),
    ]
    let isUnsure = false
    try {
      const answer = await this.#retries.run(async (mayBeDone) => {
        try {
          return parse<[CommitAnswer]>(await this.#database.call('commitKeys', [this.#prefix, id, String(mayBeDone), ...asked]))[0]
        } catch (error) {
          isUnsure ||= !(error instanceof HoldfastError) && this.#database.failureOf(error).kind === 'unknown'
          throw error
        }
      })
      switch (answer[0]) {
        case 'committed':
          this.#isKept(BigInt(answer[1]))
          return { status: 'committed', revision: BigInt(answer[1]) }
        case 'not-held':
          return { status: 'not-held', claim: sorted[answer[1] - 1]!.claim }
        case 'conflict':
          return { status: 'conflict', ...snapshotOf(answer[1]) }
      }
    } catch (error) {
      if (isUnsure && error instanceof BackendError) return { status: 'unknown', error }
      throw error
    }
  }
}

function snapshotOf([revision, values]: SnapshotAnswer, at?: bigint): Snapshot {
  return {
    revision: at ?? BigInt(revision),
    values: values.map((entry) => (entry ? { value: Buffer.from(entry[0], 'hex'), revision: BigInt(entry[1]) } : undefined)),
  }
}

/** As bytes: the one order in which everybody locks the rows of several keys. */
function byKey({ claim: a }: Held, { claim: b }: Held): number {
  return Buffer.compare(Buffer.from(a.resource), Buffer.from(b.resource))
}

/** The server's time comes first, where others have to know it. */
function parse<T extends unknown[]>(answer: string): T {
  return (JSON.parse(answer) as [unknown, ...T]).slice(1) as T
}

function listOf(keys: readonly string[]): string {
  return JSON.stringify(keys.map((key) => ({ key: hex(key) })))
}

function hex(value: string | Uint8Array): string {
  return (typeof value === 'string' ? Buffer.from(value) : Buffer.from(value.buffer, value.byteOffset, value.byteLength)).toString('hex')
}
