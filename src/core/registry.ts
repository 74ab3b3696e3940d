/**
 * What there is under each name. A `Map` would do, were it not for how V8 keeps one: its table is copied again and again when
 * entries come and go, and each copy that has grown old holds on to all that was in it until the next major collection. With a
 * few hundred locks in flight that was most of the work there is.
 */
export interface Registered<T> {
  readonly name: string
  /** The next of those that share a bucket. */
  next: T | undefined
}

const FIRST_BUCKETS = 64
/** Nobody can choose names that share a bucket. */
const SEED = Math.floor(Math.random() * 2 ** 31)

export class Registry<T extends Registered<T>> {
  #buckets: (T | undefined)[] = emptyBuckets(FIRST_BUCKETS)
  #size = 0

  get size(): number {
    return this.#size
  }

  get(name: string): T | undefined {
    let one = this.#buckets[this.#bucketOf(name)]
    while (one && one.name !== name) one = one.next
    return one
  }

  /** There must not be one of that name. */
  add(one: T): void {
    if (this.#size >= this.#buckets.length) this.#grow()
    const at = this.#bucketOf(one.name)
    one.next = this.#buckets[at]
    this.#buckets[at] = one
    this.#size++
  }

  /** Nothing happens if it is not there. */
  remove(one: T): void {
    const at = this.#bucketOf(one.name)
    let before: T | undefined
    let here = this.#buckets[at]
    while (here && here !== one) {
      before = here
      here = here.next
    }
    if (!here) return
    if (before) before.next = one.next
    else this.#buckets[at] = one.next
    one.next = undefined
    this.#size--
  }

  /** All that are there now, whatever comes and goes meanwhile. */
  [Symbol.iterator](): Iterator<T> {
    const all: T[] = []
    for (const first of this.#buckets) for (let one = first; one; one = one.next) all.push(one)
    return all.values()
  }

  #bucketOf(name: string): number {
    let hash = SEED
    for (let i = 0; i < name.length; i++) hash = (Math.imul(hash, 31) + name.charCodeAt(i)) ^ (hash >>> 16)
    // The number of buckets is a power of two: the upper bits have to count, too.
    return (hash ^ (hash >>> 15)) & (this.#buckets.length - 1)
  }

  #grow(): void {
    const all = [...this]
    this.#buckets = emptyBuckets(this.#buckets.length * 2)
    for (const one of all) {
      const at = this.#bucketOf(one.name)
      one.next = this.#buckets[at]
      this.#buckets[at] = one
    }
  }
}

function emptyBuckets(count: number): undefined[] {
  return new Array<undefined>(count).fill(undefined)
}
