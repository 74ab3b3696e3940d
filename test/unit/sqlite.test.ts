/** SQLite as a store: what becomes of the file over boots, versions and years, and who is told what. */
import Database from 'libsql'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it, onTestFinished } from 'vitest'
import { Connection } from '../../src/backends/sql/sqlite/connection.js'
import { opener, type SqliteDatabase } from '../../src/backends/sql/sqlite/client.js'
import { sqliteError } from '../../src/backends/sql/sqlite/errors.js'
import { sqliteBackend } from '../../src/backends/sql/sqlite/index.js'
import { thisMachine } from '../../src/backends/sql/sqlite/machine.js'
import { Steps } from '../../src/backends/sql/sqlite/steps.js'
import { removeSilentBells, Tidy } from '../../src/backends/sql/sqlite/tidy.js'
import { Turns } from '../../src/backends/sql/sqlite/turns.js'
import { ConfigurationError, ConnectorError, createLocks } from '../../src/index.js'
import { claimOn, SqliteWorld, type Member } from '../support/sqlite-world.js'

const epochOf = async (member: Member, resource = 'k') => {
  const state = await member.ask(claimOn(resource))
  expect(state.status).toBe('held')
  return state.status === 'held' ? state.epoch : 0n
}

describe('a boot', () => {
  it('ends every claim, and fences go on growing, even by a clock that was set back', async () => {
    const world = new SqliteWorld()
    const before = world.open({ boot: 'one' })
    const first = await epochOf(before)
    expect((await before.ask(claimOn('k'))).status).toBe('queued')
    await before.backend.close()
    const database = world.look()
    // As if the time of day had been a year ahead when the file was made.
    database.exec('UPDATE holdfast_locks SET last = last + 31536000000000')
    const after = world.open({ boot: 'two', now: () => 5 })
    const second = await epochOf(after)
    expect(second).toBeGreaterThan(first + 31_536_000_000_000n + 1_000_000n)
    expect((await after.ask(claimOn('other'))).status).toBe('held')
  })

  it('is noticed by the first process after it only', async () => {
    const world = new SqliteWorld()
    const [a, b] = [world.open({ boot: 'one' }), world.open({ boot: 'one' })]
    await epochOf(a)
    expect((await b.ask(claimOn('k'), 'leave')).status).toBe('refused')
  })
})

describe('another boot, while this one goes on', () => {
  it('is another machine, or a container that calls it otherwise: what was held is lost, and nothing more is done here', async () => {
    const world = new SqliteWorld()
    let now = 1_000
    const here = world.open({ boot: 'one', now: () => now })
    const [held, waiting] = [claimOn('k'), claimOn('k')]
    await here.ask(held)
    await here.ask(waiting)
    const there = world.open({ boot: 'two', now: () => now })
    expect((await there.ask(claimOn('k'))).status).toBe('held')
    now += 1_001
    const renewal = { claim: held, ttlMs: 60_000, exact: false }
    expect(await here.backend.renew([renewal])).toEqual([{ status: 'lost' }])
    expect(await here.backend.renew([renewal, renewal])).toEqual([{ status: 'lost' }, { status: 'lost' }])
    for (const call of [() => here.ask(waiting), () => here.backend.release([held]), () => here.backend.ready()]) {
      await expect(call()).rejects.toThrow(/in use by another machine/)
    }
    // It was not taken back.
    now += 1_001
    expect((await there.ask(claimOn('k'), 'leave')).status).toBe('refused')
  })
})

describe('the event loop has its turn', () => {
  /** How often, while something is done. */
  async function turnsDuring(task: () => Promise<unknown>): Promise<number> {
    let turns = 0
    let isOver = false
    const count = () => {
      turns++
      if (!isOver) setImmediate(count)
    }
    setImmediate(count)
    await task()
    isOver = true
    return turns
  }

  it('between the pages of what is inspected, and between the parts of a long list', async () => {
    const world = new SqliteWorld()
    const member = world.open()
    const claims = Array.from({ length: 1_000 }, (_, i) => claimOn(`k${i}`))
    expect(await turnsDuring(() => member.backend.claim(claims, 'queue'))).toBeGreaterThanOrEqual(7)
    const renewals = claims.map((claim) => ({ claim, ttlMs: 60_000, exact: false }))
    expect(await turnsDuring(() => member.backend.renew(renewals))).toBeGreaterThanOrEqual(7)
    let seen = 0
    const turns = await turnsDuring(async () => {
      for await (const { holders } of member.backend.inspect('')) seen += holders.length
    })
    expect(seen).toBe(1_000)
    expect(turns).toBeGreaterThanOrEqual(5)
  })
})

