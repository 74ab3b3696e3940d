import { defineConfig } from 'vitest/config'

const setupFiles = ['scripts/lib/end-with-vitest.mjs']

/** They measure time, memory or speed. */
const alone = ['bench', 'peers', 'redis-convoy', 'redis-leaks', 'etcd-leaks', 'sqlite'].map((name) => `test/process/${name}.test.ts`)

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          setupFiles,
          include: ['test/unit/**/*.test.ts', 'src/**/*.test.ts'],
          testTimeout: 20_000,
          hookTimeout: 20_000
        }
      },
      {
        // They wait for servers and for what expires, so that more than there are cores can share a machine.
        test: {
          name: 'contract',
          setupFiles,
          include: ['test/contract/**/*.test.ts'],
          testTimeout: 30_000,
          hookTimeout: 60_000,
          maxWorkers: 4,
          sequence: { groupOrder: 1 }
        }
      },
      {
        // These start servers and kill processes. They wait more than they work, so three can share a machine.
        test: {
          name: 'process',
          setupFiles,
          include: ['test/{process,fault,interop,package}/**/*.test.ts'],
          exclude: alone,
          testTimeout: 120_000,
          hookTimeout: 120_000,
          maxWorkers: 3,
          sequence: { groupOrder: 2 }
        }
      },
      {
        // What these measure suffers from company: one file after the other.
        test: {
          name: 'alone',
          setupFiles,
          // The nemesis for a few minutes; `npm run nemesis` for as long as one likes.
          include: [...alone, 'test/fault/**/*.nemesis.ts'],
          testTimeout: 120_000,
          hookTimeout: 120_000,
          fileParallelism: false,
          sequence: { groupOrder: 3 }
        }
      }
    ]
  }
})
