/**
 * What the keys on Redis are called; `lua/_store.lua` says what is in them. The lock itself is a plain key that clients in any
 * language can share. Its siblings must live in the same cluster slot; since no rule about braces works for every key, they
 * carry a short tag that hashes to the lock's slot.
 */
import { slotOf, tagOf } from './slots.js'

export class Keys {
  /** What channels begin with. The `@` tells the scripts that each node of a cluster has channels of its own. */
  readonly wake: string
  readonly #isCluster: boolean
  readonly #prefix: string
  readonly #lock: string

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

  /** Whether all keys are in one slot, so that a script can see locks and entries at once: on a cluster, if the prefix has a tag. */
  get areTogether(): boolean {
    return !this.#isCluster || this.#prefix.includes('{')
  }

  fence(slot: number): string {
    return this.#isCluster ? `${this.#prefix}:fence:{${tagOf(slot)}}` : `${this.#prefix}:fence`
  }

  /** What transactions work on. */
  get entries(): string {
    return `${this.#prefix}:stm1`
  }

  /** What came of a commit: in the same slot. */
  commit(id: string): string {
    return `${this.entries}:{${tagOf(slotOf(this.entries))}}:${id}`
  }

  lockOf(resource: string): string {
    return this.#lock + resource
  }

  queueOf(resource: string): string {
    return `${this.#prefix}:q1:{${tagOf(slotOf(this.#lock + resource))}}:${resource}`
  }

  /** Lock, queue, heard, meta: in the order that the scripts expect. */
  of(resource: string): readonly [lock: string, queue: string, heard: string, meta: string] {
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