describe('what SQLite says', () => {
  it.each([
    [{ errcode: 15 }, true],
    [{ code: 'SQLITE_PROTOCOL' }, true],
    [{ code: 'SQLITE_BUSY_SNAPSHOT' }, true],
    [{ errcode: 10 | (8 << 8) }, true],
    [{ code: 'SQLITE_CORRUPT_VTAB' }, false],
    [{ errcode: 8 }, false],
  ])('%o may be over in a moment: %s', (error, transient) => {
    expect(sqliteError(error, 'locks.db')).toMatchObject({ code: 'BACKEND', transient })
  })
})

describe('the file', () => {
  it('that is replaced while it is being opened is noticed, too', async () => {
    const world = new SqliteWorld()
    writeFileSync(world.file, '')
    let opened = 0
    const member = world.open({}, (path) => {
      const database = opener(Database)(path)
      if (opened++ > 0) return database
      // With a log of its own, so that this is about the file only.
      database.exec('PRAGMA journal_mode = WAL; CREATE TABLE mine (n)')
      writeFileSync(`${path}-new`, '')
      renameSync(`${path}-new`, path)
      for (const end of ['-wal', '-shm']) rmSync(path + end)
      return database
    })
    expect((await member.ask(claimOn('k'))).status).toBe('held')
    expect((await world.open().ask(claimOn('k'), 'leave')).status).toBe('refused')
    expect(opened).toBe(2)
  })

  it('has its bells in one place, whichever way it is reached', async () => {
    const world = new SqliteWorld()
    const link = join(world.folder, 'link.db')
    writeFileSync(world.file, '')
    symlinkSync(world.file, link)
    const [direct, linked] = [createLocks(sqliteBackend(world.file)), createLocks(sqliteBackend(link))]
    await direct.ready()
    await linked.ready()
    expect(readdirSync(`${world.file}-bells`)).toHaveLength(2)
    expect(existsSync(`${link}-bells`)).toBe(false)
    await linked.close()
    await direct.close()
  })

  it('of a newer version is refused', async () => {
    const world = new SqliteWorld()
    await epochOf(world.open())
    world.look().exec('UPDATE holdfast_meta SET version = 2')
    await expect(world.open().backend.ready()).rejects.toThrow(ConfigurationError)
    await expect(world.open().backend.ready()).rejects.toThrow(/layout 2.*newer holdfast/)
  })

  it('may be full of other tables', async () => {
    const world = new SqliteWorld()
    world.look().exec('CREATE TABLE locks (mine); PRAGMA user_version = 77')
    await epochOf(world.open())
    expect(world.look().prepare('PRAGMA user_version').all()).toEqual([{ user_version: 77 }])
  })

  it('that is none of SQLite is said to be so', async () => {
    const world = new SqliteWorld()
    writeFileSync(world.file, 'not a database, but long enough to look like one'.repeat(100))
    await expect(world.open().backend.ready()).rejects.toThrow(ConnectorError)
    await expect(world.open().backend.ready()).rejects.toThrow('no SQLite database')
  })

  it('that cannot grow: what was granted stays, what was not is said, and there is no half of anything', async () => {
    const world = new SqliteWorld()
    let small: SqliteDatabase | undefined
    const member = world.open({}, (file) => (small = opener(Database)(file)))
    const kept = claimOn('kept')
    expect((await member.ask(kept)).status).toBe('held')
    const pages = (small!.prepare('PRAGMA page_count').all() as { page_count: number }[])[0]!.page_count
    small!.exec(`PRAGMA max_page_count = ${pages + 4}`)
    const held = ['kept']
    const error = await (async () => {
      for (let i = 0; ; i++) {
        const key = `key-${i}-${'x'.repeat(400)}`
        await member.backend.claim([claimOn(key)], 'queue')
        held.push(key)
      }
    })().catch((reason: unknown) => reason)
    expect(error).toMatchObject({ code: 'BACKEND', transient: true, message: expect.stringContaining('The disk is full') })
    await expect(member.backend.claim(Array.from({ length: 20 }, (_, i) => claimOn(`list-${i}-${'x'.repeat(400)}`)), 'queue')).rejects.toThrow('full')
    const seen: string[] = []
    for await (const { key } of member.backend.inspect('')) seen.push(key)
    expect(seen.sort()).toEqual(held.sort())
    expect((await member.backend.renew([{ claim: kept, ttlMs: 60_000, exact: false }]))[0]).toMatchObject({ status: 'held' })
    expect((await member.backend.release([kept]))[0]).toEqual({ status: 'released' })
    small!.exec('PRAGMA max_page_count = 1000000')
    await epochOf(member, 'again')
  })

  it('that was deleted, or replaced, is given up: what was held in it is lost, and the new one is used', async () => {
    const world = new SqliteWorld()
    let now = 1_000
    const file = join(world.folder, 'new.db')
    const member = world.open({ now: () => now }, (path) => {
      if (!existsSync(path)) writeFileSync(path, '')
      return opener(Database)(path)
    })
    const held = claimOn('k')
    const first = await member.ask(held)
    writeFileSync(file, '')
    renameSync(file, world.file)
    for (const end of ['-wal', '-shm']) rmSync(world.file + end)
    const other = world.open({ now: () => now })
    expect((await other.ask(claimOn('k'))).status).toBe('held')
    now += 1_001
    expect(await member.backend.renew([{ claim: held, ttlMs: 60_000, exact: false }])).toEqual([{ status: 'lost' }])
    expect(member.warnings).toEqual([expect.stringContaining('deleted or replaced')])
    const state = await member.ask(claimOn('k'), 'leave')
    expect(state.status === 'refused' && state.holder?.owner).toBe(other.owner)
    expect(state.status === 'refused' && first.status === 'held' && state.holder!.epoch! > first.epoch).toBe(true)
  })

  it('counts beyond 2^53', async () => {
    const world = new SqliteWorld()
    const member = world.open()
    await member.backend.ready()
    world.look().exec(`UPDATE holdfast_meta SET floor = ${2n ** 53n}`)
    const held = claimOn('k')
    expect(await member.ask(held)).toMatchObject({ status: 'held', epoch: 2n ** 53n + 1n })
    const next = claimOn('k')
    expect(await member.ask(next)).toMatchObject({ status: 'queued', place: String(2n ** 53n + 2n) })
    await member.backend.release([held])
    expect(await member.ask(next)).toMatchObject({ status: 'held', epoch: 2n ** 53n + 3n })
  })
})

