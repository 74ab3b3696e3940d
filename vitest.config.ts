import { defineConfig } from 'vitest/config'

const setupFiles = ['scripts/lib/end-with-vitest.mjs']

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          setupFiles,
          include: ['test/unit/**/*.test.ts', 'test/contract/**/*.test.ts', 'src/**/*.test.ts'],
          testTimeout: 20_000,
          hookTimeout: 20_000
        }
      },
      {
        // These start servers and kill processes, and what they measure suffers from company: one file after the other,
        // and none beside the unit tests.
        test: {
          name: 'process',
          setupFiles,
          // The nemesis for a few minutes; `npm run nemesis` for as long as one likes.
          include: ['test/{process,fault,interop,package}/**/*.test.ts', 'test/fault/**/*.nemesis.ts'],
          testTimeout: 120_000,
          hookTimeout: 120_000,
          fileParallelism: false,
          sequence: { groupOrder: 1 }
        }
      }
    ]
  }
})
