/** A store in memory, behind a network in the test's hands, and managers on it: all of them on one clock that the test moves. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { onTestFinished } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { Traits } from '../../src/core/backend.js'
import type { EventName, HoldfastEvent, WarningEvent } from '../../src/core/events.js'
import type { ManagerOptions } from '../../src/core/options.js'
import { LockManager } from '../../src/lock-manager.js'
import { FaultyBackend } from './faulty-backend.js'
import { ManualClock } from './manual-clock.js'

const CHANNELS: readonly (EventName | 'warning')[] = [
  'waiting', 'acquired', 'refused', 'cancelled', 'released', 'transferred', 'revoked', 'release-failed', 'claim-failed',
  'renew-failed', 'lost', 'warning',
]

type AnyEvent = { [N in EventName]: { readonly name: N; readonly at: number } & HoldfastEvent<N> }[EventName]

export interface ManualWorld {
  readonly clock: ManualClock
  readonly store: FaultyBackend
  /** Another process on the same store. */
  readonly manager: (options?: ManagerOptions) => LockManager
  /** All events of this world's managers so far, in order. */
  readonly events: AnyEvent[]
  readonly warnings: WarningEvent[]
  readonly named: <N extends EventName>(name: N) => ({ readonly name: N; readonly at: number } & HoldfastEvent<N>)[]
  /** Promises that were rejected meanwhile with nobody listening. */
  readonly unheard: unknown[]
}

export function manualWorld(traits: Partial<Traits> = {}): ManualWorld {
  const clock = new ManualClock()
  const store = new FaultyBackend(memoryBackend({ now: () => clock.now() }), clock, traits)
  const owners = new Set<string>()
  const events: AnyEvent[] = []
  const warnings: WarningEvent[] = []
  const unheard: unknown[] = []

  for (const name of CHANNELS) {
    const listener = (message: unknown) => {
      const event = message as AnyEvent
      if (!owners.has(event.owner)) return
      if (name === 'warning') warnings.push(message as WarningEvent)
      else events.push({ ...event, name, at: clock.now() } as AnyEvent)
    }
    subscribe(`holdfast:${name}`, listener)
    onTestFinished(() => void unsubscribe(`holdfast:${name}`, listener))
  }
  const hear = (reason: unknown) => unheard.push(reason)
  process.on('unhandledRejection', hear)
  onTestFinished(() => void process.off('unhandledRejection', hear))

  return {
    clock,
    store,
    manager(options = {}) {
      const manager = new LockManager(store.factory, options, clock)
      owners.add(manager.owner)
      return manager
    },
    events,
    warnings,
    named: <N extends EventName>(name: N) => events.filter((event) => event.name === name) as never,
    unheard,
  }
}

/** What became of a promise so far; it does not count as unhandled. */
export function watch<T>(promise: Promise<T>): { state: 'pending' | 'resolved' | 'rejected'; value?: T; error?: any } {
  const watched: ReturnType<typeof watch<T>> = { state: 'pending' }
  promise.then(
    (value) => Object.assign(watched, { state: 'resolved', value }),
    (error: unknown) => Object.assign(watched, { state: 'rejected', error }),
  )
  return watched
}

export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = []
  for await (const item of items) found.push(item)
  return found
}