describe('a transaction', () => {
  /** A client whose COMMIT fails as often as it is told. */
  function failing(code: string) {
    const faults = { left: 0, transactions: 0 }
    const open = (file: string): SqliteDatabase => {
      const database = opener(Database)(file)
      const exec = (text: string) => {
        if (text === 'COMMIT') {
          faults.transactions++
          if (faults.left-- > 0) throw Object.assign(new Error('made up'), { code })
        }
        return database.exec(text)
      }
      return { prepare: (text) => database.prepare(text), exec, close: () => database.close() }
    }
    return { faults, open }
  }

  it.each(['SQLITE_BUSY', 'SQLITE_BUSY_SNAPSHOT'])('that cannot be committed (%s) leaves nothing, and is done again', async (code) => {
    const world = new SqliteWorld()
    const { faults, open } = failing(code)
    const member = world.open({}, open)
    const other = world.open()
    await member.ask(claimOn('k'))
    Object.assign(faults, { left: 3, transactions: 0 })
    const waiting = claimOn('k')
    expect(await member.ask(waiting)).toMatchObject({ status: 'queued', ahead: 0, waiting: 0 })
    expect(faults.transactions).toBe(4)
    expect((await other.ask(claimOn('other'))).status).toBe('held')
  })

  it.each(['SQLITE_FULL', 'SQLITE_IOERR_WRITE', 'SQLITE_CORRUPT'])('that fails for good (%s) leaves nothing, and nobody is told of it', async (code) => {
    const world = new SqliteWorld()
    const { faults, open } = failing(code)
    const member = world.open({}, open)
    const other = world.open()
    const [held, waiting] = [claimOn('k'), claimOn('k')]
    await member.ask(held)
    await other.ask(waiting)
    faults.left = 1
    await expect(member.backend.release([held])).rejects.toMatchObject({ code: 'BACKEND' })
    expect((await other.ask(waiting)).status).toBe('queued')
    expect(other.wakeUps).not.toContainEqual(expect.objectContaining({ kind: 'granted' }))
    expect(await member.backend.release([held])).toEqual([{ status: 'released' }])
    expect((await other.ask(waiting)).status).toBe('held')
  })
})

