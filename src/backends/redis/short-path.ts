/**
 * Most locks are free when they are claimed, and nobody waits when they are released. Then two short scripts do: they need half
 * the keys, and a reply of one word. What they leave goes the long way, and so does for a while what was found busy.
 */
import type { Claim } from '../../core/backend.js'
import type { Clock } from '../../core/clock.js'
import type { Keys } from './keys.js'

const BUSY_MS = 5_000
const MOST_BUSY = 1_000

export class ShortPath {
  readonly #keys: Keys
  readonly #clock: Clock
  readonly #busy = new Set<string>()
  #clearAt = 0

  constructor(keys: Keys, clock: Clock) {
    this.#keys = keys
    this.#clock = clock
  }

  /** One that has a place, or something to tell about itself, is not so simple. */
  isFor(claims: readonly Claim[]): boolean {
    if (this.#busy.size > 0 && this.#clock.now() >= this.#clearAt) this.#busy.clear()
    return claims.every(
      ({ resource, place, type, metadata }) =>
        place === undefined && type === undefined && metadata === undefined && !(this.#busy.size > 0 && this.#busy.has(resource)),
    )
  }

  foundBusy({ resource }: Claim): void {
    const now = this.#clock.now()
    if (now >= this.#clearAt || this.#busy.size >= MOST_BUSY) {
      this.#busy.clear()
      this.#clearAt = now + BUSY_MS
    }
    this.#busy.add(resource)
  }

  /** What `lua/take.lua` is given. */
  wordsToTake(claims: readonly Claim[], slot: number, owner: string, highestEpoch: string, isCluster: boolean): string[] {
    const words = [this.#keys.fence(slot)]
    this.#addKeys(words, claims)
    words.push(owner, highestEpoch, isCluster ? '@' : '')
    for (const { id, ttlMs } of claims) words.push(`${id} ${ttlMs}`)
    return words
  }

  /** What `lua/drop.lua` is given. */
  wordsToDrop(claims: readonly Claim[]): string[] {
    const words: string[] = []
    this.#addKeys(words, claims)
    for (const { id } of claims) words.push(id)
    return words
  }

  #addKeys(words: string[], claims: readonly Claim[]): void {
    for (const { resource } of claims) words.push(this.#keys.lockOf(resource), this.#keys.queueOf(resource))
  }
}

export interface Taken {
  /** That of the first claim: microseconds, which numbers can count exactly for two centuries more. */
  readonly epoch: number
  /** For each claim whether it was taken (1) or left (0). */
  readonly states: string
  readonly node: string
}

export function readTaken(reply: string): Taken | undefined {
  if (reply === '') return undefined
  const [epoch, states, node = ''] = reply.split(' ')
  return { epoch: Number(epoch), states: states!, node }
}
