/**
 * The conformance suite: what every backend has to do, at the level of the contract in core/backend.ts; and what sessions, mutexes
 * and elections make of it, at the level of managers.
 *
 * Nothing is skipped: what a backend does not offer is stated by its traits, and the suite then checks that it says so.
 * Times are real and short. A test waits for something that must happen, and does not hope to be in time.
 */
import type { Traits } from '../core/backend.js'
import { campaigning } from './cases/campaigning.js'
import { claiming } from './cases/claiming.js'
import { closing } from './cases/closing.js'
import { counting } from './cases/counting.js'
import { epochs } from './cases/epochs.js'
import { expiring } from './cases/expiring.js'
import { handingOver } from './cases/handing-over.js'
import { inspecting } from './cases/inspecting.js'
import { keys } from './cases/keys.js'
import { leaderships } from './cases/leaderships.js'
import { lists } from './cases/lists.js'
import { mutexes } from './cases/mutexes.js'
import { observing } from './cases/observing.js'
import { owning } from './cases/owning.js'
import { releasing } from './cases/releasing.js'
import { renewing } from './cases/renewing.js'
import { revoking } from './cases/revoking.js'
import { sequences } from './cases/sequences.js'
import { sessions } from './cases/sessions.js'
import { storing } from './cases/storing.js'
import { transactions } from './cases/transactions.js'
import { openWorld, type Open, type World } from './harness.js'

/** The part of a test runner that is used: vitest's, node:test's and mocha's `describe` and `it` all fit. */
export interface Runner {
  readonly describe: (name: string, body: () => void) => unknown
  readonly it: (name: string, body: () => Promise<void>) => unknown
}

export interface Suite {
  readonly traits: Traits
  readonly theme: (name: string, body: () => void) => void
  /** One test in a world of its own, which is closed after it. */
  readonly test: (name: string, body: (world: World) => Promise<void>) => void
}

const CONTRACT = [
  claiming, handingOver, releasing, renewing, expiring, closing, lists, epochs, revoking, inspecting, keys, counting, sequences,
  storing, owning, transactions,
]
/** What stands on the contract, and is no other through another client of the same store. */
const SESSIONS = [sessions, mutexes, campaigning, observing, leaderships]

/**
 * @param open gives, each time it is called, the factory of another process: its own connection to the same store
 * @param traits what the backend is expected to declare
 */
export function conformance(open: Open, traits: Traits, { describe, it }: Runner, { withSessions = true } = {}): void {
  const suite: Suite = {
    traits,
    theme: (name, body) => void describe(name, body),
    test: (name, body) => void it(name, async () => {
      const world = openWorld(open, traits)
      try {
        await body(world)
      } finally {
        await world.close()
      }
      world.checkRejections()
    }),
  }
  describe('the backend contract', () => {
    for (const theme of [...CONTRACT, ...(withSessions ? SESSIONS : [])]) theme(suite)
  })
}
