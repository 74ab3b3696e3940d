/**
 * Every error that holdfast throws, in one table: code, and the HTTP status that a web framework answers with.
 */
import type { Blocker } from './backend.js'

const STATUS = {
  CONFIGURATION: 500,
  CONNECTOR: 503,
  INVALID_KEY: 400,
  INVALID_TTL: 400,
  MANAGER_CLOSED: 503,
  BACKEND: 503,
  LOCK_NOT_ACQUIRED: 409,
  LOCK_NOT_HELD: 409,
  LOCK_ALREADY_HELD: 409,
  OWNERSHIP_LOST: 409,
  LOCKED: 409,
  LOCK_RELEASED: 409,
  SESSION_EXPIRED: 409,
  NOT_LEADER: 409,
  NO_LEADER: 409,
  CONFLICT: 409,
} as const

export type ErrorCode = keyof typeof STATUS

export class HoldfastError extends Error {
  readonly code: ErrorCode
  readonly status: number

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.status = STATUS[code]
  }

  /** From the code, since a minifier changes the names of classes. */
  override get name(): string {
    const words = this.code.toLowerCase().split('_')
    return `${words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('')}Error`
  }
}

/** An option or a combination of options that cannot work. */
export class ConfigurationError extends HoldfastError {
  constructor(message: string, options?: ErrorOptions) {
    super('CONFIGURATION', message, options)
  }
}

/** There is no client, or it is not connected. */
export class ConnectorError extends HoldfastError {
  constructor(message: string, options?: ErrorOptions) {
    super('CONNECTOR', message, options)
  }
}

export class InvalidKeyError extends HoldfastError {
  constructor(message: string) {
    super('INVALID_KEY', message)
  }
}

export class InvalidTtlError extends HoldfastError {
  constructor(message: string) {
    super('INVALID_TTL', message)
  }
}

export class ManagerClosedError extends HoldfastError {
  constructor() {
    super('MANAGER_CLOSED', 'This lock manager is closed. Make a new one with connect() or createLocks().')
  }
}

/** The store failed; `cause` is what it or its client said. */
export class BackendError extends HoldfastError {
  /** Whether the same request may well succeed a moment later. */
  readonly transient: boolean

  constructor(message: string, options: ErrorOptions & { readonly transient: boolean }) {
    super('BACKEND', message, options)
    this.transient = options.transient
  }
}

export class LockNotAcquiredError extends HoldfastError {
  readonly key: string
  /** Who or what is in the way, as far as the store told. */
  readonly blocker: Blocker | undefined

  constructor(key: string, message: string, blocker?: Blocker, code: 'LOCK_NOT_ACQUIRED' | 'LOCKED' = 'LOCK_NOT_ACQUIRED') {
    super(code, message)
    this.key = key
    this.blocker = blocker
  }
}

/** This process does not hold what it wants to release, or has released it already. */
export class LockNotHeldError extends HoldfastError {
  readonly key: string

  constructor(key: string, message: string, code: 'LOCK_NOT_HELD' | 'LOCK_RELEASED' = 'LOCK_NOT_HELD') {
    super(code, message)
    this.key = key
  }
}

/** This call chain holds the key already, so waiting for it would never end. */
export class LockAlreadyHeldError extends HoldfastError {
  readonly key: string

  constructor(key: string) {
    super('LOCK_ALREADY_HELD', `This call chain already holds "${key}", so waiting for it would never end. Pass reentrant: true to enter again.`)
    this.key = key
  }
}

/** The hold ended before it was released: it expired, was revoked or was taken away. */
export class OwnershipLostError extends HoldfastError {
  readonly key: string

  constructor(key: string, why: string) {
    super('OWNERSHIP_LOST', `The lock on "${key}" is lost: ${why}. Another process may hold it now; stop the guarded work.`)
    this.key = key
  }
}

/** A mutex is locked by another session. */
export class LockedError extends LockNotAcquiredError {
  constructor(key: string, message: string, blocker?: Blocker) {
    super(key, message, blocker, 'LOCKED')
  }
}

/** A mutex was unlocked before, or never locked. */
export class LockReleasedError extends LockNotHeldError {
  constructor(key: string, message: string) {
    super(key, message, 'LOCK_RELEASED')
  }
}

/** The session has ended, and with it whatever it held or waited for. */
export class SessionExpiredError extends HoldfastError {
  constructor(message: string, options?: ErrorOptions) {
    super('SESSION_EXPIRED', message, options)
  }
}

export class NotLeaderError extends HoldfastError {
  constructor(message: string) {
    super('NOT_LEADER', message)
  }
}

export class NoLeaderError extends HoldfastError {
  constructor(message: string) {
    super('NO_LEADER', message)
  }
}

/** A transaction met a conflict in each of its tries. */
export class ConflictError extends HoldfastError {
  constructor(message: string) {
    super('CONFLICT', message)
  }
}
