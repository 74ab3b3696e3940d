import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { withFileLock } from './file-lock.mjs'
import { root } from './paths.mjs'
import { step } from './run.mjs'

const checkout = createHash('sha256').update(root).digest('hex').slice(0, 12)

/** For whatever writes into this checkout; `part`, if it is only that. */
export const withCheckoutLock = (body, part = '') => withFileLock(checkout + part, body)

/** `npm ci`, if the folder's node_modules is not what its package-lock.json says. */
export async function ensureInstalled(log = console.log, folder = root) {
  if (isInstalled(folder)) return
  await withCheckoutLock(async () => {
    if (isInstalled(folder)) return
    const name = `npm ci${folder === root ? '' : ` (${basename(folder)})`}`
    log(`… ${name}`)
    await step(name, 'npm', ['ci', '--no-audit', '--no-fund'], { log, cwd: folder })
  })
}

/**
 * By content, since a checkout or a copy changes times without changing anything. npm writes the list of what it installed
 * last of all, so one that was interrupted does not count. Optional packages may be absent: they are for other platforms.
 */
function isInstalled(folder) {
  const wanted = packages(join(folder, 'package-lock.json'))
  const present = packages(join(folder, 'node_modules/.package-lock.json'))
  if (!wanted || !present) return false
  return (
    Object.entries(wanted).every(([path, { version, optional }]) =>
      path === '' || (path in present ? present[path].version === version : optional)
    ) && Object.keys(present).every((path) => path in wanted)
  )
}

function packages(file) {
  try {
    return JSON.parse(readFileSync(file, 'utf8')).packages
  } catch {
    return undefined
  }
}
