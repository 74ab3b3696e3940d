/**
 * What this process has in etcd: its claims, each in the directory of what it is on. Most directories have one claim, and come and go
 * with it.
 *
 * The keys of claims end with numbers. They are used again: etcd keeps every name that ever was in its index until it is compacted, and
 * whoever reads a line goes past all names that were in it. A name is used again only if nothing that concerned its last claim can
 * still happen. Once that is not known of some claim, all numbers from then on are new.
 */
import type { Claim } from '../../core/backend.js'
import { Registry, type Registered } from '../../core/registry.js'
import { endOf, memberDirectory, type Keys } from './keys.js'
import type { Lease } from './leases.js'
import type { Lookout } from './lookouts.js'
import type { OwnClaim } from './own-claim.js'
import type { Pending } from './txns.js'

export class Directory implements Registered<Directory> {
  /** What all keys in it begin with. */
  readonly name: string
  next: Directory | undefined
  /** The first key that is not in it any more. */
  readonly end: string
  readonly claims: OwnClaim[] = []
  isRegistered = false
  /** Where some of them wait. */
  lookout: Lookout | undefined
  /** A claim is on its way there; and those that wait until it is answered. */
  isAsked = false
  waiting: Pending[] | undefined
  /** Of the numbers up to the last, those that are not in use. */
  last = 0
  free: number[] | undefined

  constructor(name: string) {
    this.name = name
    this.end = endOf(name)
  }

  at(key: string): OwnClaim | undefined {
    return this.claims.find((own) => own.key === key && !own.isCovered)
  }

  get isEmpty(): boolean {
    return this.claims.length === 0 && !this.isAsked && !this.lookout
  }
}

export class Directories {
  readonly #keys: Keys
  readonly #all = new Registry<Directory>()
  #highest = 0
  /** All numbers up to here were in use when something was not known. */
  #spent = 0

  constructor(keys: Keys) {
    this.#keys = keys
  }

  nameOf({ resource, lease }: Claim): string {
    return lease ? memberDirectory(resource) : this.#keys.directory(resource)
  }

  of(claim: Claim): Directory {
    const name = this.nameOf(claim)
    return this.#all.get(name) ?? new Directory(name)
  }

  /** To be called by whoever has taken the last thing out of it. */
  tidy(directory: Directory): void {
    if (!directory.isEmpty || !directory.isRegistered) return
    this.#all.remove(directory)
    directory.isRegistered = false
  }

  /** Another that has its key is not found by it any more, until this one is gone or the other is added again. */
  add(own: OwnClaim): void {
    const { directory } = own
    const before = directory.at(own.key)
    if (before) before.isCovered = true
    own.isCovered = false
    own.isNamed = true
    if (!directory.claims.includes(own)) directory.claims.push(own)
    if (directory.isRegistered) return
    this.#all.add(directory)
    directory.isRegistered = true
  }

  named(claim: Claim): OwnClaim | undefined {
    const claims = this.#all.get(this.nameOf(claim))?.claims
    return claims?.findLast((own) => own.claim.id === claim.id && own.isNamed)
  }

  at(key: string): OwnClaim | undefined {
    return this.#all.get(key.slice(0, key.lastIndexOf('/') + 1))?.at(key)
  }

  /** It is no longer known by its id, which may be claimed anew. */
  leaves(own: OwnClaim): void {
    own.state = 'leaving'
    own.isNamed = false
  }

  /** With those whose key it had. */
  gone(own: OwnClaim): void {
    const { directory, directory: { claims }, key, isCovered } = own
    this.leaves(own)
    for (let i = claims.length - 1; i >= 0; i--) {
      const one = claims[i]!
      if (one === own || (one.isCovered && !isCovered && one.key === key)) claims.splice(i, 1)
    }
    this.tidy(directory)
  }

  on(lease: Lease): OwnClaim[] {
    return [...this].filter((own) => own.lease === lease)
  }

  *[Symbol.iterator](): Iterator<OwnClaim> {
    for (const { claims } of this.#all) for (const own of [...claims]) if (!own.isCovered) yield own
  }

  // Numbers

  takeNumber(directory: Directory): number {
    let number = directory.free?.pop()
    if (number === undefined || number <= this.#spent) number = directory.last = Math.max(directory.last, this.#spent) + 1
    if (number > this.#highest) this.#highest = number
    return number
  }

  /** Nothing that concerns it is on its way. */
  freeNumber(directory: Directory, number: number): void {
    if (directory.claims.length === 0) {
      directory.last = 0
      directory.free = undefined
    } else if (number > this.#spent) {
      (directory.free ??= []).push(number)
    }
  }

  /** Something may still happen to a claim that is over. */
  spendNumbers(): void {
    this.#spent = this.#highest
  }
}
