/**
 * What is promised of transactions: all could have come one after the other, each with a revision of its own.
 *
 * Of one whose answer was lost nobody knows whether it was committed. If it was, then whoever read what it wrote has told so, with its
 * revision: whatever is written here was read before by the same transaction, and in the end each process reads everything.
 */
import { replay, type Replayed } from '../../src/testing/replay.js'
import { groupBy } from './group.js'
import type { Dealing, Event, Violation } from './history.js'

type Trying = Extract<Event, { type: 'trying' }>
type Committed = Extract<Event, { type: 'committed' }>

/** What the values of a dealing must come to, once it has begun: see traffic/transactions.mjs. */
const SUMS: Readonly<Record<Dealing, (sum: number) => boolean>> = { transfers: (sum) => sum === 400, duties: (sum) => sum >= 1, owned: () => true }

export function* serializable({ events }: { readonly events: readonly Event[] }): Generator<Violation> {
  const tries = new Map<string, Trying>()
  const commits = new Map<string, Committed>()
  const endOf = new Map<number, bigint>()
  for (const event of events) {
    if (event.type === 'trying') tries.set(event.tx, event)
    if (event.type === 'committed') commits.set(event.tx, event)
    if (event.type === 'generation') endOf.set(event.generation - 1, event.at)
  }
  // What the store has lost, nobody is blamed for.
  const kept = [...tries.values()].filter(({ generation }) => generation % 2 === 0)
  for (const [name, all] of groupBy(kept, ({ dealing, generation }) => `${dealing} ${generation}`)) {
    const { dealing, generation } = all[0]!
    const until = endOf.get(generation)
    const certain = all.filter(({ tx }) => commits.has(tx) && (until === undefined || commits.get(tx)!.at < until))
    const trouble = judged(all, certain, commits, SUMS[dealing]) ?? (dealing === 'owned' ? overtaken(certain, commits) : undefined)
    if (trouble) yield { invariant: 'serializable', message: `${name}: ${trouble}`, at: certain[0]?.at ?? all[0]!.at, ops: [] }
  }
}

function judged(all: readonly Trying[], certain: readonly Trying[], commits: ReadonlyMap<string, Committed>, isRight: (sum: number) => boolean): string | undefined {
  const byName = new Map(all.map((one) => [one.tx, one]))
  const found = new Map<string, Replayed>()
  const add = (one: Trying, revision: bigint) => {
    const reads = new Map(one.reads.map(([key, value]) => [key, value]))
    found.set(one.tx, { revision, reads, writes: new Map(one.writes) })
  }
  for (const one of certain) add(one, commits.get(one.tx)!.revision)
  // It grows while it is gone through: whoever is known only by what others have read has read something itself.
  for (const tx of found.keys()) {
    for (const [key, value, revision] of byName.get(tx)!.reads) {
      if (value === '') continue
      const writer = byName.get(value.slice(value.indexOf('#') + 1))
      if (!writer?.writes.some(([its, what]) => its === key && what === value)) return `${tx} has read ${value} of ${key}, which nobody has written`
      if (!found.has(writer.tx)) add(writer, commits.get(writer.tx)?.revision ?? revision)
      const { revision: its } = found.get(writer.tx)!
      if (its !== revision) return `${tx} has read what ${writer.tx} wrote to ${key} at ${its}, as of ${revision}`
    }
  }
  const keys = new Set(all.flatMap(({ reads, writes }) => [...reads, ...writes].map(([key]) => key)))
  try {
    const end = [...replay(-1n, new Map([...keys].map((key) => [key, ''])), [...found.values()]).values()]
    const sum = end.reduce((total, value) => total + Number(value.split('#')[0]), 0)
    return end.every((value) => value === '') || isRight(sum) ? undefined : `in the end it comes to ${sum}`
  } catch (error) {
    return (error as Error).message
  }
}

/** What was committed under a fence, after another under a higher one. */
function overtaken(certain: readonly Trying[], commits: ReadonlyMap<string, Committed>): string | undefined {
  const written = certain.flatMap(({ tx, writes: [write] }) => (write ? [{ tx, fence: BigInt(write[1].split('#')[0]!), at: commits.get(tx)!.revision }] : []))
  written.sort((a, b) => Number(a.at - b.at))
  const late = written.findIndex(({ fence }, i) => i > 0 && fence < written[i - 1]!.fence)
  return late < 0 ? undefined : `${written[late]!.tx} has committed under the fence ${written[late]!.fence}, after ${written[late - 1]!.fence}`
}
