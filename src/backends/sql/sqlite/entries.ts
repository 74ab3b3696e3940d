/**
 * Keys with values and versions in the file: each step is one transaction, run here, in this process. So a commit's answer cannot be
 * lost: whoever dies before it has nobody left to tell.
 */
import type { Commit, CommitState, Comparison, Held, Snapshot, Versioned } from '../../../core/backend.js'
import { toView, type Bytes } from '../rows.js'
import type { Connection } from './connection.js'

export class Entries {
  readonly #connection: Connection
  readonly #prefix: Buffer
  readonly #isHeld: (held: Held) => boolean

  /** `isHeld` is asked within a transaction. */
  constructor(connection: Connection, prefix: string, isHeld: (held: Held) => boolean) {
    this.#connection = connection
    this.#prefix = Buffer.from(prefix)
    this.#isHeld = isHeld
  }

  read(keys: readonly string[], at?: bigint): Snapshot | undefined {
    return this.#connection.snapshot(() => {
      const { revision, deleted } = this.#last()
      const values = keys.map((key) => this.#find(key))
      if (at !== undefined && values.some((entry) => (entry?.revision ?? deleted) > at)) return undefined
      return { revision: at ?? revision, values }
    })
  }

  commit({ comparisons, holds = [], puts, deletes, reads }: Commit): CommitState {
    return this.#connection.transaction((): CommitState => {
      const missing = holds.find((held) => !this.#isHeld(held))
      if (missing) return { status: 'not-held', claim: missing.claim }
      const last = this.#last()
      if (!comparisons.every((one) => this.#holds(one))) {
        return { status: 'conflict', revision: last.revision, values: reads.map((key) => this.#find(key)) }
      }
      if (puts.length + deletes.length === 0) return { status: 'committed', revision: last.revision }
      const { entries } = this.#connection
      // It begins with the time of day in microseconds: if the file is deleted and made anew, no revision comes twice.
      const revision = last.revision === 0n ? BigInt(Date.now()) * 1_000n : last.revision + 1n
      let { deleted } = last
      for (const { key, value } of puts) entries.put.run(this.#prefix, Buffer.from(key), value, String(revision))
      for (const key of deletes) {
        if (Number(entries.remove.run(this.#prefix, Buffer.from(key)).changes) > 0) deleted = revision
      }
      entries.advance.run(this.#prefix, String(revision), String(deleted))
      return { status: 'committed', revision }
    })
  }

  #last(): { readonly revision: bigint; readonly deleted: bigint } {
    const [row] = this.#connection.entries.last.all(this.#prefix, 0) as { revision: string; deleted: string }[]
    return { revision: BigInt(row?.revision ?? 0), deleted: BigInt(row?.deleted ?? 0) }
  }

  #find(key: string): Versioned | undefined {
    const [row] = this.#connection.entries.find.all(this.#prefix, Buffer.from(key)) as { value: Bytes; revision: string }[]
    return row && { value: toView(row.value), revision: BigInt(row.revision) }
  }

  #holds({ key, is, revision }: Comparison): boolean {
    const own = this.#find(key)?.revision ?? 0n
    return is === 'equal' ? own === revision : own <= revision
  }
}
