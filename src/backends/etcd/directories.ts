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
  /** A request that makes a claim is on its way there; and those that are not sent before it is answered. */
  isAsked = false
  unsent: Pending[] | undefined
  /** The highest number that was given; and of those up to it, those that can be given again. */
  last = 0
  free: number[] | undefined

  constructor(name: string) {
    this.name = name
    this.end = endOf(name)
  }

  at(key: string): OwnClaim | undefined {
    return this.claims.find((own) => own.key === key && !own.isDisplaced)
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

  /** If it is a new one, it is there for others only when something is added to it: in the same run, or there may be two of one name. */
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

  /** Another that has its key is displaced: not found by it, nor counted among all, until this one is gone. */
  add(own: OwnClaim): void {
    const { directory } = own
    const before = directory.at(own.key)
    if (before) before.isDisplaced = true
    directory.claims.push(own)
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

  /** → the one that it had displaced, if that is still there. */
  gone(own: OwnClaim): OwnClaim | undefined {
    const { directory, directory: { claims } } = own
    this.leaves(own)
    const at = claims.indexOf(own)
    if (at < 0) return undefined
    claims.splice(at, 1)
    this.tidy(directory)
    const before = own.isDisplaced ? undefined : claims.findLast(({ key }) => key === own.key)
    if (before) before.isDisplaced = false
    return before
  }

  displacedBy({ directory, key }: OwnClaim): OwnClaim[] {
    return directory.claims.filter((one) => one.isDisplaced && one.key === key)
  }

  on(lease: Lease): OwnClaim[] {
    return [...this].filter((own) => own.lease === lease)
  }

  /** Of all there are, also those that are displaced. */
  some(isSo: (own: OwnClaim) => boolean): boolean {
    for (const { claims } of this.#all) if (claims.some(isSo)) return true
    return false
  }

  *[Symbol.iterator](): Iterator<OwnClaim> {
    for (const { claims } of this.#all) for (const own of [...claims]) if (!own.isDisplaced) yield own
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
