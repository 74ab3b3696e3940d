/**
 * Everything that happens is one event on `node:diagnostics_channel`, on the channel `holdfast:<name>`. Logs, metrics and
 * traces only listen. No event carries a token.
 */
import { channel } from 'node:diagnostics_channel'
import type { Blocker } from './backend.js'
import type { HoldfastError } from './errors.js'

/** What each event says besides who (`owner`), where (`prefix`, `backend`) and on what (`key`). */
export interface EventDetails {
  /** A claim was queued behind others. */
  waiting: { readonly blocker: Blocker }
  acquired: { readonly fence: bigint; readonly ttlMs: number; readonly waitedMs: number }
  /** A claim was not granted within its `waitMs`. */
  refused: { readonly blocker: Blocker; readonly waitedMs: number }
  /** The caller's signal ended the wait, or the manager was closed. */
  cancelled: { readonly waitedMs: number; readonly reason: unknown }
  released: { readonly fence: bigint; readonly heldMs: number }
  /** It was given away, for another process to adopt. */
  transferred: { readonly fence: bigint; readonly heldMs: number }
  /** This process has taken a lock from whoever held it. */
  revoked: { readonly when: 'told' | 'now' }
  /** A release could not be brought to the store; it is tried again, or the TTL ends the claim. */
  'release-failed': { readonly error: HoldfastError }
  /** A claim could not be brought to the store; one that waits is tried again. */
  'claim-failed': { readonly error: HoldfastError }
  /** A renewal failed; it is tried again for as long as the hold lasts. */
  'renew-failed': { readonly fence: bigint; readonly remainingMs: number; readonly error: HoldfastError }
  lost: { readonly fence: bigint; readonly heldMs: number; readonly error: HoldfastError }
}

export type EventName = keyof EventDetails

export interface EventSource {
  readonly owner: string
  readonly prefix: string
  readonly backend: string
}

export type HoldfastEvent<N extends EventName = EventName> = EventSource & { readonly key: string } & EventDetails[N]

/** Warnings are about the store, not about a key. */
export type WarningEvent = EventSource & { readonly warning: string }

const channels = {
  waiting: channel('holdfast:waiting'),
  acquired: channel('holdfast:acquired'),
  refused: channel('holdfast:refused'),
  cancelled: channel('holdfast:cancelled'),
  released: channel('holdfast:released'),
  transferred: channel('holdfast:transferred'),
  revoked: channel('holdfast:revoked'),
  'release-failed': channel('holdfast:release-failed'),
  'claim-failed': channel('holdfast:claim-failed'),
  'renew-failed': channel('holdfast:renew-failed'),
  lost: channel('holdfast:lost'),
} satisfies Record<EventName, unknown>

const warnings = channel('holdfast:warning')

/** The events of one manager. */
export class Events {
  readonly source: EventSource

  constructor(source: EventSource) {
    this.source = source
  }

  /** Whether anybody listens: what is said on hot paths is made up only then. */
  hears(name: EventName): boolean {
    return channels[name].hasSubscribers
  }

  emit<N extends EventName>(name: N, key: string, detail: EventDetails[N]): void {
    const target = channels[name]
    if (target.hasSubscribers) target.publish({ ...this.source, key, ...detail })
  }

  warn(warning: string): void {
    if (warnings.hasSubscribers) warnings.publish({ ...this.source, warning })
  }
}
