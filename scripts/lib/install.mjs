import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { withFileLock } from './file-lock.mjs'
import { root } from './paths.mjs'
import { step } from './run.mjs'

/** For whatever writes into this checkout. */
export const withCheckoutLock = (body) =>
  withFileLock(createHash('sha256').update(root).digest('hex').slice(0, 12), body)

/** `npm ci`, if node_modules is not what package-lock.json says. */
export async function ensureInstalled(log = console.log) {
  if (isInstalled()) return
  await withCheckoutLock(async () => {
    if (isInstalled()) return
    log('… npm ci')
    await step('npm ci', 'npm', ['ci', '--no-audit', '--no-fund'], { log })
  })
}

/**
 * By content, since a checkout or a copy changes times without changing anything. npm writes the list of what it installed
 * last of all, so one that was interrupted does not count. Optional packages may be absent: they are for other platforms.
 */
function isInstalled() {
  const wanted = packages('package-lock.json')
  const present = packages('node_modules/.package-lock.json')
  if (!wanted || !present) return false
  return (
    Object.entries(wanted).every(([path, { version, optional }]) =>
      path === '' || (path in present ? present[path].version === version : optional)
    ) && Object.keys(present).every((path) => path in wanted)
  )
}

function packages(file) {
  try {
    return JSON.parse(readFileSync(join(root, file), 'utf8')).packages
  } catch {
    return undefined
  }
}
