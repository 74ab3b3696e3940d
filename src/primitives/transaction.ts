/** One try of a transaction: what a function reads and writes, until it is committed all at once or applied again. */
import type { Backend, Commit, Comparison, Snapshot, Versioned } from '../core/backend.js'
import { ConfigurationError, ConflictError } from '../core/errors.js'
import type { Hold } from '../core/hold.js'
import { checkKey } from '../core/key.js'
import { Ownership } from '../core/ownership.js'

/**
 * - `serializable-snapshot`: what was read is of one moment, and nothing that was read or is written has changed since
 * - `serializable`: what was read is of one moment, and has not changed since
 * - `repeatable-reads`: what was read has not changed since
 * - `read-committed`: what was read was there at some time
 */
export type Isolation = 'serializable-snapshot' | 'serializable' | 'repeatable-reads' | 'read-committed'

interface Demands {
  readonly isOfOneMoment: boolean
  readonly comparesReads: boolean
  readonly comparesWrites: boolean
}

export const ISOLATIONS: Readonly<Record<Isolation, Demands>> = {
  'serializable-snapshot': { isOfOneMoment: true, comparesReads: true, comparesWrites: true },
  serializable: { isOfOneMoment: true, comparesReads: true, comparesWrites: false },
  'repeatable-reads': { isOfOneMoment: false, comparesReads: true, comparesWrites: false },
  'read-committed': { isOfOneMoment: false, comparesReads: false, comparesWrites: false },
}

/** What a transaction's function has to do with the store. It is over when the function has returned. */
export interface Transaction {
  /**
   * The value of a key as text, or '' if there is none. Of several keys, the first one that this transaction has written or, if it
   * has written none, has read; and if it has read none of them either, all are read at once, and it is that of the first.
   */
  get(...keys: readonly [string, ...string[]]): Promise<string>
  /** The same, as bytes; undefined if there is none. */
  getBytes(...keys: readonly [string, ...string[]]): Promise<Uint8Array | undefined>
  put(key: string, value: string | Uint8Array): void
  del(key: string): void
  /** The revision of the commit that wrote what the store has of the key; 0n if it has nothing. */
  rev(key: string): Promise<bigint>
  /**
   * It is committed only if this is so on the store at that moment; else the transaction rejects with `OwnershipLostError`, or whatever
   * else the hold has ended with, and is not applied again.
   */
  requires(ownership: Ownership): void
}

/** What is known of a key, and as of when. */
interface Known {
  readonly entry: Versioned | undefined
  readonly asOf: bigint
}

export type Snapshots = Map<string, Known>
type Fetch = (keys: readonly string[], at?: bigint) => Promise<Snapshot | undefined>

/** One application of the function. */
export class Try implements Transaction {
  readonly #isolation: Isolation
  readonly #backend: Backend
  readonly #fetch: Fetch
  /** What came along before anybody asked for it. */
  readonly #known: Snapshots
  readonly #reads: Snapshots = new Map()
  /** Null: deleted. */
  readonly #writes = new Map<string, Uint8Array | null>()
  readonly #required = new Set<Hold>()
  /** The revision of the first read. */
  #base: bigint | undefined
  /** What is asked for in one turn is fetched together, and one fetch after the other: the first decides as of when. */
  #wanted = new Set<string>()
  #fetching: Promise<void> = Promise.resolve()
  #isOver = false
  #missed: readonly string[] = []
  /** What it wanted to read has changed since its first read. */
  isStale = false
  failure: { readonly error: unknown } | undefined

  constructor(isolation: Isolation, backend: Backend, known: Snapshots, fetch: Fetch) {
    this.#isolation = isolation
    this.#backend = backend
    this.#known = known
    this.#fetch = fetch
    this.#base = known.values().next().value?.asOf
  }

