/**
 * What is written about a claim, as the value of its key: `[1,"<owner>",<ttl>,"<id>",<at>]`, and at the end an object with what few claims
 * have. It is short, since the server keeps it in its log, its file and its memory.
 */

export interface ClaimValue {
  readonly id: string
  readonly owner: string
  readonly ttl: number
  /** When it was asked for, by the wall clock of who asked: to be shown, and nothing else. */
  readonly at: number
  readonly take: number
  readonly limit: number
  readonly type?: string | undefined
  /** JSON text. */
  readonly metadata?: string | undefined
  readonly revoked?: true
}

const VERSION = 1

/** Most that a process writes begins alike; so that is not put into words each time. */
let begun: Pick<ClaimValue, 'owner' | 'ttl'> | undefined
let beginning = ''

export function writeValue({ id, owner, ttl, at, take, limit, type, metadata, revoked }: ClaimValue): string {
  if (begun?.owner !== owner || begun.ttl !== ttl) {
    begun = { owner, ttl }
    beginning = `[${VERSION},${JSON.stringify(owner)},${ttl},`
  }
  const most = `${beginning}${JSON.stringify(id)},${at}`
  if (limit === 1 && type === undefined && metadata === undefined && !revoked) return `${most}]`
  return `${most},${JSON.stringify({ take, limit, type, metadata, revoked })}]`
}

/** Undefined if it is none of ours: then it is somebody's who takes everything, such as `etcdctl lock`. */
export function readValue(bytes: Buffer): ClaimValue | undefined {
  if (bytes[0] !== 0x5b) return undefined
  try {
    const [version, owner, ttl, id, at, { take = 1, limit = 1, type, metadata, revoked } = {} as Partial<ClaimValue>] = JSON.parse(bytes.toString())
    const isOurs = version === VERSION && typeof owner === 'string' && typeof id === 'string' && Number.isSafeInteger(at) && [ttl, take, limit].every(isCount)
    if (!isOurs) return undefined
    return { id, owner, ttl, at, take, limit, type, metadata, ...(revoked && { revoked }) }
  } catch {
    return undefined
  }
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) > 0
}
