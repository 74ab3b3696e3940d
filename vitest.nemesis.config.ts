import { defineConfig } from 'vitest/config'

/** What `npm run nemesis` runs: minutes and hours, one after the other. */
export default defineConfig({
  test: {
    include: ['test/fault/**/*.nemesis.ts'],
    setupFiles: ['scripts/lib/end-with-vitest.mjs'],
    fileParallelism: false,
    hookTimeout: 120_000
  }
})
