import type { Hold } from './hold.js'

/**
 * That somebody holds something, for a transaction to require: then it is written only if that is so on the store, too, at that very
 * moment.
 */
export class Ownership {
  readonly #hold: Hold

  constructor(hold: Hold) {
    this.#hold = hold
  }

  /** Not a member, so that users do not see it. Undefined of anything else. */
  static holdOf(value: unknown): Hold | undefined {
    return typeof value === 'object' && value !== null && #hold in value ? value.#hold : undefined
  }

  /** Asks the store. */
  async check(): Promise<boolean> {
    return this.#hold.check()
  }
}
