/**
 * What can go wrong between us and etcd, in one class. No message has a password or a token: none of them ever gets
 * here.
 */

export type EtcdReason =
  | 'lease-not-found'
  | 'lease-exists'
  | 'no-space'
  | 'too-many-operations'
  | 'too-large'
  | 'duplicate-key'
  | 'permission'
  | 'unauthenticated'
  | 'compacted'
  | 'unreachable'
  | 'timeout'
  | 'other'

/** Of gRPC's codes, those that we tell apart or make ourselves. */
export const CODE = {
  cancelled: 1,
  unknown: 2,
  deadlineExceeded: 4,
  internal: 13,
  unavailable: 14,
  unauthenticated: 16,
} as const

export interface EtcdErrorOptions {
  readonly code: number
  readonly reason: EtcdReason
  readonly mayBeDone?: boolean
  readonly transient?: boolean
  readonly cause?: unknown
}

export class EtcdError extends Error {
  override readonly name = 'EtcdError'
  /** Of gRPC. */
  readonly code: number
  readonly reason: EtcdReason
  /** Whether what was asked for may have been carried out, or may still be. */
  readonly mayBeDone: boolean
  /** Whether the same request may well succeed a moment later, or elsewhere. */
  readonly transient: boolean

  constructor(message: string, { code, reason, mayBeDone = false, transient = false, cause }: EtcdErrorOptions) {
    super(message, cause === undefined ? undefined : { cause })
    this.code = code
    this.reason = reason
    this.mayBeDone = mayBeDone
    this.transient = transient
  }

  /** The same, of a request of which an earlier try may have been carried out. */
  afterUnsureTry(): EtcdError {
    if (this.mayBeDone) return this
    const { code, reason, transient, cause } = this
    return new EtcdError(this.message, { code, reason, transient, cause, mayBeDone: true })
  }
}

/** It has expired, or is of before users or rights were changed: a new one may do. */
const UNKNOWN_TOKEN = /invalid auth token|revision (in header|of auth store) is old/

const REASONS: readonly (readonly [RegExp, EtcdReason])[] = [
  [/requested lease not found/, 'lease-not-found'],
  [/lease already exists/, 'lease-exists'],
  [/database space exceeded/, 'no-space'],
  [/too many operations in txn/, 'too-many-operations'],
  [/request is too large|received message.* larger than max/, 'too-large'],
  [/duplicate key given/, 'duplicate-key'],
  [/permission denied/, 'permission'],
  [/authentication failed|user name is empty/, 'unauthenticated'],
  [UNKNOWN_TOKEN, 'unauthenticated'],
  [/revision has been compacted/, 'compacted'],
  [/timed out|deadline exceeded/, 'timeout'],
]

/**
 * A server says these before it does anything. Of all else that it calls unavailable it does not know what will come of
 * it.
 */
const NOT_BEGUN = /no leader|leader changed|not capable|unhealthy cluster|too many requests|proposal dropped|not supported for learner/

/** Of gRPC's codes, those that say that the request itself would not do: the others leave open what has come of it. */
const REFUSALS = [3, 5, 6, 7, 9, 11, 12, 16]

/** What the server said. */
export function statusError(code: number, message: string): EtcdError {
  const known = REASONS.find(([pattern]) => pattern.test(message))?.[1]
  const reason = code === CODE.unauthenticated ? 'unauthenticated' : (known ?? reasonOf(code))
  const notBegun = NOT_BEGUN.test(message)
  // What was asked for when there was space, and carried out when there was none, is there all the same: it is told as what was refused.
  const isUnsure = reason === 'timeout' || reason === 'unreachable' || reason === 'no-space' || (reason === 'other' && !REFUSALS.includes(code))
  return new EtcdError(`etcd: ${message.replace(/^etcdserver: /, '') || `code ${code}`}`, {
    code,
    reason,
    mayBeDone: isUnsure && !notBegun,
    transient: notBegun || reason === 'timeout' || reason === 'unreachable' || UNKNOWN_TOKEN.test(message),
  })
}

function reasonOf(code: number): EtcdReason {
  if (code === CODE.unavailable) return 'unreachable'
  return code === CODE.deadlineExceeded ? 'timeout' : 'other'
}

/** OpenSSL's and Node's names for certificates that do not convince, on either side. They stay so. */
const CERTIFICATE = /CERT|SELF_SIGNED|UNABLE_TO_|ERR_TLS|ERR_SSL|HOSTNAME_MISMATCH|EPROTO|ERR_OSSL/

/** Of a connection that could not be made, or ended. `mayBeDone`: of the request that was on it. */
export function connectionError(endpoint: string, cause: unknown, mayBeDone = false): EtcdError {
  if (cause instanceof EtcdError) return mayBeDone ? cause.afterUnsureTry() : cause
  const { code = '', message = '' } = (cause ?? {}) as Partial<NodeJS.ErrnoException>
  const isCertificate = CERTIFICATE.test(code)
  const what = isCertificate ? `No TLS with ${endpoint}` : `${endpoint} cannot be reached`
  const why = [code, message].filter((part) => part !== '').join(': ') || 'the connection was closed'
  return new EtcdError(`${what}: ${why}`, {
    code: CODE.unavailable,
    reason: 'unreachable',
    mayBeDone,
    transient: !isCertificate,
    cause,
  })
}

export function silentError(endpoint: string, ms: number): EtcdError {
  const options = { code: CODE.unavailable, reason: 'unreachable', transient: true } as const
  return new EtcdError(`${endpoint} has been silent for ${Math.round(ms)} ms`, options)
}

/** What came is no message of etcd. */
export function unreadableError(cause: unknown): EtcdError {
  const options = { code: CODE.internal, reason: 'other', mayBeDone: true, cause } as const
  return new EtcdError('The answer of etcd cannot be read', options)
}

export function closedError(mayBeDone: boolean): EtcdError {
  return new EtcdError('This etcd client is closed', { code: CODE.cancelled, reason: 'other', mayBeDone })
}
