/**
 * What a session's claims say of themselves on the store: a note, in their metadata. By it another process that knows the lease finds
 * them, and takes them up.
 */
import { createHash, randomBytes } from 'node:crypto'
import type { Holder, Leased, ResourceState } from '../core/backend.js'
import { OwnClaim } from '../core/batcher.js'
import type { Claims } from '../core/claims.js'
import { OwnershipLostError } from '../core/errors.js'
import type { Hold } from '../core/hold.js'
import { tokenOf } from '../core/token.js'
import type { ClaimRequest } from '../core/waiter.js'
import { ONE_OF_ONE } from './lock.js'

interface Note {
  readonly lease: string
  readonly salt: string
  readonly ttlMs: number
  readonly value?: string
}

/** What a session, or what it has of a resource, asks for. */
export function requestOf(
  owner: string,
  lease: Leased,
  { ttlMs, retryMs, type, waitMs, signal }: { ttlMs: number; retryMs: number; type: string; waitMs: number; signal: AbortSignal | undefined },
): ClaimRequest {
  const salt = randomBytes(8).toString('hex')
  const { id, value } = lease
  const note: Note = { lease: id.toString(16), salt, ttlMs, ...(value !== undefined && { value }) }
  return {
    ttlMs, waitMs, retryMs, autoRenew: true, renewEveryMs: undefined, maxHoldMs: undefined, fairness: 'strict', signal, type,
    metadata: JSON.stringify(note), lease, claimId: claimIdOf(note, owner),
  }
}

/** Known to everybody who knows the note and who has it. Another each time it is claimed: what is late must not touch a later one. */
function claimIdOf({ lease, salt }: Note, owner: string): string {
  return createHash('sha256').update(`${salt}\n${lease}\n${owner}`).digest('hex').slice(0, 32)
}

/** Takes up what a session of another process, or a former one of this, holds. */
export async function takeUp(claims: Claims, resource: string, lease: Leased): Promise<Hold | undefined> {
  const found = await holderOf(claims, resource, lease.id)
  if (!found) return undefined
  const { holder, note } = found
  const { type, metadata } = holder
  const owner = holder.owner!
  const epoch = holder.epoch!
  const id = claimIdOf(note, owner)
  const claim = new OwnClaim({ id: claimIdOf(note, claims.owner), resource, ...ONE_OF_ONE, ttlMs: note.ttlMs, type, metadata, lease })
  const given = owner === claims.owner ? undefined : { id, token: tokenOf(id, epoch, owner) }
  try {
    return await claims.adopt(claim, given, epoch, 0, { autoRenew: true, renewEveryMs: undefined, maxHoldMs: undefined })
  } catch (error) {
    if (error instanceof OwnershipLostError) return undefined
    throw error
  }
}

async function holderOf(claims: Claims, resource: string, lease: bigint): Promise<{ holder: Holder; note: Note } | undefined> {
  const [holder] = (await stateOf(claims, resource))?.holders ?? []
  const note = noteOf(holder)
  return holder && note && BigInt(`0x${note.lease}`) === lease ? { holder, note } : undefined
}

/** What is known of a resource now. */
export async function stateOf(claims: Claims, resource: string): Promise<ResourceState | undefined> {
  for await (const state of claims.inspect(resource)) if (state.key === resource) return state
  return undefined
}

/** What a session's claim says of itself; undefined for one of another kind. */
export function noteOf(holder: Holder | undefined): Note | undefined {
  if (holder?.metadata === undefined || holder.owner === undefined || holder.epoch === undefined) return undefined
  try {
    const note = JSON.parse(holder.metadata) as Partial<Note> | null
    const { lease, salt, ttlMs, value } = note ?? {}
    const isNote = typeof lease === 'string' && /^[0-9a-f]{1,16}$/.test(lease) && typeof salt === 'string' && Number.isSafeInteger(ttlMs)
    return isNote && (value === undefined || typeof value === 'string') ? (note as Note) : undefined
  } catch {
    return undefined
  }
}
