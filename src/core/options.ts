/** What can be asked for, and its checks: bad input is refused before any request. */
import { deadlineOf } from './deadline.js'
import { ConfigurationError, InvalidTtlError } from './errors.js'
import type { Logger } from './logger.js'

export interface ManagerOptions {
  /** Namespace of everything on the store. Default: `holdfast`. */
  readonly prefix?: string
  /** How long a lock lives without renewal. Default: 10,000. */
  readonly ttlMs?: number
  /** How long to wait for a lock. Default: without limit for `lock` and `withLock`, 0 for `tryLock`. */
  readonly waitMs?: number
  /** How often to look where the store gives no notice. Default: 50. */
  readonly retryMs?: number
  /** Who holds a lock, as others see it. Default: host name and process id. A unique suffix is added. */
  readonly owner?: string
  /** Gets a line for each lock acquired, released or lost, and for renewals that fail. */
  readonly logger?: Logger
}

export type JsonValue = null | boolean | number | string | readonly JsonValue[] | { readonly [name: string]: JsonValue }

export interface LockOptions {
  /** How long the lock lives without renewal: if this process dies, others get it after that. */
  readonly ttlMs?: number
  /** How long to wait for it; 0 is one try. */
  readonly waitMs?: number
  /** How often to look where the store gives no notice. */
  readonly retryMs?: number
  /** Whether the lock is renewed for as long as it is held. Default: true. */
  readonly autoRenew?: boolean
  /** Default: a third of the TTL. */
  readonly renewEveryMs?: number
  /** The lock is given up after this long, renewed or not. */
  readonly maxHoldMs?: number
  /** Whether the callback chain that holds the key may enter again. Default: false. */
  readonly reentrant?: boolean
  /** `strict`: first come, first served over all processes. `bounded`: a process may serve its own waiters in bounded turns. */
  readonly fairness?: 'bounded' | 'strict'
  /** Cancels the wait. In callback forms it also aborts the lock's signal. */
  readonly signal?: AbortSignal
  /** What kind of work this is, for those who look. */
  readonly type?: string
  /** Anything, for those who look; at most 4,096 bytes of JSON. */
  readonly metadata?: JsonValue
}

/** Options of one call with every default filled in. */
export interface ResolvedLockOptions {
  readonly ttlMs: number
  readonly waitMs: number
  readonly retryMs: number
  readonly autoRenew: boolean
  readonly renewEveryMs: number | undefined
  readonly maxHoldMs: number | undefined
  readonly reentrant: boolean
  readonly fairness: 'bounded' | 'strict'
  readonly signal: AbortSignal | undefined
  readonly type: string | undefined
  readonly metadata: string | undefined
}

const MIN_TTL_MS = 100
const MAX_MS = 2 ** 31 - 1
const MAX_METADATA_BYTES = 4_096
const MAX_TYPE_BYTES = 128
const MAX_NAME_BYTES = 128

const LOCK_OPTIONS: readonly (keyof LockOptions)[] = [
  'ttlMs',
  'waitMs',
  'retryMs',
  'autoRenew',
  'renewEveryMs',
  'maxHoldMs',
  'reentrant',
  'fairness',
  'signal',
  'type',
  'metadata',
]
const MANAGER_OPTIONS: readonly (keyof ManagerOptions)[] = ['prefix', 'ttlMs', 'waitMs', 'retryMs', 'owner', 'logger']

/** A misspelt option would silently be the default. */
export function checkNames(kind: string, options: object, known: readonly string[]): void {
  if (typeof options !== 'object' || options === null) throw new ConfigurationError(`${kind} options are an object, not ${String(options)}.`)
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) throw new ConfigurationError(`There is no ${kind} option "${name}". There are: ${known.join(', ')}.`)
  }
}

export function checkConnectOptions(options: object): void {
  checkNames('connect', options, [...MANAGER_OPTIONS, 'connectTimeoutMs'])
}

/** What a manager's locks ask for where a call does not say otherwise. */
export function resolveDefaults(options: ManagerOptions): ResolvedLockOptions {
  checkNames('manager', options, MANAGER_OPTIONS)
  const { ttlMs = 10_000, waitMs = Infinity, retryMs = 50, logger } = options
  if (logger !== undefined) checkLogger(logger)
  return resolveLockOptions({}, { ttlMs, waitMs, retryMs })
}

type Defaults = Pick<ResolvedLockOptions, 'ttlMs' | 'waitMs' | 'retryMs'>

