/** etcd: beside etcdctl, what is asked of the server, and what happens to leases and keys behind our back. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { connect, Mutex, type ConnectOptions, type LockManager } from '../../src/index.js'
import { callsDuring, messagesDuring, watchersOf } from '../support/etcd-calls.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { Etcdctl } from '../support/etcdctl.js'
import { startProxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'
import { within } from '../support/within.js'

const PATIENCE_MS = 10_000
const PREFIX = 'test'
let server: EtcdServer
let raw: EtcdClient

beforeAll(async () => {
  server = await startEtcd()
  raw = createEtcdClient({ endpoints: [server.endpoint] })
})
afterAll(async () => {
  await raw.close()
  await server.stop()
})

async function manager(options: ConnectOptions = {}, url = server.url): Promise<LockManager> {
  const locks = await connect(url, { prefix: PREFIX, ...options })
  onTestFinished(() => locks.close())
  return locks
}

/** Until so many wait for a key. */
async function queued(locks: LockManager, wanted: string, count: number): Promise<void> {
  await until(`${count} to wait for ${wanted}`, async () => {
    for await (const { key, waiters } of locks.inspect()) if (key === wanted && waiters.length === count) return true
    return false
  })
}

async function revision(): Promise<number> {
  return (JSON.parse(await server.ctl('get', 'x', '-w', 'json')) as { header: { revision: number } }).header.revision
}

function etcdctlLock(key: string): Etcdctl {
  return new Etcdctl(server, 'lock', `${PREFIX}/${key}`)
}