describe('another who writes', () => {
  it('is waited for without stopping the event loop, in the order of asking', async () => {
    const world = new SqliteWorld()
    let database: SqliteDatabase | undefined
    // Also if a client has a patience of its own.
    const member = world.open({}, (file) => (database = new Database(file, { timeout: 3_000 }) as unknown as SqliteDatabase))
    await member.backend.ready()
    expect(database!.prepare('PRAGMA busy_timeout').all()).toEqual([{ timeout: 0 }])
    const other = world.look()
    other.exec('BEGIN IMMEDIATE')
    const order: string[] = []
    const calls = ['a', 'b', 'c'].map((key) => member.ask(claimOn(key)).then(() => order.push(key)))
    for (let turns = 0; turns < 20; turns++) await sleep(1)
    expect(order).toEqual([])
    other.exec('COMMIT')
    await Promise.all(calls)
    expect(order).toEqual(['a', 'b', 'c'])
  })

  it('does not delay closing', async () => {
    const world = new SqliteWorld()
    const member = world.open()
    await member.backend.ready()
    world.look().exec('BEGIN IMMEDIATE')
    const call = member.ask(claimOn('k'))
    const refused = expect(call).rejects.toThrow(ConnectorError)
    await member.backend.close()
    await refused
  })

  it('is no reason to fail for whoever only reads', async () => {
    const world = new SqliteWorld()
    const member = world.open()
    await member.ask(claimOn('k'))
    world.look().exec('BEGIN IMMEDIATE')
    const keys: string[] = []
    for await (const { key } of member.backend.inspect('')) keys.push(key)
    expect(keys).toEqual(['k'])
  })
})

describe('a holder', () => {
  it('is renewed by its owner only, in whichever way', async () => {
    const world = new SqliteWorld()
    const [owner, other] = [world.open(), world.open()]
    for (const limit of [1, 2]) {
      const held = claimOn(`k${limit}`, { limit, ttlMs: 1_000 })
      await owner.ask(held)
      for (const exact of [true, false]) {
        const renewal = { claim: held, ttlMs: 60_000, exact }
        expect(await other.backend.renew([renewal])).toEqual([{ status: 'lost' }])
        expect(await other.backend.renew([renewal, renewal])).toEqual([{ status: 'lost' }, { status: 'lost' }])
        expect((await owner.backend.renew([{ ...renewal, ttlMs: 1_000 }]))[0]).toMatchObject({ status: 'held' })
      }
    }
  })
})