export function resolveLockOptions(options: LockOptions, defaults: Defaults): ResolvedLockOptions {
  checkNames('lock', options, LOCK_OPTIONS)
  const { ttlMs = defaults.ttlMs, waitMs = defaults.waitMs, retryMs = defaults.retryMs } = options
  const { autoRenew = true, reentrant = false, fairness = 'bounded', renewEveryMs, maxHoldMs, signal, type, metadata } = options
  checkTtl(ttlMs)
  checkWait(waitMs)
  checkSpan('retryMs', retryMs)
  checkFlag('autoRenew', autoRenew)
  checkFlag('reentrant', reentrant)
  if (renewEveryMs !== undefined) checkSpan('renewEveryMs', renewEveryMs)
  if (renewEveryMs !== undefined && renewEveryMs >= deadlineOf(0, ttlMs)) {
    const most = Math.floor(deadlineOf(0, ttlMs))
    throw new ConfigurationError(`renewEveryMs (${renewEveryMs}) must be less than ${most} with ttlMs ${ttlMs}, or the lock ends before it is renewed.`)
  }
  if (maxHoldMs !== undefined) checkSpan('maxHoldMs', maxHoldMs)
  if (fairness !== 'bounded' && fairness !== 'strict') {
    throw new ConfigurationError(`fairness is 'bounded' or 'strict', not ${JSON.stringify(fairness)}.`)
  }
  if (signal !== undefined) checkSignal(signal)
  if (type !== undefined && (typeof type !== 'string' || Buffer.byteLength(type) > MAX_TYPE_BYTES)) {
    throw new ConfigurationError(`type is a string of at most ${MAX_TYPE_BYTES} bytes.`)
  }
  return {
    ttlMs,
    waitMs,
    retryMs,
    autoRenew,
    renewEveryMs,
    maxHoldMs,
    reentrant,
    fairness,
    signal,
    type,
    metadata: metadata === undefined ? undefined : encodeMetadata(metadata),
  }
}

export function checkTtl(ttlMs: unknown): asserts ttlMs is number {
  if (typeof ttlMs !== 'number' || !Number.isSafeInteger(ttlMs)) {
    throw new InvalidTtlError(`ttlMs is a whole number of milliseconds, not ${show(ttlMs)}.`)
  }
  if (ttlMs < MIN_TTL_MS) throw new InvalidTtlError(`ttlMs must be at least ${MIN_TTL_MS}, not ${ttlMs}: these are milliseconds, and a shorter hold ends before anyone could work.`)
  if (ttlMs > MAX_MS) throw new InvalidTtlError(`ttlMs must be at most ${MAX_MS} (24 days), not ${ttlMs}.`)
}

function checkLogger(logger: unknown): void {
  const can = (name: string) => typeof (logger as Record<string, unknown>)[name] === 'function'
  if (typeof logger === 'object' && logger !== null && can('info') && can('warn') && can('error')) return
  throw new ConfigurationError('logger is an object with info, warn and error, such as console or a pino logger.')
}

/** The terms of a lock that come from outside, in a transfer. */
export function checkTerms(terms: { ttlMs: unknown; autoRenew: unknown; renewEveryMs?: unknown; maxHoldMs?: unknown }): void {
  checkTtl(terms.ttlMs)
  checkFlag('autoRenew', terms.autoRenew)
  if (terms.renewEveryMs !== undefined) checkSpan('renewEveryMs', terms.renewEveryMs)
  if (terms.maxHoldMs !== undefined) checkSpan('maxHoldMs', terms.maxHoldMs)
}

/** Of what becomes part of names on the store. */
export function checkName(kind: 'prefix' | 'owner', name: unknown): asserts name is string {
  if (typeof name !== 'string' || !/^[^\p{Cc}\p{Surrogate}]+$/u.test(name) || Buffer.byteLength(name) > MAX_NAME_BYTES) {
    throw new ConfigurationError(`${kind} is a string of 1 to ${MAX_NAME_BYTES} bytes without control characters.`)
  }
}

function checkWait(waitMs: unknown): void {
  if (waitMs === Infinity) return
  if (typeof waitMs !== 'number' || !(waitMs >= 0 && waitMs <= MAX_MS)) {
    throw new ConfigurationError(`waitMs is a number of milliseconds from 0 to ${MAX_MS}, or Infinity, not ${show(waitMs)}.`)
  }
}

export function checkSpan(name: string, ms: unknown): void {
  if (typeof ms !== 'number' || !(ms >= 1 && ms <= MAX_MS)) {
    throw new ConfigurationError(`${name} is a number of milliseconds from 1 to ${MAX_MS}, not ${show(ms)}.`)
  }
}

export function checkSignal(signal: unknown): void {
  if (!(signal instanceof AbortSignal)) throw new ConfigurationError('signal must be an AbortSignal.')
}

function checkFlag(name: string, flag: unknown): void {
  if (typeof flag !== 'boolean') throw new ConfigurationError(`${name} is true or false, not ${show(flag)}.`)
}

function show(value: unknown): string {
  return typeof value === 'string' ? `the string "${value}"` : String(value)
}

function encodeMetadata(metadata: JsonValue): string {
  let json: string | undefined
  try {
    json = JSON.stringify(metadata)
  } catch (error) {
    throw new ConfigurationError('metadata cannot be written as JSON.', { cause: error })
  }
  if (json === undefined) throw new ConfigurationError(`metadata must be a JSON value, not a ${typeof metadata}.`)
  if (Buffer.byteLength(json) > MAX_METADATA_BYTES) {
    throw new ConfigurationError(`metadata has at most ${MAX_METADATA_BYTES} bytes of JSON; this has ${Buffer.byteLength(json)}.`)
  }
  return json
}
