/**
 * The numbers by which the claims of this process on one resource are told apart. They are used again: etcd keeps every name that ever
 * was in its index until it is compacted, and whoever reads a line goes past all names that were in it.
 *
 * A name is used again only if nothing that concerned its last claim can still happen. Once that is not known of some claim, all
 * numbers from then on are new.
 */
/** The number in the name of a claim's key, and where it goes back to. */
export interface KeyNumber {
  readonly number: number
  readonly among: Numbered
}

/** Of one resource: those in use, and those that were and are free. */
interface Numbered {
  inUse: number
  last: number
  readonly free: number[]
}

export class Numbers {
  #directories = new Map<string, Numbered>()
  #highest = 0
  /** All up to here were in use when something was not known. */
  #spent = 0

  take(directory: string): KeyNumber {
    let among = this.#directories.get(directory)
    if (!among) {
      among = { inUse: 0, last: this.#spent, free: [] }
      this.#directories.set(directory, among)
    }
    among.inUse++
    const number = among.free.pop() ?? ++among.last
    if (number > this.#highest) this.#highest = number
    return { number, among }
  }

  /** Nothing that concerns it is on its way. */
  free(directory: string, { number, among }: KeyNumber): void {
    if (this.#directories.get(directory) !== among) return
    among.free.push(number)
    if (--among.inUse === 0) this.#directories.delete(directory)
  }

  /** Something may still happen to a claim that is over. */
  spend(): void {
    this.#spent = this.#highest
    this.#directories = new Map()
  }
}
