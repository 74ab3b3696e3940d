import { defineConfig } from 'vitest/config'

/** What `npm run nemesis` runs: minutes and hours, one after the other. */
export default defineConfig({
  test: {
    include: ['test/fault/**/*.nemesis.ts'],
    setupFiles: ['scripts/lib/end-with-vitest.mjs'],
    fileParallelism: false,
    // Tells of each run when it is over, and not only in the end.
    reporters: ['verbose'],
    hookTimeout: 120_000
  }
})