describe('a waiter', () => {
  it('whose process is known to be gone is passed over at once', async () => {
    const world = new SqliteWorld()
    const [holder, dead, next] = [world.open(), world.open({ pid: 2 ** 22 + 1 }), world.open()]
    const held = claimOn('k')
    await holder.ask(held)
    await dead.ask(claimOn('k'))
    const waiting = claimOn('k')
    await next.ask(waiting)
    await holder.backend.release([held])
    expect((await next.ask(waiting)).status).toBe('held')
  })

  it.each([
    ['has died, and its parent did not notice', 'gone'],
    ['is stopped', 'idle'],
  ] as const)('whose process %s is known as what it is', async (_what, state) => {
    const machine = thisMachine()
    expect(machine.stateOf(machine.pid)).toBe('running')
    expect(machine.stateOf(2 ** 22 + 1)).toBe('gone')
    // A shell starts a child, tells its pid, and becomes a program that never asks what has become of it.
    const script = state === 'gone' ? 'sleep 0.05 & echo $!; exec sleep 20' : 'sleep 20 & echo $!; kill -STOP $!; exec sleep 20'
    const shell = spawn('sh', ['-c', script], { stdio: ['ignore', 'pipe', 'ignore'] })
    onTestFinished(() => void shell.kill('SIGKILL'))
    const [said] = (await once(shell.stdout, 'data')) as [Buffer]
    const child = Number(said.toString())
    onTestFinished(() => {
      if (state === 'idle') process.kill(child, 'SIGKILL')
    })
    await expect.poll(() => machine.stateOf(child)).toBe(state)
  })

  it('of another container, which nobody here can see, gets the lock for a moment only, until it asks', async () => {
    const world = new SqliteWorld()
    const [holder, far, looker] = [world.open(), world.open({ pidSpace: 'elsewhere', pid: 2 ** 22 + 1 }), world.open()]
    const held = claimOn('k')
    await holder.ask(held)
    const waiting = claimOn('k')
    await far.ask(waiting)
    await holder.backend.release([held])
    const left = async () => {
      const state = await looker.ask(claimOn('k'), 'leave')
      return state.status === 'refused' ? [state.holder?.owner, state.holder?.expiresInMs] : [state.status]
    }
    const [owner, provisional] = await left()
    expect(owner).toBe(far.owner)
    expect(provisional).toBeLessThanOrEqual(1_000)
    await expect.poll(() => far.wakeUps).toContainEqual(expect.objectContaining({ kind: 'granted', claimId: waiting.id, since: undefined }))
    expect((await far.ask(waiting)).status).toBe('held')
    expect((await left())[1]).toBeGreaterThan(50_000)
  })

  it('of a thread, which may have ended in a process that runs, gets the lock for a moment only, until it asks', async () => {
    const world = new SqliteWorld()
    const [holder, thread, looker] = [world.open(), world.open({ isThread: true }), world.open()]
    const held = claimOn('k')
    await holder.ask(held)
    const waiting = claimOn('k')
    await thread.ask(waiting)
    await holder.backend.release([held])
    const state = await looker.ask(claimOn('k'), 'leave')
    expect(state.status === 'refused' && state.holder).toMatchObject({ owner: thread.owner })
    expect(state.status === 'refused' && state.holder!.expiresInMs).toBeLessThanOrEqual(1_000)
    expect((await thread.ask(waiting)).status).toBe('held')
  })

  it('is looked for once in a step, though its process had many', async () => {
    const world = new SqliteWorld()
    let asked = 0
    const stateOf = () => {
      asked++
      return 'gone' as const
    }
    const [holder, dead] = [world.open({ stateOf }), world.open()]
    const held = claimOn('k')
    await holder.ask(held)
    for (let i = 0; i < 50; i++) await dead.ask(claimOn('k'))
    await holder.backend.release([held])
    expect(asked).toBe(1)
    expect((await holder.ask(claimOn('k'), 'leave')).status).toBe('held')
  })

  it('that was passed over comes back with all that its process had waiting there', async () => {
    const world = new SqliteWorld()
    let now = 1_000
    const machine = { now: () => now }
    const [holder, silent] = [world.open(machine), world.open(machine)]
    const held = claimOn('k')
    await holder.ask(held)
    const [first, second] = [claimOn('k'), claimOn('k')]
    await silent.ask(first)
    await silent.ask(second)
    now += 5_000
    await holder.backend.release([held])
    expect((await holder.ask(claimOn('k'))).status).toBe('held')
    expect(silent.wakeUps).toEqual([])
    expect(await silent.ask(second)).toMatchObject({ status: 'queued', ahead: 0 })
    expect(silent.wakeUps).toEqual([{ kind: 'look', resource: 'k' }])
    expect(await silent.ask(first)).toMatchObject({ status: 'queued', ahead: 0 })
    expect(await silent.ask(second)).toMatchObject({ status: 'queued', ahead: 1 })
  })
})

describe('a step that found the file busy', () => {
  const machine = thisMachine()

  // libsql leaves a statement that was told so in the middle, and commits nothing until it is run again: then it undoes it all.
  it.each([
    ['claim', (steps: Steps) => steps.claim([claimOn('other')], 'queue')],
    ['claim of several', (steps: Steps) => steps.claim([claimOn('other'), claimOn('another')], 'queue')],
    ['claim of what is held', (steps: Steps) => steps.claim([claimOn('held')], 'queue')],
    ['renewal', (steps: Steps) => steps.renew([{ claim: claimOn('held'), ttlMs: 1_000, exact: false }])],
    ['release', (steps: Steps) => steps.release([claimOn('held')])],
    ['revocation', (steps: Steps) => steps.revoke('held', 'told')],
    ['look for the dead', (steps: Steps) => steps.settle(Buffer.from('test'), Buffer.from('held'))],
  ] as const)('and was given up, a %s, is in the way of nothing that follows', (_what, step) => {
    const world = new SqliteWorld()
    const connection = Connection.open(opener(Database), world.file, machine)
    onTestFinished(() => connection.close())
    const steps = new Steps(connection, machine, { prefix: 'test', owner: 'us' }, { tell() {}, passedOver() {} })
    const held = claimOn('held')
    expect(steps.claim([held], 'queue')).toMatchObject([{ status: 'held' }])
    const outsider = world.look()
    const used = () => (outsider.prepare('SELECT sum(used) AS used FROM holdfast_locks').all() as { used: number }[])[0]!.used

    outsider.exec('BEGIN IMMEDIATE')
    expect(() => step(steps)).toThrow('locked')
    outsider.exec('COMMIT')

    const next = claimOn('next')
    expect(steps.claim([next], 'queue')).toMatchObject([{ status: 'held' }])
    expect(used(), 'what was granted is in the file').toBe(2)
    expect(steps.release([held])).toEqual([{ status: 'released' }])
    expect(used(), 'what was released is free').toBe(1)
    step(steps)
    expect(steps.release([next])).toEqual([{ status: 'released' }])
  })
})

