/**
 * What the keys on Redis are called; `lua/_store.lua` says what is in them. The lock itself is a plain key that clients in any
 * language can share. Its siblings must live in the same cluster slot; since no rule about braces works for every key, they
 * carry a short tag that hashes to the lock's slot.
 */
import { slotOf, tagOf } from './slots.js'

type KeysOfOne = readonly [lock: string, queue: string, heard: string, meta: string]

/** What is claimed is soon released. */
const MOST_RECENT = 2_000

export class Keys {
  /** What channels begin with. The `@` tells the scripts that each node of a cluster has channels of its own. */
  readonly wake: string
  readonly #isCluster: boolean
  readonly #prefix: string
  readonly #lock: string
  readonly #recent = new Map<string, KeysOfOne>()

  constructor(prefix: string, isCluster: boolean) {
    this.#isCluster = isCluster
    this.#prefix = prefix
    this.#lock = `${prefix}:lock:`
    this.wake = `${prefix}:wake:${isCluster ? '@' : ''}`
  }

  /** What has the same can share a script. */
  slotOf(resource: string): number {
    return this.#isCluster ? slotOf(this.#lock + resource) : 0
  }

  fence(slot: number): string {
    return this.#isCluster ? `${this.#prefix}:fence:{${tagOf(slot)}}` : `${this.#prefix}:fence`
  }

  /** Lock, queue, heard, meta: in the order that the scripts expect. */
  of(resource: string): KeysOfOne {
    let keys = this.#recent.get(resource)
    if (!keys) {
      if (this.#recent.size >= MOST_RECENT) this.#recent.clear()
      this.#recent.set(resource, (keys = this.#make(resource)))
    }
    return keys
  }

  #make(resource: string): KeysOfOne {
    const lock = this.#lock + resource
    const place = `{${tagOf(slotOf(lock))}}:${resource}`
    return [lock, `${this.#prefix}:q1:${place}`, `${this.#prefix}:w1:${place}`, `${this.#prefix}:m1:${place}`]
  }

  resourceOf(lock: string): string {
    return lock.slice(this.#lock.length)
  }

  /** Where an owner is told; `node` is empty unless it is a node of a cluster. */
  channelOf(owner: string, node: string): string {
    return node === '' ? this.wake + owner : `${this.wake}${node}:${owner}`
  }

  /** A pattern for SCAN: the resource's own characters stand for themselves. */
  patternFor(resourcePrefix: string): string {
    return `${escapeGlob(this.#lock + resourcePrefix)}*`
  }
}

function escapeGlob(text: string): string {
  return text.replace(/[\\*?[\]]/g, '\\$&')
}