  get(...keys: readonly [string, ...string[]]): Promise<string> {
    return heard(this.#first(keys).then((value) => (value ? textOf(value) : '')))
  }

  getBytes(...keys: readonly [string, ...string[]]): Promise<Uint8Array | undefined> {
    return heard(this.#first(keys).then((value) => value && new Uint8Array(value)))
  }

  put(key: string, value: string | Uint8Array): void {
    this.#check([key])
    this.#writes.set(key, bytesOf(value))
  }

  del(key: string): void {
    this.#check([key])
    this.#writes.set(key, null)
  }

  requires(ownership: Ownership): void {
    this.#checkOpen()
    const hold = Ownership.holdOf(ownership)
    if (!hold) throw new ConfigurationError('requires() takes the ownership of a lock, as isOwner() gives it.')
    if (hold.backend !== this.#backend) {
      throw new ConfigurationError(`The lock on "${hold.key}" is another manager's: a transaction can only require what its own one holds.`)
    }
    this.#required.add(hold)
    hold.assertHeld()
  }

  /** Throws why, if one of them is known to be over. */
  required(): readonly Hold[] {
    for (const hold of this.#required) hold.assertHeld()
    return [...this.#required]
  }

  rev(key: string): Promise<bigint> {
    return heard(this.#rev(key))
  }

  async #rev(key: string): Promise<bigint> {
    this.#check([key])
    return (await this.#read([key])).entry?.revision ?? 0n
  }

  async #first(keys: readonly string[]): Promise<Uint8Array | undefined> {
    this.#check(keys)
    const written = keys.find((key) => this.#writes.has(key))
    if (written !== undefined) return this.#writes.get(written) ?? undefined
    return (await this.#read(keys)).entry?.value
  }

  async #read(keys: readonly string[]): Promise<Known> {
    for (const key of keys) {
      const known = this.#known.get(key)
      if (known && !this.#reads.has(key)) this.#reads.set(key, known)
    }
    const read = keys.find((key) => this.#reads.has(key))
    if (read !== undefined) return this.#reads.get(read)!
    for (const key of keys) this.#wanted.add(key)
    await (this.#fetching = this.#fetching.then(() => this.#fetchWanted()))
    return this.#reads.get(keys[0]!)!
  }

  async #fetchWanted(): Promise<void> {
    const keys = [...this.#wanted].filter((key) => !this.#reads.has(key))
    this.#wanted.clear()
    if (keys.length === 0) return
    const at = ISOLATIONS[this.#isolation].isOfOneMoment ? this.#base : undefined
    try {
      const snapshot = await this.#fetch(keys, at)
      if (!snapshot) {
        this.isStale = true
        this.#missed = keys
        throw new ConflictError('What this transaction wants to read has changed since its first read. It is applied again.')
      }
      this.#base ??= snapshot.revision
      for (const [key, known] of snapshotOf(keys, snapshot)) this.#reads.set(key, known)
    } catch (error) {
      if (!this.isStale) this.failure = { error }
      throw error
    }
  }

  #checkOpen(): void {
    if (this.#isOver) throw new ConfigurationError('This transaction is over: await whatever belongs to it before its function returns.')
  }

  #check(keys: readonly string[]): void {
    this.#checkOpen()
    if (keys.length === 0) throw new ConfigurationError('get() takes at least one key.')
    for (const key of keys) checkKey(key)
  }

  /** Nothing is read or written any more. → the keys that it has read, or wanted to: the next try will, too */
  end(): readonly string[] {
    this.#isOver = true
    return [...this.#reads.keys(), ...this.#missed]
  }

  toCommit(): Omit<Commit, 'reads'> {
    const { comparesReads, comparesWrites } = ISOLATIONS[this.#isolation]
    const comparisons: Comparison[] = []
    if (comparesReads) {
      for (const [key, { entry }] of this.#reads) comparisons.push({ key, is: 'equal', revision: entry?.revision ?? 0n })
    }
    if (comparesWrites && this.#base !== undefined) {
      // Of what was read and is written, more is asked already.
      for (const key of this.#writes.keys()) {
        if (!this.#reads.has(key)) comparisons.push({ key, is: 'at-most', revision: this.#base })
      }
    }
    const puts = []
    const deletes = []
    for (const [key, value] of this.#writes) {
      if (value) puts.push({ key, value })
      else deletes.push(key)
    }
    return { comparisons, puts, deletes }
  }

  /** Nothing is written or required, and what was read was there together at this revision: then there is nothing to commit. */
  seenAt({ comparisons, puts, deletes, holds = [] }: Commit): bigint | undefined {
    if (puts.length + deletes.length + holds.length > 0) return undefined
    const base = this.#base ?? 0n
    const isOfOneMoment = ISOLATIONS[this.#isolation].isOfOneMoment || [...this.#reads.values()].every(({ asOf }) => asOf === base)
    return comparisons.length === 0 || isOfOneMoment ? base : undefined
  }
}

export function snapshotOf(keys: readonly string[], { revision, values }: Snapshot): Snapshots {
  return new Map(keys.map((key, i) => [key, { entry: values[i], asOf: revision }]))
}

/** A read that nobody awaits fails the transaction, but not the process. */
function heard<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {})
  return promise
}

function bytesOf(value: string | Uint8Array): Uint8Array {
  if (value instanceof Uint8Array) return Uint8Array.from(value)
  if (typeof value !== 'string') throw new ConfigurationError(`A value is a string or bytes, not a ${typeof value}. jsonKey() is for others.`)
  if (/\p{Surrogate}/u.test(value)) throw new ConfigurationError('A value must be well-formed Unicode; this one has a lone surrogate.')
  return Buffer.from(value)
}

function textOf({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString()
}

/** A key whose value is JSON, and of which type. */
export interface JsonKey<Value> {
  readonly key: string
  /** Undefined if there is none. */
  get(tx: Transaction): Promise<Value | undefined>
  put(tx: Transaction, value: Value): void
  del(tx: Transaction): void
}

/** Names a key together with the type of its value: `const stock = jsonKey<{ left: number }>('stock:42')`. */
export function jsonKey<Value>(key: string): JsonKey<Value> {
  checkKey(key)
  return {
    key,
    async get(tx) {
      const text = await tx.get(key)
      return text === '' ? undefined : (JSON.parse(text) as Value)
    },
    put(tx, value) {
      const text = JSON.stringify(value) as string | undefined
      if (text === undefined) throw new ConfigurationError(`The value of "${key}" must be a JSON value, not a ${typeof value}.`)
      tx.put(key, text)
    },
    del: (tx) => tx.del(key),
  }
}