describe('beside etcdctl', () => {
  it('what it holds is taken, and ours when it ends', async () => {
    const locks = await manager()
    const other = etcdctlLock('theirs')
    await within(PATIENCE_MS, 'etcdctl to hold', other.holds)
    expect(await locks.tryLock('theirs')).toBeNull()
    const refused = await locks.lock('theirs', { waitMs: 0 }).catch((error: unknown) => error)
    expect((refused as Error).message).toContain('etcd lease')
    const waiting = locks.lock('theirs')
    await queued(locks, 'theirs', 1)
    await other.end()
    const lock = await within(PATIENCE_MS, 'our turn', waiting)
    expect(lock.fence).toBeGreaterThan(0n)
    expect(await lock.release()).toBe(true)
  })

  it('waits for what is ours, also behind the second of ours', async () => {
    const [a, b] = [await manager(), await manager()]
    const first = await a.lock('ours')
    const second = b.lock('ours')
    await queued(a, 'ours', 1)
    const other = etcdctlLock('ours')
    await queued(a, 'ours', 2)
    await first.release()
    const lock = await within(PATIENCE_MS, 'the second of ours', second)
    await sleep(300)
    expect(other.lines).toEqual([])
    await lock.release()
    const key = await within(PATIENCE_MS, 'etcdctl to hold', other.holds)
    expect(key.startsWith(`${PREFIX}/ours/`)).toBe(true)
    expect(await a.tryLock('ours')).toBeNull()
    await other.end()
    await until('it to be free', async () => (await a.tryLock('ours')) !== null)
  })

  it('stands in the same line: who came first is served first', async () => {
    const [a, b, c] = [await manager(), await manager(), await manager()]
    const order: string[] = []
    const first = await a.lock('mixed')
    const one = etcdctlLock('mixed')
    void one.holds.then(() => order.push('etcdctl 1'))
    await queued(a, 'mixed', 1)
    const two = b.lock('mixed').then((lock) => (order.push('ours 2'), lock))
    await queued(a, 'mixed', 2)
    const three = etcdctlLock('mixed')
    void three.holds.then(() => order.push('etcdctl 3'))
    await queued(a, 'mixed', 3)
    const four = c.lock('mixed').then((lock) => (order.push('ours 4'), lock))
    await queued(a, 'mixed', 4)
    await first.release()
    await within(PATIENCE_MS, 'etcdctl 1', one.holds)
    await one.end()
    await (await within(PATIENCE_MS, 'ours 2', two)).release()
    await within(PATIENCE_MS, 'etcdctl 3', three.holds)
    await three.end()
    await (await within(PATIENCE_MS, 'ours 4', four)).release()
    expect(order).toEqual(['etcdctl 1', 'ours 2', 'etcdctl 3', 'ours 4'])
  })

  it('waits for all that one of our managers has in line', async () => {
    const locks = await manager()
    const first = await locks.lock('one manager', { fairness: 'strict' })
    const second = locks.lock('one manager', { fairness: 'strict' })
    await queued(locks, 'one manager', 1)
    const other = etcdctlLock('one manager')
    await queued(locks, 'one manager', 2)
    await first.release()
    const lock = await within(PATIENCE_MS, 'the second of ours', second)
    await sleep(300)
    expect(other.lines).toEqual([])
    await lock.release()
    await within(PATIENCE_MS, 'etcdctl to hold', other.holds)
    await other.end()
  })

  it('is before and behind two of one manager, as they came', async () => {
    const locks = await manager()
    const order: string[] = []
    const one = etcdctlLock('between')
    await within(PATIENCE_MS, 'etcdctl 1', one.holds)
    const two = locks.lock('between', { fairness: 'strict' }).then((lock) => (order.push('ours 2'), lock))
    await queued(locks, 'between', 1)
    const three = locks.lock('between', { fairness: 'strict' }).then((lock) => (order.push('ours 3'), lock))
    await queued(locks, 'between', 2)
    const four = etcdctlLock('between')
    const fourth = four.holds.then(() => (order.push('etcdctl 4'), () => four.end()))
    await queued(locks, 'between', 3)
    let letGo: () => Promise<unknown> = () => one.end()
    const others: Promise<typeof letGo>[] = [...[two, three].map((ours) => ours.then((lock) => () => lock.release())), fourth]
    for (const [served, next] of others.entries()) {
      // Nobody is served before who is ahead has let go.
      await sleep(300)
      expect(order).toHaveLength(served)
      await letGo()
      letGo = await within(PATIENCE_MS, 'the next', next)
    }
    await letGo()
    expect(order).toEqual(['ours 2', 'ours 3', 'etcdctl 4'])
  })

  it('has its turn while one manager passes a lock on among its own, and is alone then', async () => {
    const locks = await manager({ ttlMs: 60_000 })
    const fences: bigint[] = []
    let isOver = false
    let holding = 0
    const work = async () => {
      while (!isOver) {
        const lock = await locks.lock('passed on')
        holding++
        fences.push(lock.fence)
        // So long that the fences of one claim last for longer than the test.
        await sleep(10)
        holding--
        await lock.release()
      }
    }
    const workers = Promise.all(Array.from({ length: 8 }, work))
    onTestFinished(async () => {
      isOver = true
      await workers
    })
    await until('each to have had its turn', async () => fences.length > 16)
    // One claim of the store's serves them all.
    expect(new Set(fences.map((fence) => fence / 1024n)).size).toBe(1)
    const other = etcdctlLock('passed on')
    await within(3_000, 'etcdctl to hold', other.holds)
    const before = fences.length
    expect(holding).toBe(0)
    await sleep(500)
    expect(fences).toHaveLength(before)
    await other.end()
    await until('ours to go on', async () => fences.length > before + 8)
  })

  it.each(['a/b', 'a%2Fb', '100 %', 'ключ', '%', 'a\0b'])('%j is a key of its own', async (key) => {
    const [a, b] = [await manager(), await manager()]
    await a.lock(key)
    for (const other of ['a', 'b', 'a/', 'a%', '%2F', '%25', `${key}/`, `${key}%`]) {
      const lock = await b.tryLock(other)
      expect(lock, other).not.toBeNull()
      await lock!.release()
    }
    expect(await b.tryLock(key)).toBeNull()
    const keys: string[] = []
    for await (const resource of b.inspect(key)) keys.push(resource.key)
    expect(keys).toEqual([key])
  })
})

