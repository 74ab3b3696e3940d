/**
 * The numbers by which the claims of this process on one resource are told apart. They are used again: etcd keeps every name that ever
 * was in its index until it is compacted, and whoever reads a line goes past all names that were in it.
 *
 * A name is used again only if nothing that concerned its last claim can still happen. Once that is not known of some claim, all
 * numbers from then on are new.
 */
import { Registry, type Registered } from '../../core/registry.js'

/** The number in the name of a claim's key, and where it goes back to. */
export interface KeyNumber {
  readonly number: number
  readonly among: Numbered
}

/** Of one resource: those in use, and those that were and are free. */
class Numbered implements Registered<Numbered> {
  readonly name: string
  next: Numbered | undefined
  inUse = 0
  last: number
  readonly free: number[] = []

  constructor(directory: string, last: number) {
    this.name = directory
    this.last = last
  }
}

export class Numbers {
  #directories = new Registry<Numbered>()
  #highest = 0
  /** All up to here were in use when something was not known. */
  #spent = 0

  take(directory: string): KeyNumber {
    let among = this.#directories.get(directory)
    if (!among) {
      among = new Numbered(directory, this.#spent)
      this.#directories.add(among)
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
    if (--among.inUse === 0) this.#directories.remove(among)
  }

  /** Something may still happen to a claim that is over. */
  spend(): void {
    this.#spent = this.#highest
    this.#directories = new Registry()
  }
}
