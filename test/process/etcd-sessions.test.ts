/** Sessions, mutexes and elections on etcd: beside etcdctl, what they cost, and what happens to the server and its history. */
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import {
  connect, Election, LockedError, LockReleasedError, Mutex, SessionExpiredError, type ConnectOptions, type LockManager, type Session,
} from '../../src/index.js'
import { Observer } from '../../src/testing/managers.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { callsDuring, watchersOf } from '../support/etcd-calls.js'
import { Etcdctl } from '../support/etcdctl.js'
import { startProxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'
import { within } from '../support/within.js'

const PATIENCE_MS = 20_000
const LONG_MS = 60_000
/** Long before the next renewal. */
const SOON_MS = 1_000
let server: EtcdServer

beforeAll(async () => {
  server = await startEtcd()
})
afterAll(() => server.stop())

async function manager(options: ConnectOptions = {}, url = server.url): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test', ...options })
  onTestFinished(() => locks.close())
  return locks
}

async function session(url?: string): Promise<Session> {
  return (await manager({}, url)).session({ ttlMs: LONG_MS })
}

interface Kv {
  readonly key: string
  readonly value?: string
  readonly create_revision: number
  readonly mod_revision: number
  readonly version: number
}

async function kvsIn(prefix: string): Promise<readonly Kv[]> {
  const { kvs = [] } = JSON.parse(await server.ctl('get', '--prefix', `${prefix}/`, '-w', 'json')) as { kvs?: Kv[] }
  return kvs
}

/** Until so many hold it or wait for it. */
function inLine(prefix: string, count: number): Promise<void> {
  return until(`${count} to be in line for ${prefix}`, async () => (await kvsIn(prefix)).length === count)
}

async function revision(): Promise<number> {
  return (JSON.parse(await server.ctl('get', 'x', '-w', 'json')) as { header: { revision: number } }).header.revision
}

