/** Says in one message who is in the way, since when, for how long, how many wait, and what to do. */
import { LockedError, LockNotAcquiredError } from './errors.js'
import type { Refusal } from './waiter.js'

export function notAcquired(key: string, refusal: Refusal, waitMs: number, owner: string): LockNotAcquiredError {
  const { blocker, waitedMs } = refusal
  const waited = waitMs > 0 ? ` Waited ${seconds(waitedMs)}.` : ''
  const ours = blocker.holder?.owner === owner
  const advice =
    waitMs > 0
      ? 'Raise waitMs, or see who holds what with inspect().'
      : ours
        ? 'Release it first, or ask from inside the withLock callback that holds it, with reentrant: true.'
        : 'Pass waitMs to wait for it.'
  return new LockNotAcquiredError(key, `Lock not acquired: "${key}" is ${describe(refusal, ours)}.${waited} ${advice}`, blocker)
}

/** The same of a mutex, which is tried once. */
export function locked(key: string, refusal: Refusal, owner: string): LockedError {
  const ours = refusal.blocker.holder?.owner === owner
  const message = `Lock not acquired: "${key}" is ${describe(refusal, ours)}. lock() waits for it.`
  return new LockedError(key, message, refusal.blocker)
}

function describe({ blocker }: Refusal, ours: boolean): string {
  const { holder, waiting } = blocker
  const parts = [holder ? `held by ${ours ? `this process (${holder.owner})` : (holder.owner ?? 'another client')}` : 'free, but others are first']
  if (holder?.heldForMs !== undefined) parts.push(`for ${seconds(holder.heldForMs)}`)
  if (holder) parts.push(holder.expiresInMs === undefined ? 'without expiry' : `with ${seconds(holder.expiresInMs)} of its TTL left`)
  if (holder?.type !== undefined) parts.push(`(${holder.type})`)
  return `${parts.join(' ')}; ${waiting === 0 ? 'nobody else waits' : `${waiting} ${waiting === 1 ? 'waits' : 'wait'}`}`
}

function seconds(ms: number): string {
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(1)} s`
}
