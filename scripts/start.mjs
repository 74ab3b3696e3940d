/** `npm start`: the demo, from a fresh checkout on. What it takes to get there is told on stderr. */
import { build } from './lib/checks.mjs'
import { ensureInstalled } from './lib/install.mjs'
import { main, run } from './lib/run.mjs'

await main(async () => {
  await ensureInstalled(console.error)
  await build(console.error)
  const { code } = await run(process.execPath, ['examples/workers.mjs', ...process.argv.slice(2)], { stdio: 'inherit' })
  return code
})
