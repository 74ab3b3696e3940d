/** What is written about a claim, as the value of its key. */

export interface ClaimValue {
  readonly v: 1
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

export function writeValue(value: ClaimValue): string {
  return JSON.stringify(value)
}

/** Most of what a process has to say of its claims differs in this only; so the rest is not put into words each time. */
type Common = Omit<ClaimValue, 'id' | 'at'>
let common: Common | undefined
let beginning = ''

/** Of a claim that this process has made. */
export function writeNewValue(value: ClaimValue): string {
  const { id, at } = value
  if (!common || !isAlike(value, common)) {
    const { v, owner, ttl, take, limit, type, metadata, revoked } = value
    common = { v, owner, ttl, take, limit, type, metadata, ...(revoked && { revoked }) }
    beginning = JSON.stringify(common).slice(0, -1)
  }
  return `${beginning},"id":${JSON.stringify(id)},"at":${at}}`
}

function isAlike(a: Common, b: Common): boolean {
  return a.owner === b.owner && a.ttl === b.ttl && a.take === b.take && a.limit === b.limit && a.type === b.type && a.metadata === b.metadata
    && a.revoked === b.revoked
}

/** Undefined if it is none of ours: then it is somebody's who takes everything, such as `etcdctl lock`. */
export function readValue(bytes: Buffer): ClaimValue | undefined {
  if (bytes[0] !== 0x7b) return undefined
  try {
    const value = JSON.parse(bytes.toString()) as Partial<ClaimValue>
    return value.v === 1 && typeof value.id === 'string' && isCount(value.take) && isCount(value.limit) ? (value as ClaimValue) : undefined
  } catch {
    return undefined
  }
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) > 0
}