describe('beside another prefix that begins with ours', () => {
  it('what is held further down is not in the way, nor ours in its way', async () => {
    const [outer, inner] = [await manager(), await manager({ prefix: `${PREFIX}/inner` })]
    const below = await inner.lock('deep')
    const lock = await outer.tryLock('inner')
    expect(lock).not.toBeNull()
    const waiting = outer.lock('inner')
    await lock!.release()
    await (await within(PATIENCE_MS, 'its turn', waiting)).release()
    expect(await outer.tryLock('inner', { type: 'another' })).not.toBeNull()
    below.assertHeld()
    expect(await inner.tryLock('deep')).toBeNull()
  })
})

describe('what it costs', () => {
  it('is one call to acquire and one to release, once the lease is there', async () => {
    const locks = await manager({ ttlMs: 60_000 })
    const warm = await locks.lock('warm')
    // The streams are opened, which are calls, too.
    await warm.extend(60_000)
    await until('its mailbox to be watched', async () => (await watchersOf(server)) > 0)
    await warm.release()
    const during = await callsDuring(server, async () => {
      for (let i = 0; i < 10; i++) await (await locks.lock(`k${i % 3}`)).release()
      for (let i = 0; i < 10; i++) await (await locks.tryLock('k'))!.release()
    })
    expect(during).toEqual({ Txn: 40 })
  })

  it('is no more when the lease was last renewed a while ago: that is a message on a stream that is there', async () => {
    const locks = await manager({ ttlMs: 60_000 })
    const seldom = async () => {
      // Longer than a lease outlasts its claims, and shorter than the pause between the looks at what it has.
      await sleep(1_500)
      await (await locks.lock('seldom')).release()
    }
    await seldom()
    // The first message opens the stream.
    await seldom()
    expect(await callsDuring(server, seldom)).toEqual({ Txn: 2 })
    expect(await messagesDuring(server, seldom)).toMatchObject({ Txn: 2, LeaseKeepAlive: 1 })
  })

  it('a refusal is one call, and writes nothing', async () => {
    const [a, b] = [await manager({ ttlMs: 60_000 }), await manager({ ttlMs: 60_000 })]
    await b.lock('warm')
    await a.lock('busy')
    const before = await revision()
    const during = await callsDuring(server, async () => {
      for (let i = 0; i < 5; i++) expect(await b.tryLock('busy')).toBeNull()
    })
    expect(during).toEqual({ Txn: 5 })
    expect(await revision()).toBe(before)
  })

  it('many at once travel together', async () => {
    const locks = await manager({ ttlMs: 60_000 })
    await (await locks.lock('warm')).release()
    const during = await callsDuring(server, async () => {
      const held = await Promise.all(Array.from({ length: 100 }, (_, i) => locks.lock(`many ${i}`)))
      await Promise.all(held.map((lock) => lock.release()))
    })
    expect(during['Txn']).toBeLessThanOrEqual(4)
  })

  it('50 locks with one TTL are one lease, and it is renewed for all of them at once', async () => {
    const locks = await manager({ ttlMs: 3_000 })
    const during = await callsDuring(server, () => Promise.all(Array.from({ length: 50 }, (_, i) => locks.lock(`one lease ${i}`))))
    expect(during['LeaseGrant']).toBe(1)
    const { LeaseKeepAlive: renewals } = await messagesDuring(server, () => sleep(3_000))
    // At each third of the TTL for the locks, and at each third of what it lasts for the lease itself.
    expect(renewals).toBeGreaterThanOrEqual(2)
    expect(renewals).toBeLessThanOrEqual(8)
  })

  it.each(['bounded', 'strict'] as const)('20 that wait for one key (%s) are one watch, and none a second after the last', async (fairness) => {
    const [a, b] = [await manager({ ttlMs: 60_000 }), await manager({ ttlMs: 60_000 })]
    const first = await a.lock('watched')
    await (await b.lock('warm')).release()
    // Of each lease there is a watch on its mailbox.
    await sleep(300)
    const before = await watchersOf(server)
    let served = 0
    const waiting = Array.from({ length: 20 }, () => b.lock('watched', { fairness }).then((lock) => {
      served++
      return lock.release()
    }))
    await queued(a, 'watched', fairness === 'strict' ? 20 : 1)
    await until('a watch', async () => (await watchersOf(server)) > before)
    await sleep(200)
    expect(await watchersOf(server)).toBe(before + 1)
    await first.release()
    await within(PATIENCE_MS, 'all to be served', Promise.all(waiting))
    expect(served).toBe(20)
    const servedAt = performance.now()
    await until('the watch to be gone', async () => (await watchersOf(server)) === before)
    expect(performance.now() - servedAt).toBeLessThan(3_000)
  })

  it('50 that wait and one release: one grant, and at most one other request', async () => {
    const managers = await Promise.all(Array.from({ length: 5 }, () => manager({ ttlMs: 60_000 })))
    const first = await managers[0]!.lock('convoy')
    let served = 0
    const held: { release(): Promise<boolean> }[] = []
    const waiting = managers.flatMap((locks) => Array.from({ length: 10 }, () => locks.lock('convoy', { fairness: 'strict' }).then((lock) => {
      served++
      held.push(lock)
    })))
    await queued(managers[0]!, 'convoy', 50)
    // Their watches are there, and have been read.
    await sleep(300)
    const during = await messagesDuring(server, async () => {
      await first.release()
      await until('the next to be served', async () => served === 1)
      await sleep(300)
    })
    expect(served).toBe(1)
    const { Txn: txns, ...others } = during
    // The release is one of them.
    expect(txns).toBeLessThanOrEqual(2)
    expect(others).toEqual({})
    while (served < 50) {
      const before = served
      await held.shift()!.release()
      await until('the next to be served', async () => served > before)
    }
    await held.shift()!.release()
    await Promise.all(waiting)
  })
})

