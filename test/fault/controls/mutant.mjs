/** A copy of the built package with a mistake in it: see mutants.ts. */
const folder = new URL(import.meta.url).searchParams.get('of')

export const { connect, Election, Mutex } = await import(`${folder}/index.js`)
