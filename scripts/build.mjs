/** `npm run build`: the embedded scripts, then dist. */
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { embed } from './embed.mjs'
import { withCheckoutLock } from './lib/install.mjs'
import { root } from './lib/paths.mjs'
import { main, run } from './lib/run.mjs'

const dist = join(root, 'dist')
const fresh = join(root, 'node_modules/.holdfast-build')

await main(() =>
  withCheckoutLock(async () => {
    embed()
    rmSync(fresh, { recursive: true, force: true })
    const { code } = await run('tsc', ['-p', 'tsconfig.build.json', '--outDir', fresh], { stdio: 'inherit' })
    if (code === 0) replace()
    rmSync(fresh, { recursive: true, force: true })
    return code
  })
)

/**
 * Makes dist equal to what was built, file by file and each by rename: tests that run from dist never see a half-written
 * one while somebody builds beside them, and what was deleted from src does not stay to be published.
 */
function replace() {
  const built = files(fresh)
  for (const file of files(dist)) if (!built.includes(file)) rmSync(join(dist, file))
  for (const file of built) {
    if (existsSync(join(dist, file)) && same(join(fresh, file), join(dist, file))) continue
    mkdirSync(dirname(join(dist, file)), { recursive: true })
    renameSync(join(fresh, file), join(dist, file))
  }
}

function files(folder) {
  if (!existsSync(folder)) return []
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true })
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
}

function same(a, b) {
  return readFileSync(a).equals(readFileSync(b))
}