describe('one directory', () => {
  it('a lock and the mutexes of two sessions that one manager asks for in one tick: one holds at a time', async () => {
    const locks = await manager()
    const mutexes = [new Mutex(await locks.session(), `${PREFIX}/shared`), new Mutex(await locks.session(), `${PREFIX}/shared`)]
    await (await locks.lock('shared')).release()
    for (let round = 0; round < 3; round++) {
      // When their keys were created: two of the same revision would both be first.
      const since: bigint[] = []
      let release: () => Promise<unknown> = async () => {}
      const holds = (created: bigint, letGo: () => Promise<unknown>) => {
        since.push(created)
        release = letGo
      }
      const asks = [
        () => locks.lock('shared').then((lock) => holds(lock.fence / 1024n, () => lock.release())),
        ...mutexes.map((mutex) => () => mutex.lock().then(() => holds(mutex.rev, () => mutex.unlock()))),
      ]
      const first = asks.splice(0, round)
      const asked = [...asks, ...first].map((ask) => ask())
      for (let served = 1; served <= 3; served++) {
        await until('the next to hold', async () => since.length >= served)
        await sleep(50)
        expect(since).toHaveLength(served)
        await release()
      }
      await Promise.all(asked)
      expect(since).toEqual([...new Set(since)].toSorted((a, b) => Number(a - b)))
    }
  })
})

/** The leases on which there is something below a directory. */
async function leasesOf(directory: string): Promise<string[]> {
  const { kvs = [] } = JSON.parse(await server.ctl('get', '--prefix', directory, '-w', 'json')) as { kvs?: { lease: bigint }[] }
  const text = await server.ctl('get', '--prefix', directory, '--keys-only')
  expect(kvs.length).toBe(text.split('\n').filter((line) => line !== '').length)
  return text.split('\n').flatMap((line) => /\/([0-9a-f]+)-\d+$/.exec(line)?.[1] ?? [])
}

