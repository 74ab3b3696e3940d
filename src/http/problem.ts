/** What a client is told when it cannot have a lock: a status, and a problem as RFC 9457 has it. */
import { ConfigurationError, HoldfastError, LockNotAcquiredError, type ErrorCode } from '../core/errors.js'
import { checkNames } from '../core/options.js'

export interface ProblemOptions {
  /** Of a lock that another holds. Default: 409, Conflict; 423, Locked, is the other one that fits. */
  readonly status?: number
  /** A URI that names this problem. Default: `urn:holdfast:lock-not-acquired`. */
  readonly type?: string
  /** Whether clients are told who holds it. Default: false, since that names a machine. */
  readonly showOwner?: boolean
}

/** The body. */
export interface Problem {
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail?: string
  readonly key?: string
  /** Since when it is held, as far as the store tells. */
  readonly heldForMs?: number
  /** How many wait for it. */
  readonly waiting?: number
  readonly owner?: string
}

export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

const PROBLEM_OPTIONS: readonly (keyof ProblemOptions)[] = ['status', 'type', 'showOwner']

export function checkProblemOptions(options: ProblemOptions): void {
  checkNames('problem', options, PROBLEM_OPTIONS)
  const { status = 409, type = '', showOwner = false } = options
  if (!Number.isInteger(status) || status < 400 || status > 599) throw new ConfigurationError(`status is one of an error, such as 409 or 423, not ${String(status)}.`)
  if (typeof type !== 'string') throw new ConfigurationError('type is a URI.')
  if (typeof showOwner !== 'boolean') throw new ConfigurationError('showOwner is true or false.')
}

/** Mistakes of whoever wrote the server: no client can do anything about them. */
const MISTAKES: readonly ErrorCode[] = ['INVALID_TTL', 'LOCK_ALREADY_HELD', 'LOCK_NOT_HELD', 'LOCK_RELEASED']

/** Undefined if it is none of ours, or a failure of the server's, which has to be seen where failures are seen. */
export function answerTo(error: unknown, options: ProblemOptions = {}): Answer | undefined {
  if (!(error instanceof HoldfastError) || error.status >= 500 || MISTAKES.includes(error.code)) return undefined
  const [problem, retryAfterS] = error instanceof LockNotAcquiredError ? refusal(error, options) : [other(error), undefined]
  return {
    status: problem.status,
    headers: { 'content-type': 'application/problem+json', ...(retryAfterS !== undefined && { 'retry-after': String(retryAfterS) }) },
    body: JSON.stringify(problem),
  }
}

/** The error's own message names the owner, and is for those who wrote the server. */
function refusal(error: LockNotAcquiredError, { status = 409, type = typeOf(error), showOwner = false }: ProblemOptions): [Problem, number | undefined] {
  const { holder, waiting } = error.blocker ?? { holder: undefined, waiting: undefined }
  // Only waiters are in the way, and it will be the next one's in a moment.
  const freeInMs = holder ? holder.expiresInMs : 0
  const retryAfterS = freeInMs === undefined ? undefined : Math.max(1, Math.ceil(freeInMs / 1_000))
  const again = retryAfterS === undefined ? '' : ` Try again in ${retryAfterS} s.`
  return [
    {
      type,
      title: titleOf(error),
      status,
      detail: `"${error.key}" is in use.${again}`,
      key: error.key,
      ...(holder?.heldForMs !== undefined && { heldForMs: Math.round(holder.heldForMs) }),
      ...(waiting !== undefined && { waiting }),
      ...(showOwner && holder?.owner !== undefined && { owner: holder.owner }),
    },
    retryAfterS,
  ]
}

function other(error: HoldfastError & { readonly key?: string }): Problem {
  return { type: typeOf(error), title: titleOf(error), status: error.status, ...(error.key !== undefined && { key: error.key }) }
}

function typeOf({ code }: HoldfastError): string {
  return `urn:holdfast:${wordsOf(code).replaceAll(' ', '-')}`
}

function titleOf({ code }: HoldfastError): string {
  const words = wordsOf(code)
  return words[0]!.toUpperCase() + words.slice(1)
}

function wordsOf(code: string): string {
  return code.toLowerCase().replaceAll('_', ' ')
}
