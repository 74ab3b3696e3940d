/**
 * The claims of this process, by the part of their ids that the database tells: whoever reads along must not learn the rest, since
 * with that a claim can be released.
 */
import type { Claim } from '../../../core/backend.js'

/** Digits of the id. 48 bits tell the claims of one process apart, and leave 80 to be guessed. */
export const NAME_LENGTH = 12

export class OwnClaims {
  readonly #byName = new Map<string, Claim>()
  /** By their ids, how many were ahead of them. */
  readonly #waiting = new Map<string, number>()

  /** Before it is asked for: news of it can overtake the answer. */
  add(claim: Claim): void {
    this.#byName.set(nameOf(claim), claim)
  }

  /** Behind so many others. Whether it has just come, or come nearer. */
  waits({ id }: Claim, ahead: number): boolean {
    const before = this.#waiting.get(id) ?? Infinity
    this.#waiting.set(id, ahead)
    return ahead < before
  }

  holds({ id }: Claim): void {
    this.#waiting.delete(id)
  }

  remove(claim: Claim): void {
    this.#byName.delete(nameOf(claim))
    this.#waiting.delete(claim.id)
  }

  /** It does not hold; perhaps because it never did. */
  lost(claim: Claim): void {
    if (!this.#waiting.has(claim.id)) this.remove(claim)
  }

  named(name: string): Claim | undefined {
    return this.#byName.get(name)
  }

  get someWait(): boolean {
    return this.#waiting.size > 0
  }
}

function nameOf({ id }: Claim): string {
  return id.slice(0, NAME_LENGTH)
}
