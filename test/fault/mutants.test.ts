import { describe, expect, it } from 'vitest'
import { makeMutant, MUTANTS } from './mutants.js'

describe('every mutant', () => {
  // Only two of them run each day: one that does not fit the code any more would be noticed weeks later.
  it.each(MUTANTS.map((mutant) => [mutant.name, mutant] as const))('%s: its place is still there', async (_, mutant) => {
    await expect(makeMutant(mutant)).resolves.toContain('mutant.mjs')
  })
})
