import { describe, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import { conformance } from '../../src/testing/index.js'

const memory = memoryBackend()

conformance(() => memory, { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: Infinity, transactions: true, ownership: true }, { describe, it })
