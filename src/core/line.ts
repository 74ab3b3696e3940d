/** A line of those who wait: joining at its end and leaving from anywhere take the same short time, however long it is. */
export interface Linked<T> {
  ahead: T | undefined
  behind: T | undefined
}

export class Line<T extends Linked<T>> {
  #first: T | undefined
  #last: T | undefined
  #size = 0

  get first(): T | undefined {
    return this.#first
  }

  get size(): number {
    return this.#size
  }

  has(one: T): boolean {
    return this.#first === one || one.ahead !== undefined
  }

  join(one: T): void {
    one.ahead = this.#last
    if (this.#last) this.#last.behind = one
    else this.#first = one
    this.#last = one
    this.#size++
  }

  /** Nothing happens if it is not there. */
  leave(one: T): void {
    if (!this.has(one)) return
    if (one.ahead) one.ahead.behind = one.behind
    else this.#first = one.behind
    if (one.behind) one.behind.ahead = one.ahead
    else this.#last = one.ahead
    one.ahead = undefined
    one.behind = undefined
    this.#size--
  }

  /** How many are before it. */
  before(one: T): number {
    let count = 0
    for (let other = one.ahead; other; other = other.ahead) count++
    return count
  }

  /** Each is taken out of the line before it is given. */
  *leaving(): Generator<T> {
    for (let one = this.#first; one; one = this.#first) {
      this.leave(one)
      yield one
    }
  }

  /** Those who are in it now, whoever joins or leaves meanwhile. */
  [Symbol.iterator](): Iterator<T> {
    const all: T[] = []
    for (let one = this.#first; one; one = one.behind) all.push(one)
    return all.values()
  }
}
