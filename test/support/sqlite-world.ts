/** Backends on a file of a test's own, on a machine whose clock, boots and processes the test decides about. */
import Database from 'libsql'
import { randomBytes } from 'node:crypto'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { SqliteBackend } from '../../src/backends/sql/sqlite/backend.js'
import { opener, type OpenDatabase, type SqliteDatabase } from '../../src/backends/sql/sqlite/client.js'
import { thisMachine, type Machine } from '../../src/backends/sql/sqlite/machine.js'
import type { Claim, ClaimState, WakeUp } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
import { makeFolder } from './processes.js'

export interface Member {
  readonly owner: string
  readonly backend: SqliteBackend
  readonly wakeUps: WakeUp[]
  readonly warnings: string[]
  ask(claim: Claim, ifBusy?: 'queue' | 'leave'): Promise<ClaimState>
}

export class SqliteWorld {
  readonly folder = makeFolder('sqlite')
  readonly file = join(this.folder, 'locks.db')

  constructor() {
    onTestFinished(() => rmSync(this.folder, { recursive: true, force: true }))
  }

  open(machine: Partial<Machine> = {}, open: OpenDatabase = opener(Database)): Member {
    const owner = `owner-${randomBytes(4).toString('hex')}`
    const wakeUps: WakeUp[] = []
    const warnings: string[] = []
    const scope = {
      prefix: 'test',
      owner,
      clock: systemClock(),
      retryMs: 50,
      wake: (wakeUp: WakeUp) => void wakeUps.push(wakeUp),
      warn: (warning: string) => void warnings.push(warning),
    }
    const backend = new SqliteBackend(async () => ({ path: this.file, open }), scope, { ...thisMachine(), ...machine })
    onTestFinished(() => backend.close())
    const ask = async (claim: Claim, ifBusy: 'queue' | 'leave' = 'queue') => {
      const [state] = await backend.claim([claim], ifBusy)
      if (state!.status === 'queued') claim.place = state!.place
      return state!
    }
    return { owner, backend, wakeUps, warnings, ask }
  }

  /** The file, as an outsider sees it. */
  look(): SqliteDatabase {
    const database = new Database(this.file)
    onTestFinished(() => void database.close())
    return database as unknown as SqliteDatabase
  }
}

export function claimOn(resource: string, settings: Partial<Claim> = {}): Claim {
  return { id: randomBytes(16).toString('hex'), resource, take: 1, limit: 1, ttlMs: 60_000, ...settings }
}
