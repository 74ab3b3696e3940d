/** The suite itself, with a backend that offers less: it polls, serves plain locks only, and has a minimum TTL. */
import { describe, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { BackendFactory, ClaimState, Traits } from '../../src/core/backend.js'
import { ConfigurationError } from '../../src/core/errors.js'
import { conformance } from '../../src/testing/index.js'

const traits: Traits = { fair: true, wakes: 'poll', minTtlMs: 150, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: Infinity, transactions: false, ownership: false }
const memory = memoryBackend()

const withLess: BackendFactory = (scope) => {
  const backend = memory({ ...scope, wake: () => {} })
  return {
    name: 'memory with less',
    traits,
    ready: () => backend.ready(),
    async claim(claims, ifBusy) {
      const served = await backend.claim(claims.filter(({ limit }) => limit === 1), ifBusy)
      const states = served.values()
      return claims.map(({ limit }): ClaimState => limit === 1
        ? states.next().value!
        : { status: 'failed', error: new ConfigurationError('Only plain locks are served.') })
    },
    renew: (renewals) => backend.renew(renewals),
    release: (claims) => backend.release(claims),
    revoke: (resource, when) => backend.revoke(resource, when),
    inspect: (prefix) => backend.inspect(prefix),
    close: () => backend.close(),
  }
}

conformance(() => withLess, traits, { describe, it })
