/** What the scripts reply, and what is in the keys: from Redis' texts to the core's words. The headers in `lua/` say the rest. */
import type { Claim, Failed, Holder } from '../../core/backend.js'
import { redisItemError } from './errors.js'

/** What a script says of one item: a list that begins with a code, or in the most common cases just a text or a number. */
export type Item = readonly unknown[] | string | number

/** A client may be set to give numbers as strings. */
export function codeOf(item: Item): number {
  return Number(typeof item === 'object' ? item[0] : item)
}

/** By its length too: `inspect.lua` begins with what is in the lock, and an outsider may have put anything there. */
export function failure(item: Item): Failed | undefined {
  return typeof item === 'object' && item.length === 2 && codeOf(item) === -1 ? { status: 'failed', error: redisItemError(item[1] as string) } : undefined
}

/** Type and metadata in one text; empty if there are none. */
export function aboutOf({ type, metadata }: Claim): string {
  return type === undefined && metadata === undefined ? '' : JSON.stringify([type ?? null, metadata ?? null])
}

function parseAbout(about: string): { type?: string; metadata?: string } {
  if (about === '') return {}
  const [type, metadata] = JSON.parse(about) as [string | null, string | null]
  return { ...(type === null ? undefined : { type }), ...(metadata === null ? undefined : { metadata }) }
}

/** The value of a lock: ours, or whatever an outsider has put there. */
export function parseHolder(value: string, pttl: number, about: string, serverMs: number): Holder | undefined {
  if (pttl === -2) return undefined
  const match = /^~?[0-9a-f]{32}\.(\d{1,20})\.(.+)$/s.exec(value)
  const expiresInMs = pttl < 0 ? undefined : pttl
  if (!match) return { owner: undefined, epoch: undefined, heldForMs: undefined, expiresInMs }
  const epoch = BigInt(match[1]!)
  // An epoch is the grant's time in microseconds, unless it had to run ahead of the clock.
  const heldForMs = Math.max(0, serverMs - Number(epoch / 1000n))
  return { owner: match[2], epoch, heldForMs, expiresInMs, ...parseAbout(about) }
}

export function epochOf(value: string): bigint | undefined {
  return parseHolder(value, 0, '', 0)?.epoch
}

export function parseWaiter(member: string): { owner: string; take: number } {
  const [, take, owner] = /^[0-9a-f]+\|\d+\|(\d+)\|([^\n]*)\n/.exec(member)!
  return { owner: owner!, take: Number(take) }
}
