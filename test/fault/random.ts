/** Small, fast, and the same on every machine for the same seed. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed | 0
  }

  /** From 0 to 1, without 1. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }

  between(least: number, most: number): number {
    return least + this.next() * (most - least)
  }

  /** A whole number below `end`. */
  below(end: number): number {
    return Math.floor(this.next() * end)
  }

  one<T>(of: readonly T[]): T {
    return of[this.below(of.length)]!
  }

  /** Some of them, at least one and not all if there are several. */
  some<T>(of: readonly T[]): T[] {
    const left = [...of]
    const count = 1 + this.below(Math.max(1, left.length - 1))
    return Array.from({ length: count }, () => left.splice(this.below(left.length), 1)[0]!)
  }
}
