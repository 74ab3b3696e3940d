/** The contract tests of the Redis backend, on the scripts that HOLDFAST_MUTANT names instead of those in src. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'
import { root } from '../scripts/lib/paths.mjs'

const mutant = process.env.HOLDFAST_MUTANT
const target = join(root, 'src/backends/redis/lua.ts')

export default defineConfig({
  root,
  plugins: [
    {
      name: 'mutated-lua',
      enforce: 'pre',
      load: (id) => (mutant !== undefined && id === target ? readFileSync(mutant, 'utf8') : undefined)
    }
  ],
  test: {
    setupFiles: ['scripts/lib/end-with-vitest.mjs'],
    include: ['test/contract/redis*.test.ts'],
    testTimeout: 10_000,
    hookTimeout: 20_000
  }
})
