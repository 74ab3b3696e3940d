/** The tests that judge a mutant of src/core: those that need no server, ordered so that a mutant dies early. */
import { basename } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'
import { BaseSequencer } from 'vitest/node'
// Stryker's worker reads this, and would outlive a Stryker that was stopped.
import '../scripts/lib/end-with-vitest.mjs'

/** What takes all the ways through the core comes first, and what tries many schedules comes last. */
const ORDER = ['lock-manager-release', 'loss', 'lock-manager', 'hand-over', '…', 'keeper', 'interleavings']

class QuickFirst extends BaseSequencer {
  async sort(files) {
    return files.toSorted((a, b) => rank(a) - rank(b) || (a.moduleId < b.moduleId ? -1 : 1))
  }
}

function rank({ moduleId }) {
  const at = ORDER.indexOf(basename(moduleId, '.test.ts'))
  return at < 0 ? ORDER.indexOf('…') : at
}

export default defineConfig({
  test: {
    include: ['test/unit/**/*.test.ts'],
    // About the backends, drivers, the nemesis' judges, and what other tests stand on: they reach nothing of src/core but its
    // clock and errors. So do the contract tests, which ask a backend directly.
    exclude: ['memory-*', 'redis-*', 'sqlite*', 'fault-*', 'linearizability', 'tcp-proxy', 'check'].map((name) => `test/unit/${name}.test.ts`),
    setupFiles: [fileURLToPath(new URL('setup.mjs', import.meta.url))],
    env: { HOLDFAST_INTERLEAVINGS: '25' },
    // A mutant that forgets to answer must not cost the patience that a slow machine may need.
    testTimeout: 5_000,
    hookTimeout: 5_000,
    // Stryker runs them on one thread, again and again: a fresh world for each file would be most of the time.
    isolate: false,
    sequence: { sequencer: QuickFirst }
  }
})
