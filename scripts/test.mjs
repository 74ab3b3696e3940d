/**
 * `npm test`: everything, from a fresh checkout on. `npm test -- <arguments for vitest>`: only what those select, without
 * the static checks. The last line is always `N passed, N failed`.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { build, checks } from './lib/checks.mjs'
import { ensureInstalled } from './lib/install.mjs'
import { root } from './lib/paths.mjs'
import { main, run } from './lib/run.mjs'
import { ensureServers } from './lib/servers.mjs'
import { withTestDir } from './lib/test-dir.mjs'

const selection = process.argv.slice(2)

let totals = { passed: 0, failed: 1, skipped: 0 } // A step that stops the run counts as one failure.

await main(
  async () => {
    await ensureInstalled()
    await ensureInstalled(console.log, join(root, 'test/node-24'))
    await ensureServers()
    await build()
    if (selection.length === 0) await checks()
    totals = await withTestDir(runVitest)
    return totals.failed > 0 ? 1 : 0
  },
  () => {
    const skipped = totals.skipped > 0 ? `, ${totals.skipped} skipped` : ''
    console.log(`\n${totals.passed} passed, ${totals.failed} failed${skipped}`)
  }
)

async function runVitest(folder) {
  const report = join(folder, 'vitest.json')
  const args = ['run', '--reporter=default', '--reporter=json', `--outputFile.json=${report}`]
  // A forgotten `.only` would pass for the whole suite.
  if (selection.length === 0) args.push('--allowOnly=false')
  // Logs are read as plain text.
  const env = { HOLDFAST_TEST_DIR: folder, ...(process.stdout.isTTY ? {} : { NO_COLOR: '1' }) }
  const { code } = await run('vitest', [...args, ...selection], { env, stdio: 'inherit' })
  return count(code, report)
}

function count(code, report) {
  const totals = { passed: 0, failed: 0, skipped: 0 }
  for (const { status, assertionResults } of read(report).testResults) {
    for (const test of assertionResults) {
      totals[test.status === 'passed' || test.status === 'failed' ? test.status : 'skipped']++
    }
    // A file that does not load has no tests to fail.
    if (status === 'failed' && !assertionResults.some((test) => test.status === 'failed')) totals.failed++
  }
  // An unhandled rejection fails the run, but no test in it.
  if (code !== 0 && totals.failed === 0) totals.failed = 1
  return totals
}

function read(report) {
  try {
    return JSON.parse(readFileSync(report, 'utf8'))
  } catch {
    return { testResults: [] }
  }
}
