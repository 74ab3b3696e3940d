/** Where what guards a method or a route finds the lock manager that it uses. */
import { ConfigurationError } from './core/errors.js'
import { LockManager } from './lock-manager.js'

/** One that is there, or that an instance or a request has. */
export type LocksSource<From = any> = LockManager | ((from: From) => LockManager)

let common: LockManager | undefined

/** The manager of all methods, functions and routes that have none of their own. */
export function setLocks(locks: LockManager | undefined): void {
  if (locks !== undefined && !(locks instanceof LockManager)) throw new ConfigurationError('setLocks() takes what connect() or createLocks() gives.')
  common = locks
}

/** `own`: what is taken before the common one, if it is a manager. */
export function locksOf(source: LocksSource | undefined, from: unknown, name: string, own?: unknown): LockManager {
  const found = typeof source === 'function' ? source(from) : (source ?? (own instanceof LockManager ? own : common))
  if (found instanceof LockManager) return found
  throw new ConfigurationError(`${name} has no lock manager. Call setLocks(await connect(…)) at the start, or pass it: { locks }.`)
}
