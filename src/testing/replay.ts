/** What transactions have read and written, judged as if they had come one after the other. */
import assert from 'node:assert/strict'

export interface Replayed {
  readonly revision: bigint
  readonly reads: ReadonlyMap<string, string>
  readonly writes: ReadonlyMap<string, string>
}

/** In the order of their revisions, each must have read what was there. `begin` is the revision before. → what is there in the end */
export function replay(begin: bigint, before: ReadonlyMap<string, string>, transactions: readonly Replayed[]): Map<string, string> {
  const state = new Map(before)
  let last = begin
  // One that wrote nothing comes after the one whose revision it saw.
  const inOrder = [...transactions].sort((a, b) => Number(a.revision - b.revision) || b.writes.size - a.writes.size)
  for (const { revision, reads, writes } of inOrder) {
    assert.ok(revision >= last, 'revisions are in order')
    if (writes.size > 0) assert.ok(revision > last, `no two commits have the same revision, ${revision}`)
    for (const [key, value] of reads) assert.equal(value, state.get(key), `${key}, as read for revision ${revision}`)
    for (const [key, value] of writes) state.set(key, value)
    last = revision
  }
  return state
}
