/**
 * Until when a holder may believe that it holds: before the store could think otherwise, whatever the network does.
 */
import { DRIFT } from './clock.js'

/** Room for timers that fire late and for work that has to notice the loss. */
export function marginMs(ttlMs: number): number {
  return Math.min(250, Math.max(5, ttlMs * 0.02))
}

/** `since`: a moment not after the store began to count the TTL, such as the one just before the request was sent. */
export function deadlineOf(since: number, ttlMs: number): number {
  return since + ttlMs * (1 - DRIFT) - marginMs(ttlMs)
}

/** A grant with less of its TTL left than this is not worth handing to a caller; it is asked for again first. */
export function isTooShort(leftMs: number, ttlMs: number): boolean {
  return leftMs < ttlMs * 0.2
}
