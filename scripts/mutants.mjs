/**
 * `npm run mutants`: changes the code in one place after another, and sees whether a test notices: src/core with Stryker, and the
 * Lua of the Redis backend with the mutants in mutants/lua.mjs. Nothing in the working tree is changed.
 */
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { coreFiles, mutateCore, scoreOf, show, WANTED } from '../mutants/core.mjs'
import { tryLuaMutants } from '../mutants/lua.mjs'
import { embed } from './embed.mjs'
import { ensureInstalled, withCheckoutLock } from './lib/install.mjs'
import { root } from './lib/paths.mjs'
import { main, Stop } from './lib/run.mjs'
import { ensureServers } from './lib/servers.mjs'
import { withTestDir } from './lib/test-dir.mjs'

const HELP = `npm run mutants -- [options]

  --core            only src/core
  --lua             only the Lua of the Redis backend
  --only <names>    only these files of src/core, with commas: --only hold,keeper
  --quick           a sample of the lines, the same for the same seed
  --seed <n>        another sample; default: 1
  --force           what was found in earlier runs counts for nothing
`

await main(async () => {
  const options = readOptions()
  if (options.help) return void console.log(HELP)
  await ensureInstalled()
  await withCheckoutLock(async () => embed())
  // Both are told, whatever is wrong with the first.
  const isRed = [options.core && !(await core(options)), options.lua && !(await lua())]
  return isRed.includes(true) ? 1 : 0
})

async function core({ only, seed, force }) {
  const files = coreFiles(only)
  if (files.length === 0) usage('There is no such file in src/core.')
  await ensureInstalled(console.log, join(root, 'mutants'))
  const started = performance.now()
  // One at a time: they share what is kept of earlier runs.
  const results = await withCheckoutLock(() => mutateCore(files, { seed, force }), '-mutants')
  console.log('')
  show(results.sort((a, b) => (scoreOf([a]).score ?? 101) - (scoreOf([b]).score ?? 101)))
  const { score, dead, all } = scoreOf(results)
  const minutes = ((performance.now() - started) / 60_000).toFixed(1)
  console.log(`\n${dead} of ${all} mutants of src/core killed, ${score?.toFixed(1) ?? '–'} %; ${WANTED} % are wanted (${minutes} min)`)
  return score === undefined || score >= WANTED
}

async function lua() {
  await ensureServers()
  return (await withTestDir(tryLuaMutants)).length === 0
}

function readOptions() {
  const { values } = parseArgs({
    options: {
      core: { type: 'boolean' },
      lua: { type: 'boolean' },
      only: { type: 'string' },
      quick: { type: 'boolean' },
      seed: { type: 'string', default: '1' },
      force: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h' }
    }
  })
  const { only, quick, seed, force, help } = values
  if (only !== undefined && values.lua) usage('--only is about src/core.')
  const isAll = !values.core && !values.lua && only === undefined
  return { core: isAll || values.core || only !== undefined, lua: isAll || values.lua, only, seed: quick ? seed : undefined, force, help }
}

function usage(text) {
  console.error(text)
  throw new Stop(2)
}
