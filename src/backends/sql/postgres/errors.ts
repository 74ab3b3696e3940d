/** What PostgreSQL, its clients and poolers say when something is wrong, in our words. */
import type { Failure } from '../server/database.js'

/** By SQLSTATE, or the code of a client or of the system. */
const UNDONE = new Set([
  // Other transactions were in the way.
  '40001', '40P01', '55P03',
  // It took longer than somebody allows for a statement, or was cancelled: before the commit, which cannot be.
  '57014',
  // It cannot serve for a moment: starting or stopping, too many connections, a standby, a full disk, a full queue of notifications.
  '57P03', '53300', '53400', '25006', '53100', '53200', '54000',
  // It was not reached.
  'ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'CONNECT_TIMEOUT',
])
/** A refusal for good; whatever has no code, or one of the connection's, may be over in a moment. */
const SQLSTATE = /^[0-9A-Z]{5}$/
const CONNECTION = /^(08|57P0|58)/
const FINAL = new Set(['CONNECTION_ENDED'])
/** Our tables were dropped or made anew at that very moment. */
const CHANGED = /^(cache lookup failed|could not open relation with OID|tuple concurrently (updated|deleted))/
const POOL_ENDED = /after calling end on the pool/
/** pg, when it could not connect in time. */
const NOT_CONNECTED = /timeout exceeded when trying to connect|Connection terminated due to connection timeout/

export function postgresFailure(error: unknown): Failure {
  const code = codeOf(error)
  const said = error instanceof Error ? error.message : String(error)
  // Of several addresses none was reached: the error is about all of them, and says nothing itself.
  const message = said || code
  return { kind: kindOf(code, message), message, cause: withoutSecrets(error, message) }
}

function kindOf(code: string, message: string): Failure['kind'] {
  if (UNDONE.has(code) || NOT_CONNECTED.test(message) || CHANGED.test(message)) return 'undone'
  if (FINAL.has(code) || POOL_ENDED.test(message)) return 'final'
  return SQLSTATE.test(code) && !CONNECTION.test(code) ? 'final' : 'unknown'
}

/** Somebody has dropped our tables or functions. */
export function isMissing(error: unknown): boolean {
  return ['42P01', '42704', '42883', '3F000'].includes(codeOf(error))
}

export function isForbidden(error: unknown): boolean {
  return codeOf(error) === '42501'
}

function codeOf(error: unknown): string {
  const { code } = (error ?? {}) as { code?: unknown }
  return typeof code === 'string' ? code : ''
}

/** Drivers put the statement and its values onto their errors, and a claim's id among them. */
function withoutSecrets(error: unknown, message: string): Error {
  const plain = new Error(message)
  if (error instanceof Error) {
    plain.name = error.name
    if (error.stack !== undefined) plain.stack = error.stack
  }
  return Object.assign(plain, { code: codeOf(error) })
}
