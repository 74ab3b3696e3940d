/** Sessions that were orphaned while they held something: whoever asks takes the latest up, in whatever process. */

export interface Left {
  readonly op: string
  readonly fence: bigint
  readonly lease: bigint
  /** Of a leader. */
  readonly rev?: bigint
  readonly place: string
}

export class Orphans {
  readonly #byKey = new Map<string, Left[]>()

  leave(key: string, left: Left): void {
    const others = this.#byKey.get(key)
    if (others) others.push(left)
    else this.#byKey.set(key, [left])
  }

  /** One that is over by now is taken up, too: that must do no harm. */
  find(key: string): Left | undefined {
    return this.#byKey.get(key)?.pop()
  }
}