describe('tidying', () => {
  function tidier(world: SqliteWorld, now: () => number) {
    const connection = Connection.open(opener(Database), world.file, { ...thisMachine(), now })
    const steps = new Steps(connection, { ...thisMachine(), now }, { prefix: 'other', owner: 'tidier' }, { tell() {}, passedOver() {} })
    return new Tidy(connection, new Turns(world.file), steps, now)
  }

  it('removes what was idle for a minute, and fences of what is made anew go on', async () => {
    const world = new SqliteWorld()
    let now = 1_000
    const member = world.open({ now: () => now })
    const rows = () => (world.look().prepare('SELECT count(*) AS n FROM holdfast_locks').all() as { n: number }[])[0]!.n
    let last = 0n
    for (let i = 0; i < 50; i++) {
      const claim = claimOn('k')
      const state = await member.ask(claim)
      last = state.status === 'held' ? state.epoch : last
      await member.backend.release([claim])
    }
    for (let i = 0; i < 700; i++) {
      const claim = claimOn(`idle-${i}`)
      await member.ask(claim)
      await member.backend.release([claim])
    }
    await member.ask(claimOn('expired', { ttlMs: 100 }))
    now += 30_000
    await member.ask(claimOn('held', { ttlMs: 600_000 }))
    await tidier(world, () => now).run()
    expect(rows()).toBe(703)
    now += 40_000
    let turns = 0
    const counting = setInterval(() => turns++, 0)
    onTestFinished(() => clearInterval(counting))
    await tidier(world, () => now).run()
    expect(rows()).toBe(1)
    expect(turns).toBeGreaterThan(0)
    expect(await epochOf(member)).toBeGreaterThan(last)
  })

  it('is done when a process opens the file, since many end soon after', async () => {
    const world = new SqliteWorld()
    let now = 100_000
    const first = world.open({ now: () => now })
    const claim = claimOn('k')
    await first.ask(claim)
    await first.backend.release([claim])
    await first.backend.close()
    now += 70_000
    await world.open({ now: () => now }).backend.ready()
    await expect.poll(() => world.look().prepare('SELECT count(*) AS n FROM holdfast_locks').all()).toEqual([{ n: 0 }])
  })

  it('is done by one process in half a minute', async () => {
    const world = new SqliteWorld()
    let now = 100_000
    const member = world.open({ now: () => now })
    const claim = claimOn('k')
    await member.ask(claim)
    await member.backend.release([claim])
    await tidier(world, () => now).run()
    now += 70_000
    world.look().exec(`UPDATE holdfast_meta SET tidied_at = ${now - 1_000}`)
    await tidier(world, () => now).run()
    expect(world.look().prepare('SELECT count(*) AS n FROM holdfast_locks').all()).toEqual([{ n: 1 }])
  })

  it('lets the dead who still wait go, though nobody asks for the key any more', async () => {
    const world = new SqliteWorld()
    let now = 1_000
    const member = world.open({ now: () => now })
    await member.ask(claimOn('k', { ttlMs: 1_000 }))
    await member.ask(claimOn('k'))
    now += 70_000
    await tidier(world, () => now).run()
    now += 70_000
    await tidier(world, () => now).run()
    for (const table of ['locks', 'claims', 'clients']) {
      expect(world.look().prepare(`SELECT count(*) AS n FROM holdfast_${table}`).all()).toEqual([{ n: 0 }])
    }
  })

  it('removes bells that nobody has touched for ten minutes', async () => {
    const world = new SqliteWorld()
    const member = world.open()
    await member.backend.ready()
    const bells = `${world.file}-bells`
    const old = join(bells, 'old')
    writeFileSync(old, '')
    utimesSync(old, new Date(Date.now() - 660_000), new Date(Date.now() - 660_000))
    removeSilentBells(bells)
    expect(existsSync(old)).toBe(false)
    expect(readdirSync(bells)).toHaveLength(1)
    await member.backend.close()
    expect(readdirSync(bells)).toEqual([])
  })
})

