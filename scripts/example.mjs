/** `npm run example:NAME`: a small web server, from a fresh checkout on. */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { build } from './lib/checks.mjs'
import { ensureInstalled } from './lib/install.mjs'
import { root } from './lib/paths.mjs'
import { main, run } from './lib/run.mjs'

const [name] = process.argv.slice(2)
const folder = join(root, 'examples/web')
const script = join(folder, `${name}.mjs`)
/** Decorators have to be compiled. */
const project = join(folder, `${name}`, 'tsconfig.json')

await main(async () => {
  if (!existsSync(script) && !existsSync(project)) {
    const names = new Set(readdirSync(folder).map((entry) => entry.replace(/\..*/, '')))
    names.delete('shop')
    console.error(`There is no example "${name}". There are: ${[...names].join(', ')}.`)
    return 1
  }
  await ensureInstalled(console.error)
  await build(console.error)
  if (existsSync(project)) await run('tsc', ['-p', project], { stdio: 'inherit' })
  const file = existsSync(project) ? join(folder, name, 'main.js') : script
  const { code } = await run(process.execPath, [file], { stdio: 'inherit' })
  return code
})
