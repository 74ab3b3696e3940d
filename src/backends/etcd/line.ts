/**
 * A line of claims, by the rule that all clients agree on: in the order in which their keys were created, a claim holds if it and all
 * before it fit into its limit together. What is before a claim only ever gets less, so one that holds goes on holding.
 */
import { ALL_SLOTS, type Blocker, type Holder } from '../../core/backend.js'
import { readValue, type ClaimValue } from './claim-value.js'
import type { KeyValue } from './client/messages.js'
import { fromBytes, isIn, isNumbered } from './keys.js'

export interface Standing {
  readonly key: string
  /** Its place in the line, and its epoch. */
  readonly createRevision: bigint
  readonly modRevision: bigint
  readonly lease: bigint
  /** Undefined for an outsider. */
  readonly value: ClaimValue | undefined
}

/** What is in a directory, of all that begins with it. */
export function standingsIn(directory: string, kvs: readonly KeyValue[]): Standing[] {
  return kvs.map(standingOf).filter(({ key }) => isIn(key, directory.length))
}

export function standingOf({ key: bytes, value, createRevision, modRevision, lease }: KeyValue): Standing {
  const key = fromBytes(bytes)
  // What a candidate says of itself is its own affair, whatever it looks like.
  return { key, createRevision, modRevision, lease, value: isNumbered(key) ? readValue(value) : undefined }
}

export class Line {
  readonly standings: readonly Standing[]
  readonly holders: number

  constructor(standings: Iterable<Standing>) {
    this.standings = [...standings].sort((a, b) => (a.createRevision < b.createRevision ? -1 : 1))
    let taken = 0
    this.holders = 0
    for (const { value } of this.standings) {
      taken += value?.take ?? ALL_SLOTS
      if (taken > (value?.limit ?? ALL_SLOTS)) break
      this.holders++
    }
  }

  get waiting(): number {
    return this.standings.length - this.holders
  }

  find(key: string): Standing | undefined {
    return this.standings.find((standing) => standing.key === key)
  }

  holds({ key }: Standing): boolean {
    return this.standings.findIndex((standing) => standing.key === key) < this.holders
  }

  /** What all of ours in it agree on, but for one of them. */
  limitBeside(key: string): number | undefined {
    return this.standings.find((standing) => standing.key !== key && standing.value)?.value!.limit
  }

  /** What is in the way of a claim that waits, or that did not come to wait. */
  blocker(key?: string): Blocker {
    const at = this.standings.findIndex((standing) => standing.key === key)
    const ahead = (at < 0 ? this.standings.length : at) - this.holders
    return { holder: this.#first(), ahead, waiting: this.waiting - (at < 0 ? 0 : 1) }
  }

  /** Of several holders, the one that will be free first. */
  #first(): Holder | undefined {
    const holders = this.standings.slice(0, this.holders)
    const [first] = holders.sort((a, b) => (a.value?.ttl ?? Infinity) - (b.value?.ttl ?? Infinity))
    return first && describe(first)
  }
}

/** A lease says when it ends only to those who ask: it is told what is left at most. */
export function describe({ value, createRevision: epoch, lease }: Standing): Holder {
  if (!value) return { owner: `etcd lease ${lease.toString(16)}`, epoch, heldForMs: undefined, expiresInMs: undefined }
  const { owner, at, ttl, type, metadata } = value
  return {
    owner,
    epoch,
    heldForMs: Math.max(0, Date.now() - at),
    expiresInMs: ttl,
    ...(type !== undefined && { type }),
    ...(metadata !== undefined && { metadata }),
  }
}
