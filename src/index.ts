export { connect, type ConnectOptions } from './connect.js'
export { createLocks, type LockManager, type Resource, type ResourceHolder } from './lock-manager.js'
export { Election, type Leader } from './primitives/election.js'
export type { CandidateOptions, ElectionOptions, LeaderElection, Leadership } from './primitives/leadership.js'
export type { DistributedLock } from './primitives/lock.js'
export { Mutex } from './primitives/mutex.js'
export type { Session, SessionOptions, WaitOptions } from './primitives/session.js'
export type { Committed, StmOptions } from './primitives/stm.js'
export { jsonKey, type Isolation, type JsonKey, type Transaction } from './primitives/transaction.js'
export type { JsonValue, LockOptions, ManagerOptions } from './core/options.js'
export type { Logger } from './core/logger.js'
export type { Ownership } from './core/ownership.js'
export { key, type KeyPart } from './core/key.js'
export type {
  Announcement,
  Backend,
  BackendFactory,
  Blocker,
  Board,
  Claim,
  ClaimState,
  Commit,
  CommitState,
  Comparison,
  Failed,
  Held,
  Holder,
  Leased,
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
