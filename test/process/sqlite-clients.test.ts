/** The same contract through every client of SQLite. Node's own, and what is left of better-sqlite3's choice, need a newer Node. */
import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'
import { makeFolder } from '../support/processes.js'

const NODE_24 = fileURLToPath(new URL('../../node_modules/node-24/bin/node', import.meta.url))
const SUITE = fileURLToPath(new URL('../support/fixtures/sqlite-conformance.mjs', import.meta.url))

it.each(['node:sqlite', 'better-sqlite3', 'libsql', 'a path'])('%s does what the contract says, on Node 24', async (client) => {
  const said = await new Promise<string>((resolve) => {
    const args = ['--no-warnings', '--test-reporter=tap', SUITE, client, makeFolder('sqlite')]
    execFile(NODE_24, args, { maxBuffer: 2 ** 28, timeout: 110_000 }, (_error, stdout, stderr) => resolve(stdout + stderr))
  })
  expect(said).toMatch(/^# fail 0$/m)
  expect(Number(/^# pass (\d+)$/m.exec(said)?.[1])).toBeGreaterThan(100)
})
