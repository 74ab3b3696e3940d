/**
 * Judges over the holds of a whole test, merged from all processes.
 *
 * A checker finds nothing in an empty log, so a test has to check as well that it has as many holds as it should.
 */

/** Times are process.hrtime.bigint(), in nanoseconds: one clock for all processes of a machine. */
export interface Hold {
  key: string
  process: string | number
  waiter: string | number
  /** Just before `lock` was called. */
  askedAt: bigint
  /** When it had resolved. */
  grantedAt: bigint
  /** Just before `release` was called, or when the loss was found out. None: it never ended, as far as is known. */
  releasedAt: bigint | undefined
  fence: bigint
}

export interface Overlap {
  readonly key: string
  readonly first: Hold
  readonly second: Hold
  /** How long both held. None: for ever. */
  readonly ns: bigint | undefined
}

/** Two holds of one key at the same time. */
export function overlaps(holds: readonly Hold[]): Overlap[] {
  const found: Overlap[] = []
  for (const [key, log] of byKey(holds)) {
    let open: Hold[] = []
    for (const second of log) {
      open = open.filter((first) => first.releasedAt === undefined || first.releasedAt > second.grantedAt)
      for (const first of open) found.push({ key, first, second, ns: sharedNs(first, second) })
      open.push(second)
    }
  }
  return found
}

function sharedNs(first: Hold, second: Hold): bigint | undefined {
  const ends = [first.releasedAt, second.releasedAt].filter((end) => end !== undefined)
  const end = ends.reduce<bigint | undefined>((least, at) => (least === undefined || at < least ? at : least), undefined)
  return end === undefined ? undefined : end - second.grantedAt
}

export interface Inversion {
  readonly key: string
  /** `second` should have come after `first`, and did not. */
  readonly first: Hold
  readonly second: Hold
}

export interface Inversions {
  /** A hold granted later has a fence that is not greater. */
  readonly fence: Inversion[]
  /** A hold asked for earlier was granted later. At most one for each hold that was overtaken by others. */
  readonly fifo: Inversion[]
}

/**
 * Holds out of order. Asking takes time to reach the queue, so two that asked less than `toleranceMs` apart may be served
 * in any order.
 */
export function inversions(holds: readonly Hold[], { toleranceMs }: { readonly toleranceMs: number }): Inversions {
  const found: Inversions = { fence: [], fifo: [] }
  const toleranceNs = BigInt(Math.round(toleranceMs * 1e6))
  for (const [key, log] of byKey(holds)) {
    let highest: Hold | undefined
    // Of those granted so far, the one that asked last: if anybody overtook the next one unduly, then it did.
    let latest: Hold | undefined
    for (const hold of log) {
      if (highest && hold.fence <= highest.fence) found.fence.push({ key, first: hold, second: highest })
      else highest = hold
      if (latest && hold.askedAt + toleranceNs < latest.askedAt) found.fifo.push({ key, first: hold, second: latest })
      if (!latest || hold.askedAt > latest.askedAt) latest = hold
    }
  }
  return found
}

/** Holds whose fence another hold of that key had before them. */
export function repeats(holds: readonly Hold[]): Hold[] {
  return [...byKey(holds).values()].flatMap((log) => {
    const seen = new Set<bigint>()
    return log.filter(({ fence }) => seen.has(fence) || !seen.add(fence))
  })
}

/**
 * Jain's fairness index: 1 if all got the same, 1/n if one of n got everything. NaN if nobody got anything, so that
 * no comparison passes.
 */
export function jain(counts: readonly number[]): number {
  const sum = counts.reduce((total, count) => total + count, 0)
  const squares = counts.reduce((total, count) => total + count * count, 0)
  return (sum * sum) / (counts.length * squares)
}

/** In the order of grants. */
function byKey(holds: readonly Hold[]): Map<string, Hold[]> {
  const logs = new Map<string, Hold[]>()
  for (const hold of [...holds].sort((a, b) => compare(a.grantedAt, b.grantedAt))) {
    const log = logs.get(hold.key)
    if (log) log.push(hold)
    else logs.set(hold.key, [hold])
  }
  return logs
}

function compare(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0
}
