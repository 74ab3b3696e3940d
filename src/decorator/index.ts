/** `@Lock`, for methods, and `locked()`, for functions: they run under a lock whose key is made from their arguments. */
import { ConfigurationError } from '../core/errors.js'
import { guard, type AnyGuardOptions, type GuardOptions } from './guard.js'
import type { Checked, Lockable, LockDecorator } from './types.js'

export { currentLock } from '../primitives/lock.js'
export type { GuardOptions } from './guard.js'
export { setLocks, type LocksSource } from '../locks-source.js'
export type { Checked, Lockable, LockDecorator } from './types.js'

/** What else a guard can be told, by the arguments of what it guards. */
export interface WithArguments<A extends readonly any[]> {
  /** The lock is released when this is settled, and not when the function has ended: whoever comes next has to see what it wrote. */
  readonly afterCommit?: (...args: A) => PromiseLike<unknown>
}

/**
 * Runs a method under a lock. `waitMs` is 0: if another holds it, the call rejects with `LockNotAcquiredError`.
 *
 *     @Lock({ key: (orderId) => key`order:${orderId}` })
 *     async pay(orderId: string): Promise<Receipt> { … }
 *
 * Or with a template, whose placeholders are parameters by position: `{ key: 'order:{orderId}', params: ['orderId'] }`.
 */
export function Lock<M extends Lockable>(
  options: GuardOptions & WithArguments<Parameters<M>> & { readonly key: (...args: Parameters<M>) => string; readonly params?: never },
): LockDecorator<M>
export function Lock<M extends Lockable, const T extends string, const P extends readonly string[]>(
  options: GuardOptions & WithArguments<Parameters<M>> & { readonly key: T; readonly params: P } & Checked<T, P, Parameters<M>>,
): LockDecorator<M>
export function Lock<M extends Lockable>(
  options: GuardOptions & WithArguments<Parameters<M>> & { readonly key: string; readonly params?: undefined },
): LockDecorator<M>
export function Lock(options: AnyGuardOptions): LockDecorator<Lockable> {
  checkOptions(options)
  return (target: any, where: string | symbol | DecoratorContext, descriptor?: PropertyDescriptor) => {
    // Standard decorators get the method and its context, those of TypeScript before get the prototype, the name and a descriptor.
    if (typeof where === 'object' && where !== null) {
      if (where.kind !== 'method') throw notAMethod(String(where.name))
      return guard(target, options, String(where.name))
    }
    if (typeof descriptor?.value !== 'function') throw notAMethod(String(where))
    return { ...descriptor, value: guard(descriptor.value, options, String(where)) }
  }
}

/** The same for a function that is in no class. */
export function locked<A extends any[], R, T = unknown>(
  fn: (this: T, ...args: A) => R,
  options: GuardOptions & WithArguments<A> & { readonly key: (...args: A) => string; readonly params?: never },
): (this: T, ...args: A) => Guarded<R>
export function locked<A extends any[], R, const K extends string, const P extends readonly string[], T = unknown>(
  fn: (this: T, ...args: A) => R,
  options: GuardOptions & WithArguments<A> & { readonly key: K; readonly params: P } & Checked<K, P, A>,
): (this: T, ...args: A) => Guarded<R>
export function locked<A extends any[], R, T = unknown>(
  fn: (this: T, ...args: A) => R,
  options: GuardOptions & WithArguments<A> & { readonly key: string; readonly params?: undefined },
): (this: T, ...args: A) => Guarded<R>
export function locked(fn: (...args: any[]) => any, options: AnyGuardOptions): (...args: any[]) => any {
  if (typeof fn !== 'function') throw new ConfigurationError('locked(fn, { key }) takes a function.')
  checkOptions(options)
  return guard(fn, options, fn.name || 'the function')
}

/** An async generator stays one; all else has to be waited for. */
type Guarded<R> = R extends AsyncGenerator<any, any, any> ? R : Promise<Awaited<R>>

function checkOptions(options: unknown): void {
  if (typeof options === 'object' && options !== null && 'key' in options) return
  throw new ConfigurationError("A lock needs a key: { key: (orderId) => key`order:${orderId}` }, or { key: 'order:{orderId}', params: ['orderId'] }.")
}

function notAMethod(name: string): ConfigurationError {
  return new ConfigurationError(`@Lock is for methods, and ${name} is none.`)
}
