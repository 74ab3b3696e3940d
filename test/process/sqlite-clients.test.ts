/** The same contract through every client of SQLite. Node's own, and better-sqlite3, need a newer Node: see test/node-24. */
import { execFile, execFileSync } from 'node:child_process'
import { existsSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, it, onTestFinished } from 'vitest'
import { makeFolder } from '../support/processes.js'

const FOLDER = fileURLToPath(new URL('../node-24', import.meta.url))
const BUNDLED = join(FOLDER, 'node_modules', `node-${process.platform}-${process.arch}`, 'bin', 'node')
/** Where there is none to install, the one that runs the tests has to be new enough. */
const NEWER_NODE = existsSync(BUNDLED) ? BUNDLED : process.execPath
const SUITE = join(FOLDER, 'sqlite-conformance.mjs')

it('has a newer Node to run on (npm test installs it; by hand: npm ci in test/node-24)', () => {
  expect(() => execFileSync(NEWER_NODE, ['--no-warnings', '-e', "require('node:sqlite')"], { stdio: 'pipe' })).not.toThrow()
})

it.each(['node:sqlite', 'better-sqlite3', 'libsql', 'a path'])('%s does what the contract says, on a newer Node', async (client) => {
  const folder = makeFolder('sqlite')
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const said = await new Promise<string>((resolve) => {
    const args = ['--no-warnings', '--test-reporter=tap', SUITE, client, folder]
    execFile(NEWER_NODE, args, { maxBuffer: 2 ** 28, timeout: 110_000 }, (_error, stdout, stderr) => resolve(stdout + stderr))
  })
  expect(said).toMatch(/^# fail 0$/m)
  expect(Number(/^# pass (\d+)$/m.exec(said)?.[1])).toBeGreaterThan(100)
})
