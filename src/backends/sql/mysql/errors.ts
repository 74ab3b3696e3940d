/** What MySQL, MariaDB and their clients say when something is wrong, in our words. */
import type { Failure } from '../server/database.js'

/** By the server's number, or the code of a client or of the system. Each step has rolled back what it had done. */
const UNDONE = new Set<number | string>([
  // Other transactions were in the way: deadlock, lock wait timeout, a record that has changed, too many transactions.
  1213, 1205, 1020, 1637,
  // Our tables were made anew at that moment: by another definition, and what was prepared has to be so again.
  1412, 1615,
  // It cannot serve for a moment: too many connections, out of resources, a replica, a full disk, a node that is not part of its cluster.
  1040, 1203, 1226, 1041, 1135, 1290, 1792, 1836, 1021, 1114, 1047,
  // It was not reached.
  'ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH',
])
/** A statement or connection was killed, took too long, or the server shuts down; perhaps after the commit. */
const INTERRUPTED = new Set<number | string>([1317, 1969, 3024, 1053, 1927, 3169])
const UNKNOWN = new Set<number | string>([
  ...INTERRUPTED,
  // The connection, and the commit.
  1152, 1153, 1158, 1159, 1160, 1161, 1184, 2006, 2013, 4031, 1180,
])
/** mysql2, in words only. */
const POOL_ENDED = /^Pool is closed/
const POOL_BUSY = /^(No connections available|Queue limit reached)/

export function mysqlFailure(error: unknown): Failure {
  const code = codeOf(error)
  const said = error instanceof Error ? error.message : String(error)
  // Of several addresses none was reached: the error is about all of them, and says nothing itself.
  const message = said || String(code)
  return { kind: kindOf(error, message), message, cause: withoutSecrets(error, message) }
}

function kindOf(error: unknown, message: string): Failure['kind'] {
  const code = codeOf(error)
  if (UNDONE.has(code) || POOL_BUSY.test(message)) return 'undone'
  if (UNKNOWN.has(code)) return 'unknown'
  // Whatever the server has a number for is a refusal for good; anything else may be over in a moment.
  return typeof code === 'number' || POOL_ENDED.test(message) ? 'final' : 'unknown'
}

/** Somebody has dropped our tables or procedures. */
export function isMissing(error: unknown): boolean {
  return [1146, 1305, 1049].includes(codeOf(error) as number)
}

export function isForbidden(error: unknown): boolean {
  return [1044, 1142, 1143, 1227, 1370].includes(codeOf(error) as number)
}

/** A procedure that was cut short, without a chance to undo what it had begun. */
export function isInterrupted(error: unknown): boolean {
  return INTERRUPTED.has(codeOf(error))
}

/** What comes from the server has a number of its own, from 1,000 on; those of the system are negative, and have a code in letters. */
function codeOf(error: unknown): number | string {
  const { errno, code } = (error ?? {}) as { errno?: unknown; code?: unknown }
  if (typeof errno === 'number' && errno >= 1_000) return errno
  return typeof code === 'string' ? code : ''
}

/** Drivers put the statement and its values onto their errors, and a claim's id among them. */
function withoutSecrets(error: unknown, message: string): Error {
  const plain = new Error(message)
  if (error instanceof Error) {
    plain.name = error.name
    if (error.stack !== undefined) plain.stack = error.stack
  }
  const { code } = (error ?? {}) as { code?: unknown }
  return Object.assign(plain, { code: typeof code === 'string' ? code : codeOf(error) })
}
