export { connect, type ConnectOptions } from './connect.js'
export { createLocks, type LockManager, type Resource, type ResourceHolder } from './lock-manager.js'
export type { DistributedLock } from './primitives/lock.js'
export { jsonKey, type Committed, type Isolation, type JsonKey, type StmOptions, type Transaction } from './primitives/stm.js'
export type { JsonValue, LockOptions, ManagerOptions } from './core/options.js'
export type { Logger } from './core/logger.js'
export { key, type KeyPart } from './core/key.js'
export type {
  Backend,
  BackendFactory,
  Blocker,
  Claim,
  ClaimState,
  Commit,
  CommitState,
  Comparison,
  Failed,
  Holder,
  ReleaseState,
  Renewal,
  RenewState,
  ResourceState,
  RevokeState,
  Scope,
  Snapshot,
  Traits,
  Versioned,
  VersionedStore,
  WakeUp,
} from './core/backend.js'
export type { Clock, Timer } from './core/clock.js'
export type { EventDetails, EventName, EventSource, HoldfastEvent, WarningEvent } from './core/events.js'
export {
  BackendError,
  ConfigurationError,
  ConflictError,
  ConnectorError,
  HoldfastError,
  InvalidKeyError,
  InvalidTtlError,
  LockAlreadyHeldError,
  LockedError,
  LockNotAcquiredError,
  LockNotHeldError,
  LockReleasedError,
  ManagerClosedError,
  NoLeaderError,
  NotLeaderError,
  OwnershipLostError,
  SessionExpiredError,
  type ErrorCode,
} from './core/errors.js'
