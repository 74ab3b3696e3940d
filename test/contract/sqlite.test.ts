/** The contract on a file of its own, through libsql and through what a path gets on this Node. All clients: test/process/sqlite-clients. */
import Database from 'libsql'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, it } from 'vitest'
import { sqliteBackend } from '../../src/backends/sql/sqlite/index.js'
import { conformance } from '../../src/testing/index.js'

const folder = mkdtempSync(join(process.env['HOLDFAST_TEST_DIR'] ?? tmpdir(), 'sqlite-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const traits = { fair: true, wakes: 'push', minTtlMs: 1, counted: true, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 500, transactions: true, ownership: true } as const

describe('a path', () => {
  conformance(() => sqliteBackend(join(folder, 'path.db')), traits, { describe, it })
})

describe('a database of libsql', () => {
  const database = new Database(join(folder, 'database.db'))
  afterAll(() => void database.close())
  conformance(() => sqliteBackend(database), traits, { describe, it })
})