describe('behind our back', () => {
  it('a lease that is revoked while we hold: the holder is told at once', async () => {
    const locks = await manager({ ttlMs: 60_000 })
    const lock = await locks.lock('revoked lease')
    const { signal } = lock
    const [lease] = await leasesOf(`${PREFIX}/revoked lease/`)
    const lost = once(signal, 'abort')
    await server.ctl('lease', 'revoke', lease!)
    await within(1_000, 'the loss', lost)
    expect(() => lock.assertHeld()).toThrow('lost')
    expect(await lock.release()).toBe(false)
    const again = await within(PATIENCE_MS, 'another lease', locks.lock('revoked lease'))
    expect(again.fence).toBeGreaterThan(lock.fence)
  })

  it('a lease that is revoked while we wait: it waits again at once, on another', async () => {
    const [a, b] = [await manager({ ttlMs: 60_000 }), await manager({ ttlMs: 30_000 })]
    const first = await a.lock('revoked wait')
    const waiting = b.lock('revoked wait')
    await queued(a, 'revoked wait', 1)
    const leaseOfB = async () => {
      const { kvs } = await raw.range({ key: Buffer.from(`${PREFIX}/revoked wait/`), rangeEnd: Buffer.from(`${PREFIX}/revoked wait0`) })
      return kvs.find(({ value }) => value.includes(b.owner))?.lease
    }
    const lease = (await leaseOfB())!
    await raw.leaseRevoke(lease)
    const revokedAt = performance.now()
    await until('it to wait again', async () => ![lease, undefined].includes(await leaseOfB()))
    expect(performance.now() - revokedAt).toBeLessThan(1_000)
    await first.release()
    await (await within(PATIENCE_MS, 'its turn', waiting)).release()
  })

  it('`etcdctl del` of what is held: the holder is told, at the latest by its next renewal', async () => {
    const locks = await manager({ ttlMs: 2_000 })
    const lock = await locks.lock('deleted')
    const lost = once(lock.signal, 'abort')
    await server.ctl('del', '--prefix', `${PREFIX}/deleted/`)
    await within(2_000, 'the loss', lost)
    expect(await lock.release()).toBe(false)
  })

  it('a claim that came after all was over does not stay', async () => {
    const [a, b] = [await manager({ ttlMs: 1_000 }), await manager({ ttlMs: 1_000 })]
    await a.lock('kept')
    const [lease] = await leasesOf(`${PREFIX}/kept/`)
    // As a request does that the server has carried out after we gave it up.
    await server.ctl('put', `--lease=${lease}`, `${PREFIX}/ghost/${lease}-999`, '')
    expect(await b.tryLock('ghost')).toBeNull()
    await (await within(PATIENCE_MS, 'it to be swept', b.lock('ghost'))).release()
  })

  it('of two that differ in their TTL each ends with its own, and one that is not renewed at its TTL', async () => {
    const [a, b] = [await manager(), await manager()]
    const short = await a.lock('short', { ttlMs: 1_000, autoRenew: false })
    const long = await a.lock('long', { ttlMs: 30_000, autoRenew: false })
    const startedAt = performance.now()
    const next = await within(5_000, 'the short one to end', b.lock('short'))
    expect(performance.now() - startedAt).toBeGreaterThan(800)
    expect(() => short.assertHeld()).toThrow()
    expect(next.fence).toBeGreaterThan(short.fence)
    long.assertHeld()
    expect(await b.tryLock('long')).toBeNull()
  })

  it('a waiter whose watch was gone while the holder released has its turn soon after, though what it missed was compacted', async () => {
    const proxy = await startProxy({ to: { port: server.port } })
    onTestFinished(() => proxy.close())
    const a = await manager({ ttlMs: 60_000 })
    const b = await manager({ ttlMs: 60_000 }, proxy.url('etcd'))
    const first = await a.lock('missed')
    const waiting = b.lock('missed')
    await queued(a, 'missed', 1)
    // Its watch is there, and has been read.
    await sleep(300)
    proxy.refuse()
    proxy.cut()
    await first.release()
    // The release is not the latest, which would be kept.
    await (await a.lock('other')).release()
    await server.ctl('compact', String(await revision()))
    await proxy.accept()
    await (await within(2_000, 'its turn', waiting)).release()
  })
})
