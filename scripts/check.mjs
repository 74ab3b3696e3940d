/** `npm run check`: the build and all static checks, no tests. */
import { build, checks } from './lib/checks.mjs'
import { ensureInstalled } from './lib/install.mjs'
import { main } from './lib/run.mjs'

await main(async () => {
  await ensureInstalled()
  await build()
  await checks()
})