describe('beside etcdctl', () => {
  it('what leads is observed, and followed by ours when it ends', async () => {
    const election = new Election(await session(), 'theirs')
    const observer = new Observer(election)
    const other = new Etcdctl(server, 'elect', 'theirs', 'their value')
    await observer.sees('their value')
    expect((await election.leader()).value).toBe('their value')
    const waiting = election.campaign('ours')
    await inLine('theirs', 2)
    expect((await election.leader()).value).toBe('their value')
    await other.end()
    await within(PATIENCE_MS, 'our turn', waiting)
    expect((await observer.sees('ours')).rev).toBe(election.rev)
    await observer.stop()
    expect(observer.values).toEqual(['their value', 'ours'])
  })

  it('waits for ours, and hears what it says', async () => {
    const election = new Election(await session(), 'ours')
    await election.campaign('our value')
    const listening = new Etcdctl(server, 'elect', '-l', 'ours')
    await listening.says('our value')
    const other = new Etcdctl(server, 'elect', 'ours', 'their value')
    await inLine('ours', 2)
    await election.proclaim('another value')
    await listening.says('another value')
    expect(other.lines).toEqual([])
    const observer = new Observer(election)
    await election.resign()
    await observer.sees('their value')
    await other.says('their value')
    await listening.says('their value')
    await observer.stop()
  })

  it('a mutex of ours and its lock exclude each other', async () => {
    const mutex = new Mutex(await session(), 'locked')
    const first = new Etcdctl(server, 'lock', 'locked')
    await first.says('locked/')
    await expect(mutex.tryLock()).rejects.toThrow(LockedError)
    const waiting = mutex.lock()
    await inLine('locked', 2)
    await first.end()
    await within(PATIENCE_MS, 'our turn', waiting)
    const second = new Etcdctl(server, 'lock', 'locked')
    await inLine('locked', 2)
    expect(second.lines).toEqual([])
    await mutex.unlock()
    await second.says('locked/')
    await second.end()
    await mutex.tryLock()
  })

  it('stands in the same line: who came first is served first', async () => {
    const order: string[] = []
    const [holder, two, four] = [new Mutex(await session(), 'mixed'), new Mutex(await session(), 'mixed'), new Mutex(await session(), 'mixed')]
    await holder.lock()
    const one = new Etcdctl(server, 'lock', 'mixed')
    await inLine('mixed', 2)
    const second = two.lock().then(() => order.push('ours 2'))
    await inLine('mixed', 3)
    const three = new Etcdctl(server, 'lock', 'mixed')
    await inLine('mixed', 4)
    const fourth = four.lock().then(() => order.push('ours 4'))
    await inLine('mixed', 5)
    await holder.unlock()
    await one.says('mixed/')
    order.push('etcdctl 1')
    await one.end()
    await within(PATIENCE_MS, 'ours', second)
    expect(three.lines).toEqual([])
    await two.unlock()
    await three.says('mixed/')
    order.push('etcdctl 3')
    await three.end()
    await within(PATIENCE_MS, 'ours', fourth)
    expect(order).toEqual(['etcdctl 1', 'ours 2', 'etcdctl 3', 'ours 4'])
  })

  it('can take up a session by its lease, and end it', async () => {
    const mine = await session()
    const mutex = new Mutex(mine, 'revoked')
    await mutex.lock()
    const { signal } = mutex
    await server.ctl('lease', 'revoke', mine.lease.toString(16))
    await within(SOON_MS, 'its end', mine.done)
    expect(signal.aborted).toBe(true)
  })

  it('can end a session that waits: its mutex and its candidate are told at once', async () => {
    const [mine, theirs] = [await session(), await session()]
    await new Mutex(theirs, 'wanted').lock()
    await new Election(theirs, 'run for').campaign('theirs')
    const waiting = Promise.allSettled([new Mutex(mine, 'wanted').lock(), new Election(mine, 'run for').campaign('mine')])
    await inLine('wanted', 2)
    await inLine('run for', 2)
    await server.ctl('lease', 'revoke', mine.lease.toString(16))
    const [outcomes] = await within(SOON_MS, 'its end', Promise.all([waiting, mine.done]))
    const refused = { status: 'rejected', reason: expect.any(SessionExpiredError) as unknown }
    expect(outcomes).toEqual([refused, refused])
  })

  it('a session on a lease of its own keeps that alive', async () => {
    const [, id] = /lease ([0-9a-f]+) granted/.exec(await server.ctl('lease', 'grant', '30'))!
    const theirs = await (await manager()).session({ lease: BigInt(`0x${id}`) })
    const mutex = new Mutex(theirs, 'lease of its own')
    await mutex.lock()
    expect(await server.ctl('lease', 'timetolive', id!, '--keys')).toContain(mutex.key)
    await theirs.close()
    expect(await server.ctl('lease', 'timetolive', id!)).toContain('expired')
  })
})

describe('one session in two processes', () => {
  // etcd#22082, over processes: the key has the same name, but it is another.
  it('what was locked in one since is not unlocked by the other', async () => {
    const old = await session()
    const stale = new Mutex(old, 'stale')
    await stale.lock()
    const taken = await (await manager()).session({ lease: old.lease })
    const mutex = new Mutex(taken, 'stale')
    await mutex.lock()
    expect(mutex.rev).toBe(stale.rev)
    await mutex.unlock()
    await mutex.lock()
    await expect(stale.unlock()).rejects.toThrow(LockReleasedError)
    expect(await mutex.isOwner().check()).toBe(true)
    await expect(new Mutex(await session(), 'stale').tryLock()).rejects.toThrow(LockedError)
  })
})

describe('what is there', () => {
  it('is a lease with the TTL that was asked for', async () => {
    const { lease } = await (await manager()).session({ ttlMs: 90_000 })
    const [, granted, left] = /granted with TTL\((\d+)s\), remaining\((\d+)s\)/.exec(await server.ctl('lease', 'timetolive', lease.toString(16)))!
    expect(Number(granted)).toBe(90)
    expect(Number(left)).toBeGreaterThanOrEqual(70)
    expect(Number(left)).toBeLessThanOrEqual(90)
  })

  it('is the key of a leader, with a version for each thing that it says', async () => {
    const election = new Election(await session(), 'versions')
    let last = 0
    for (const [i, value] of ['a', 'b', 'c'].entries()) {
      await (i === 0 ? election.campaign(value) : election.proclaim(value))
      const [kv] = await kvsIn('versions')
      expect(Buffer.from(kv!.key, 'base64').toString()).toBe(election.key)
      expect(Buffer.from(kv!.value!, 'base64').toString()).toBe(value)
      expect([kv!.version, BigInt(kv!.create_revision)]).toEqual([i + 1, election.rev])
      expect(kv!.mod_revision).toBeGreaterThan(last)
      last = kv!.mod_revision
    }
    await election.resign()
    expect(await kvsIn('versions')).toEqual([])
  })

  it('is one request for a lock that nobody has, and one to unlock it', async () => {
    const mutex = new Mutex(await session(), 'cost')
    await mutex.lock()
    await mutex.unlock()
    const during = await callsDuring(server, async () => {
      for (let i = 0; i < 10; i++) {
        await mutex.lock()
        await mutex.unlock()
      }
    })
    expect(during).toEqual({ Txn: 20 })
  })
})

