/** What the decorator and `locked()` have in common: a function that runs under a lock. */
import { ConfigurationError } from '../core/errors.js'
import { locksOf, type LocksSource } from '../locks-source.js'
import { runUnder, type DistributedLock } from '../primitives/lock.js'
import { resolveLockOptions, type LockOptions } from '../core/options.js'
import { parameterNames } from './parameters.js'
import { compileTemplate, hasPlaceholders, type KeyOf } from './template.js'

/** Options of a guard, whatever it guards. */
export interface GuardOptions extends LockOptions {
  /** Default: the property `locks` of the instance, or what `setLocks()` was given. */
  readonly locks?: LocksSource
}

/** As `guard` needs them, whatever the types of the function are. */
export interface AnyGuardOptions extends GuardOptions {
  readonly key: string | ((...args: any[]) => string)
  readonly params?: readonly string[] | undefined
  readonly afterCommit?: ((...args: any[]) => PromiseLike<unknown>) | undefined
}

type AnyFunction = (this: any, ...args: any[]) => any

export function guard(fn: AnyFunction, options: AnyGuardOptions, name: string): AnyFunction {
  const { key, params, locks, afterCommit, waitMs = 0, ...others } = options
  const keyOf = compileKey(fn, key, params, name)
  const lockOptions: LockOptions = { waitMs, ...others }
  // What is wrong is told here already, and not when it is called.
  resolveLockOptions(lockOptions, { ttlMs: 10_000, waitMs, retryMs: 50 })
  const kind = Object.prototype.toString.call(fn)
  if (kind === '[object GeneratorFunction]') {
    throw new ConfigurationError(`${name} is a generator, which cannot wait for a lock. Make it an async generator.`)
  }
  const begin = async (self: unknown, args: unknown[]): Promise<Guarded> => {
    const own = (self as { readonly locks?: unknown } | undefined | null)?.locks
    const lock = await locksOf(locks, self, name, own).lock(keyOf.call(self, args), lockOptions)
    const release = async () => lock[Symbol.asyncDispose]()
    if (!afterCommit) return { lock, end: release }
    try {
      // It may be rejected while the method still runs: that is its owner's concern, and must not end the process as unhandled.
      const settled = promiseOf(afterCommit.apply(self, args), name).catch(() => {})
      // Whoever waits for the result may be who commits: so it is not waited for.
      return { lock, end: async () => void settled.then(release) }
    } catch (error) {
      await release()
      throw error
    }
  }
  const guarded: AnyFunction = kind === '[object AsyncGeneratorFunction]'
    ? async function* (...args) {
        const { lock, end } = await begin(this, args)
        try {
          return yield* under(lock, runUnder(lock, () => fn.apply(this, args) as AsyncGenerator))
        } finally {
          await end()
        }
      }
    : async function (...args) {
        const { lock, end } = await begin(this, args)
        try {
          return notAGenerator(await runUnder(lock, () => fn.apply(this, args) as unknown), name)
        } finally {
          await end()
        }
      }
  return alike(guarded, fn)
}

interface Guarded {
  readonly lock: DistributedLock
  /** What was guarded has ended. Never rejects. */
  readonly end: () => Promise<void>
}

function compileKey(fn: AnyFunction, key: AnyGuardOptions['key'], params: readonly string[] | undefined, name: string): (this: unknown, args: unknown[]) => string {
  if (typeof key === 'function') {
    return function (args) {
      return key.apply(this, args)
    }
  }
  if (typeof key !== 'string') throw new ConfigurationError(`The key of ${name} is a function of its arguments, or a template such as 'order:{orderId}'.`)
  if (!hasPlaceholders(key)) return () => key
  const names = params ?? parameterNames(fn)
  const form = "key: (orderId) => key`order:${orderId}`, or name the parameters by position: params: ['orderId']"
  if (!names) throw new ConfigurationError(`The names of the parameters of ${name} cannot be told from its source. Write ${form}.`)
  const keyOf: KeyOf = compileTemplate(key, names, params ? '' : ` If a minifier changed the names, write ${form}.`)
  return keyOf
}

function promiseOf(given: unknown, name: string): Promise<unknown> {
  if (typeof (given as PromiseLike<unknown> | undefined)?.then === 'function') return Promise.resolve(given)
  throw new ConfigurationError(`afterCommit of ${name} has to return a promise, which is settled when the transaction is over.`)
}

/** It would run after the release. That is what is left of an async generator by a wrapper, or by a compiler for a target before ES2018. */
function notAGenerator(result: unknown, name: string): unknown {
  const { next, [Symbol.asyncIterator]: iterator } = Object(result) as Partial<AsyncGenerator>
  if (typeof next !== 'function' || typeof iterator !== 'function') return result
  throw new ConfigurationError(`${name} returns an async generator and is none itself, so its steps would run without the lock. Write async *${name}, compile for ES2018 or later, and put the lock below what wraps it.`)
}

/** Each step of it runs under the lock, whoever asks for it. */
function under(lock: DistributedLock, steps: AsyncGenerator): AsyncGenerator {
  const guarded = {
    next: (value: unknown) => runUnder(lock, () => steps.next(value)),
    return: (value: unknown) => runUnder(lock, () => steps.return(value)),
    throw: (error: unknown) => runUnder(lock, () => steps.throw(error)),
    [Symbol.asyncIterator]: () => guarded,
  }
  return guarded as AsyncGenerator
}

interface MetadataApi {
  getOwnMetadataKeys?(target: object): unknown[]
  getOwnMetadata?(key: unknown, target: object): unknown
  defineMetadata?(key: unknown, value: unknown, target: object): void
}

/** Frameworks look at a method's name, length, properties and metadata. */
function alike(guarded: AnyFunction, fn: AnyFunction): AnyFunction {
  for (const property of Reflect.ownKeys(fn)) {
    if (property !== 'prototype') Object.defineProperty(guarded, property, Object.getOwnPropertyDescriptor(fn, property)!)
  }
  const metadata = Reflect as MetadataApi
  for (const key of metadata.getOwnMetadataKeys?.(fn) ?? []) metadata.defineMetadata?.(key, metadata.getOwnMetadata?.(key, fn), guarded)
  return guarded
}
