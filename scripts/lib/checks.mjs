import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { step } from './run.mjs'

const npmRun = (script, log) => step(script, 'npm', ['run', '--silent', script], { log })

export const build = (log) => npmRun('build', log)

/** Everything that can be said without running the code, once it is built. Stops at the first that is red. */
export async function checks() {
  // Each of them keeps one processor busy.
  const linted = Promise.all([npmRun('lint'), step('knip', 'knip', ['--no-progress'])])
  linted.catch(() => {})
  await step('typecheck', 'tsc', [])
  await linted
  await checkTarball()
}

/** What a consumer's tools make of it is asked of the tarball: that is what they will get. */
async function checkTarball() {
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-pack-'))
  try {
    // Built already.
    await step('npm pack', 'npm', ['pack', '--ignore-scripts', '--pack-destination', folder])
    const tarball = join(folder, readdirSync(folder)[0])
    await step('publint', 'publint', ['run', tarball, '--strict'])
    await step('attw', 'attw', [tarball, '--profile', 'esm-only', '--no-emoji'])
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
