/** What a process has in etcd, and the names that it gives. */
import { describe, expect, it } from 'vitest'
import { Directories, type Directory } from '../../src/backends/etcd/directories.js'
import { Keys } from '../../src/backends/etcd/keys.js'
import { Lease } from '../../src/backends/etcd/leases.js'
import { OwnClaim } from '../../src/backends/etcd/own-claim.js'

const lease = new Lease(7n, 12_000, 10_000, 0)
let ids = 0

function claimOn(resource: string, id = String(++ids)) {
  return { id, resource, take: 1, limit: 1, ttlMs: 10_000 }
}

class Process {
  readonly all = new Directories(new Keys('locks'))

  ask(resource: string, key?: string): OwnClaim {
    const claim = claimOn(resource)
    const directory = this.all.of(claim)
    const number = key === undefined ? this.all.takeNumber(directory) : undefined
    const own = new OwnClaim(claim, directory, key ?? `${directory.name}7-${number}`, lease, {} as never, number)
    this.all.add(own)
    return own
  }

  end(own: OwnClaim, isSpotless = true): void {
    this.all.gone(own)
    if (isSpotless) this.all.freeNumber(own.directory, own.keyNumber!)
    else this.all.spendNumbers()
  }

  /** Those of what it asks for from now on. */
  numbers(...resources: string[]): (number | undefined)[] {
    return resources.map((resource) => this.ask(resource).keyNumber)
  }
}

describe('the numbers of claims', () => {
  it('are as few as there are claims at a time', () => {
    const process = new Process()
    const first = process.ask('a')
    expect(process.numbers('a', 'b')).toEqual([2, 1])
    process.end(first)
    expect(process.numbers('a', 'a')).toEqual([1, 3])
  })

  it('begin at the first again when none is in use, also while others are watched', () => {
    const process = new Process()
    const both = [process.ask('a'), process.ask('a')]
    both[0]!.directory.lookout = {} as never
    for (const own of both) process.end(own)
    expect(process.numbers('a')).toEqual([1])
  })

  it('are new once something is not known, and what was in use then is not used again', () => {
    const process = new Process()
    const [first, second] = [process.ask('a'), process.ask('a'), process.ask('a')]
    process.end(first)
    process.end(second, false)
    expect(process.numbers('a', 'b')).toEqual([4, 4])
    const late = process.ask('a')
    process.end(late)
    expect(process.numbers('a', 'a', 'c')).toEqual([5, 6, 4])
  })

  it('that were in use when something came to be not known do not come back', () => {
    const process = new Process()
    const [first, second] = [process.ask('a'), process.ask('a'), process.ask('a')]
    process.end(first, false)
    process.end(second)
    expect(process.numbers('a')).toEqual([4])
  })
})

describe('a claim', () => {
  it('is found by its id and its key until it is gone', () => {
    const process = new Process()
    const [own, other] = [process.ask('a'), process.ask('a')]
    expect(process.all.named(own.claim)).toBe(own)
    expect(process.all.at(own.key)).toBe(own)
    expect(process.all.named({ ...own.claim, resource: 'b' })).toBeUndefined()
    process.all.gone(own)
    expect(process.all.named(own.claim)).toBeUndefined()
    expect(process.all.at(own.key)).toBeUndefined()
    expect([...process.all]).toEqual([other])
  })

  it('that leaves is found by its key only, and its id is that of the one that is asked for anew', () => {
    const process = new Process()
    const own = process.ask('a')
    process.all.leaves(own)
    expect(process.all.named(own.claim)).toBeUndefined()
    expect(process.all.at(own.key)).toBe(own)
  })

  it('whose key another comes to have has it back when that is gone', () => {
    const process = new Process()
    const own = process.ask('a')
    const other = process.ask('a', own.key)
    expect(process.all.at(own.key)).toBe(other)
    expect(process.all.named(own.claim)).toBe(own)
    expect(process.all.displacedBy(other)).toEqual([own])
    expect([...process.all]).toEqual([other])
    expect(process.all.gone(other)).toBe(own)
    expect(process.all.at(own.key)).toBe(own)
    expect([...process.all]).toEqual([own])
    expect(process.numbers('a')).toEqual([2])
  })

  it('whose key another comes to have can go before that', () => {
    const process = new Process()
    const own = process.ask('a')
    const other = process.ask('a', own.key)
    expect(process.all.gone(own)).toBeUndefined()
    expect(process.all.at(own.key)).toBe(other)
    expect(process.all.gone(other)).toBeUndefined()
    expect([...process.all]).toEqual([])
  })
})

describe('a directory', () => {
  const isKnown = (process: Process, directory: Directory) => process.all.of({ ...claimOn('a') }) === directory

  it('is one for all that are in it, of whatever kind', () => {
    const { all } = new Process()
    expect(all.nameOf({ ...claimOn('locks/a/'), lease: { id: 7n, role: 'member' } })).toBe(all.nameOf(claimOn('a')))
  })

  it.each(['claims', 'isAsked', 'lookout'] as const)('is forgotten when there is nothing left in it, and not before: %s', (what) => {
    const process = new Process()
    const own = process.ask('a')
    const { directory } = own
    if (what === 'isAsked') directory.isAsked = true
    if (what === 'lookout') directory.lookout = {} as never
    expect(isKnown(process, directory)).toBe(true)
    process.end(own)
    expect(isKnown(process, directory)).toBe(what !== 'claims')
    directory.isAsked = false
    directory.lookout = undefined
    process.all.tidy(directory)
    expect(isKnown(process, directory)).toBe(false)
  })
})