describe('a bell', () => {
  it('is for whoever may write to the file, and nobody else', async () => {
    const world = new SqliteWorld()
    await world.open().backend.ready()
    const mode = (path: string) => statSync(path).mode & 0o777
    const file = mode(world.file)
    expect(mode(`${world.file}-bells`)).toBe(file & 0o400 ? (file & 0o666) | ((file & 0o444) >> 2) : 0)
  })

  it('that cannot be made is warned of, and waiters find out by asking', async () => {
    const world = new SqliteWorld()
    writeFileSync(`${world.file}-bells`, 'in the way')
    const [a, b] = [world.open(), world.open()]
    const held = claimOn('k')
    await a.ask(held)
    const next = claimOn('k')
    await b.ask(next)
    await a.backend.release([held])
    expect((await b.ask(next)).status).toBe('held')
    expect(b.warnings).toEqual([expect.stringContaining('hears late of its turn')])
  })
})

describe('sqliteBackend', () => {
  it('leaves the transactions of the database that it is given alone, and does not close it', async () => {
    const world = new SqliteWorld()
    const database = new Database(world.file)
    database.exec('CREATE TABLE mine (n)')
    const locks = createLocks(sqliteBackend(database as unknown as SqliteDatabase))
    await (await locks.lock('before')).release()
    database.exec('BEGIN')
    database.exec('SELECT * FROM mine')
    await using lock = await locks.lock('k')
    database.exec('ROLLBACK')
    lock.assertHeld()
    expect(await lock.release()).toBe(true)
    await locks.close()
    database.exec('INSERT INTO mine VALUES (1)')
    database.close()
  })

  it.each([null, 7, {}, { prepare() {} }, () => {}])('does not take %s', (database) => {
    expect(() => sqliteBackend(database as unknown as string)).toThrow(ConnectorError)
  })

  it('does not take a database in memory', () => {
    expect(() => sqliteBackend(new Database(':memory:') as unknown as SqliteDatabase)).toThrow('memoryBackend()')
    expect(() => sqliteBackend(':memory:')).toThrow(ConfigurationError)
    expect(() => sqliteBackend('')).toThrow(ConfigurationError)
  })

  it('says which folder is missing, or that a folder is no file', async () => {
    const world = new SqliteWorld()
    const missing = createLocks(sqliteBackend(join(world.folder, 'no/such/locks.db')))
    await expect(missing.ready()).rejects.toThrow(/its folder .*no\/such does not exist/)
    mkdirSync(join(world.folder, 'folder'))
    await expect(createLocks(sqliteBackend(join(world.folder, 'folder'))).ready()).rejects.toThrow('is no file')
  })
})

describe('what transactions have written', () => {
  const commit = (member: Member, value: string) =>
    member.backend.store.commit({ comparisons: [], puts: [{ key: 'k', value: Buffer.from(value) }], deletes: [], reads: [] })

  it('outlasts a boot', async () => {
    const world = new SqliteWorld()
    const before = world.open({ boot: 'one' })
    const state = await commit(before, 'v')
    await before.backend.close()
    const after = await world.open({ boot: 'two' }).backend.store.read(['k'])
    expect(state).toEqual({ status: 'committed', revision: after?.values[0]?.revision })
    expect(Buffer.from(after!.values[0]!.value).toString()).toBe('v')
  })

  it('has higher revisions in a file that was made anew', async () => {
    const world = new SqliteWorld()
    const first = world.open()
    const before = (await commit(first, '1')) as { revision: bigint }
    await first.backend.close()
    rmSync(world.file)
    const after = (await commit(world.open(), '2')) as { revision: bigint }
    expect(after.revision).toBeGreaterThan(before.revision)
  })
})