describe('who observes', () => {
  it('sees a leader whose key was compacted away', async () => {
    const election = new Election(await session(), 'compacted')
    await election.campaign('old')
    for (let i = 0; i < 20; i++) await server.ctl('put', 'other', String(i))
    await server.ctl('compact', String(await revision()))
    const observer = new Observer(new Election(await session(), 'compacted'))
    await observer.sees('old')
    await election.proclaim('new')
    await observer.sees('new')
    await observer.stop()
  })

  it('misses no leader while its connection is gone', async () => {
    const proxy = await startProxy({ to: { port: server.port } })
    onTestFinished(() => proxy.close())
    const [a, b] = [new Election(await session(), 'away'), new Election(await session(), 'away')]
    await a.campaign('begin')
    const observer = new Observer(new Election(await session(`etcd://127.0.0.1:${proxy.port}`), 'away'))
    await observer.sees('begin')
    const said = ['begin']
    await a.resign()
    for (let round = 0; round < 3; round++) {
      const cut = proxy.blackHole()
      proxy.reset()
      for (const [i, election] of [b, a].entries()) {
        await election.campaign(`${round} ${i}`)
        await election.proclaim(`${round} ${i} more`)
        await election.resign()
        said.push(`${round} ${i}`, `${round} ${i} more`)
      }
      cut.heal()
      proxy.reset()
      await observer.sees(said.at(-1)!)
    }
    await observer.stop()
    expect(observer.values).toEqual(said)
    observer.assertInOrder()
  })

  it('hears once of a leader that did not hear of its own place, and asked again', async () => {
    const proxy = await startProxy({ to: { port: server.port } })
    onTestFinished(() => proxy.close())
    const [a, b] = [new Election(await session(), 'unheard'), new Election(await session(`etcd://127.0.0.1:${proxy.port}`), 'unheard')]
    await a.campaign('a')
    const observer = new Observer(new Election(await session(), 'unheard'))
    await observer.sees('a')
    const silent = proxy.drop({ direction: 'down' })
    const campaigning = b.campaign('b')
    await inLine('unheard', 2)
    silent.heal()
    proxy.reset()
    await a.resign()
    await campaigning
    await b.proclaim('b more')
    await observer.sees('b more')
    await observer.stop()
    expect(observer.values).toEqual(['a', 'b', 'b more'])
  })

  it('goes on when the server was killed and started again, also if what it missed was compacted', async () => {
    await using own = await startEtcd()
    const [a, b] = [new Election(await session(own.url), 'k'), new Election(await session(own.url), 'k')]
    const observer = new Observer(b)
    await a.campaign('first')
    await observer.sees('first')
    await own.kill()
    await own.start()
    await until('a proclamation', () => a.proclaim('second').then(() => true))
    await observer.sees('second')
    const { header } = JSON.parse(await own.ctl('get', 'x', '-w', 'json')) as { header: { revision: number } }
    await own.ctl('compact', String(header.revision))
    await own.kill()
    await own.start()
    await until('a proclamation', () => a.proclaim('third').then(() => true))
    await observer.sees('third')
    await observer.stop()
    observer.assertInOrder()
    expect(observer.values).toEqual(['first', 'second', 'third'])
  })

  it('leaves no watch behind when it leaves the loop', async () => {
    const election = new Election(await session(), 'left')
    await election.campaign('a')
    await sleep(300)
    const before = await watchersOf(server)
    for (let i = 0; i < 5; i++) for await (const { value } of election.observe()) {
      expect(value).toBe('a')
      break
    }
    await until('the watches to be gone', async () => (await watchersOf(server)) === before)
  })
})
