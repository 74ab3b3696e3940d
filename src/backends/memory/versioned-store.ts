/** Keys with values and versions. Every method is one step. There is no history: of what was, it knows only what still is. */
import type { Commit, CommitState, Comparison, Snapshot, Versioned, VersionedStore } from '../../core/backend.js'

export class MemoryVersionedStore implements VersionedStore {
  readonly #entries = new Map<string, Versioned>()
  #revision = 0n
  /** The last commit that deleted something: what is not there now may have been there before it. */
  #lastDelete = 0n

  async read(keys: readonly string[], at = this.#revision): Promise<Snapshot | undefined> {
    const { values } = this.#now(keys)
    if (values.some((entry) => (entry?.revision ?? this.#lastDelete) > at)) return undefined
    return { revision: at, values }
  }

  async commit({ comparisons, puts, deletes, reads }: Commit): Promise<CommitState> {
    if (!comparisons.every((one) => this.#holds(one))) return { status: 'conflict', ...this.#now(reads) }
    if (puts.length + deletes.length > 0) this.#revision++
    const revision = this.#revision
    // Copied: whoever wrote it may go on to use its bytes otherwise.
    for (const { key, value } of puts) this.#entries.set(key, { value: new Uint8Array(value), revision })
    for (const key of deletes) {
      if (this.#entries.delete(key)) this.#lastDelete = revision
    }
    return { status: 'committed', revision }
  }

  #holds({ key, is, revision }: Comparison): boolean {
    const own = this.#entries.get(key)?.revision ?? 0n
    return is === 'equal' ? own === revision : own <= revision
  }

  #now(keys: readonly string[]): Snapshot {
    const values = keys.map((key) => {
      const entry = this.#entries.get(key)
      return entry && { ...entry, value: new Uint8Array(entry.value) }
    })
    return { revision: this.#revision, values }
  }
}
