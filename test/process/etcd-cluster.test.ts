/** Processes on an etcd cluster of three, whose members are killed, stopped and cut off; and servers that refuse. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { etcdBackend } from '../../src/backends/etcd/index.js'
import { connect, createLocks, Mutex, type ConnectOptions, type DistributedLock, type LockManager } from '../../src/index.js'
import { Gate } from '../fault/gate.js'
import { inversions, overlaps, repeats, type Hold } from '../support/check.js'
import { Contenders } from '../support/contenders.js'
import { callsDuring } from '../support/etcd-calls.js'
import { startEtcdCluster, type EtcdCluster } from '../support/etcd-cluster.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { sends, startProxy, type Fault, type Proxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'
import { within } from '../support/within.js'
import { spawnWorker, type Worker } from '../support/workers.js'

const RECOVERY_MS = 30_000
const STILL_ROUNDS = 6
/** Its lease lasts a second longer, and is renewed every 1.3 s: mostly not in the time in which it must be told. */
const STILL = { ttlMs: 3_000, renewEveryMs: 2_000 }
const STILL_MS = 4_300
const TOLD_MS = 500

function expectOrder(holds: readonly Hold[]): void {
  expect(overlaps(holds)).toEqual([])
  expect(inversions(holds, { toleranceMs: 0 }).fence).toEqual([])
  expect(repeats(holds)).toEqual([])
}

async function open(url: string, options: ConnectOptions = {}): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test', ...options })
  onTestFinished(() => locks.close())
  return locks
}

/** Until so many claims wait for a key. */
async function queued(locks: LockManager, wanted: string, count: number): Promise<void> {
  await until(`${count} to wait for ${wanted}`, async () => {
    for await (const { key, waiters } of locks.inspect()) if (key === wanted && waiters.length >= count) return true
    return false
  })
}

/** A client that is at one member, and goes elsewhere only if it has to. */
interface Begun {
  readonly locks: LockManager
  /** Its way to that member. */
  readonly own: Proxy
  readonly isElsewhere: () => boolean
  readonly openAll: () => Promise<void>
}

interface Kept {
  readonly leader: EtcdServer
  readonly locks: readonly DistributedLock[]
  readonly isElsewhere: () => boolean
}

/** One that holds, one that waits behind it, and the moments at which something has become of them. */
class Pair {
  deletedAt = Infinity
  lostAt = Infinity
  grantedAt = Infinity
  readonly lock: DistributedLock
  readonly next: Promise<DistributedLock>

  private constructor(lock: DistributedLock, next: LockManager) {
    this.lock = lock
    lock.signal.addEventListener('abort', () => (this.lostAt = performance.now()))
    this.next = next.lock(lock.key, STILL).then((second) => {
      this.grantedAt = performance.now()
      return second
    })
  }

  static async of(key: string, locks: LockManager, next: LockManager, raw: EtcdClient): Promise<Pair> {
    const lock = await within(RECOVERY_MS, 'a lock', locks.lock(key, STILL))
    const directory = { key: Buffer.from(`test/${key}/`), rangeEnd: Buffer.from(`test/${key}0`) }
    const { kvs: [kv] } = await raw.range(directory)
    const pair = new Pair(lock, next)
    await new Promise<void>((resolve) => raw.watch(directory, {
      onCreated: () => resolve(),
      onEvents: (events) => {
        if (events.some(({ type, key }) => type === 'delete' && key.equals(kv!.key))) pair.deletedAt = performance.now()
      },
      onLost: () => {},
    }))
    await queued(next, key, 1)
    return pair
  }

  /** Whether its key was deleted before its holder had lost it by its own clock. If it is there, it is released. */
  async wasEarly(): Promise<boolean> {
    const { signal } = this.lock
    if (this.deletedAt < Infinity) {
      await sleep(Math.max(0, this.deletedAt + TOLD_MS - performance.now()))
      expect(signal.aborted).toBe(true)
      expect(this.lostAt - this.deletedAt).toBeLessThan(TOLD_MS)
      return this.deletedAt < this.lostAt || !(signal.reason as Error).message.includes('not renewed within its TTL')
    }
    // Its own clock has ended it, and its key is still there.
    if (signal.aborted) return false
    this.lostAt = performance.now()
    expect(await within(RECOVERY_MS, 'an answer', this.lock.release())).toBe(true)
    return false
  }

  /** As one who holds it writes to what it guards. */
  write(gate: Gate, { key, fence }: DistributedLock): boolean {
    const visit = { op: String(fence), key, fence, workload: 'fenced' } as const
    const { value } = gate.visit({ ...visit, what: 'read' })
    return gate.visit({ ...visit, what: 'write', base: value }).accepted
  }
}

describe('a cluster of three', () => {
  let cluster: EtcdCluster
  const cuts: Fault[] = []
  const route = { spawnMany: (count: number) => Promise.all(Array.from({ length: count }, () => spawnWorker({ url: cluster.url }))) }

  beforeAll(async () => {
    cluster = await startEtcdCluster()
  })
  afterAll(() => cluster.stop())
  afterEach(async () => {
    for (const cut of cuts.splice(0)) cut.heal()
    for (const node of cluster.nodes) if (!node.isUp) await node.resume().catch(() => node.start())
    await cluster.healthy()
  })

  /** Until it is healed, or the test is over. */
  async function cutOff(node: EtcdServer): Promise<Fault> {
    const cut = await cluster.cutOff(node)
    cuts.push(cut)
    return cut
  }

  /** Clients begin at any member. That this one begins at `node`, its ways to the others see to: until `openAll` they lead nowhere. */
  async function openAt(node: EtcdServer): Promise<Begun> {
    const proxies = await Promise.all(cluster.nodes.map(({ port }) => startProxy({ to: { port } })))
    onTestFinished(async () => void (await Promise.all(proxies.map((proxy) => proxy.close()))))
    const own = proxies[cluster.nodes.indexOf(node)]!
    const others = proxies.filter((proxy) => proxy !== own)
    for (const proxy of others) proxy.refuse()
    const locks = await open(`etcd://${proxies.map(({ port }) => `127.0.0.1:${port}`).join(',')}`)
    return {
      locks,
      own,
      isElsewhere: () => others.some(({ connections }) => connections.length > 0),
      openAll: async () => void (await Promise.all(others.map((proxy) => proxy.accept()))),
    }
  }

  /** One lock of a client that is at the leader, and one of a client that may be anywhere. Both are held when the leader goes. */
  async function keptThrough(name: string, ttlMs: number): Promise<Kept> {
    const leader = await cluster.leader()
    const [atLeader, anywhere] = [await openAt(leader), await open(cluster.url)]
    const locks = await Promise.all([atLeader.locks, anywhere].map((each, i) => {
      return within(RECOVERY_MS, 'a lock', each.lock(`${name} ${i}`, { ttlMs }))
    }))
    // Leases are renewed on a stream, which is opened with the first renewal.
    await Promise.all(locks.map((lock) => lock.extend(ttlMs)))
    expect(atLeader.own.connections.some(sends('/etcdserverpb.Lease/LeaseKeepAlive'))).toBe(true)
    await atLeader.openAll()
    expect(atLeader.isElsewhere()).toBe(false)
    expect(await cluster.leader()).toBe(leader)
    return { leader, locks, isElsewhere: atLeader.isElsewhere }
  }

  /** Also for those who come. */
  async function expectKept(lock: DistributedLock): Promise<void> {
    lock.assertHeld()
    expect(lock.signal.aborted).toBe(false)
    const other = await open(cluster.url)
    expect(await within(RECOVERY_MS, 'an answer', other.tryLock(lock.key))).toBeNull()
    lock.assertHeld()
  }

  it('8 processes that contend for several keys are served, one at a time, with growing fences', async () => {
    const keys = ['a', 'b', 'c']
    const workers = await route.spawnMany(8)
    await Promise.all(workers.flatMap((worker, i) => keys.map((key, j) => {
      return worker.call('convoy', key, 2, 3, 0, { fairness: (i + j) % 2 === 0 ? 'strict' : 'bounded' })
    })))
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(8 * 3 * 2 * 3)
    expectOrder(holds)
  })

  it('a holder that is killed: the next one has the key within its lease and 3 s', async () => {
    const [holder, next] = (await route.spawnMany(2)) as [Worker, Worker]
    const locks = await open(cluster.url)
    const first = await holder.call('lock', 'killed', { ttlMs: 1_000 })
    const waiting = next.call('lock', 'killed', { ttlMs: 1_000 })
    await queued(locks, 'killed', 1)
    await holder.kill()
    const second = await within(5_000, 'the next one', waiting)
    expect(second.fence).toBeGreaterThan(first.fence)
  })

  // Leases begin anew with a new leader: whoever comes next waits for longer, and never for less.
  it('a holder that is killed with the leader: the next one has the key, and not before the holder would have lost it', async () => {
    const [holder, next] = (await route.spawnMany(2)) as [Worker, Worker]
    const locks = await open(cluster.url)
    const first = await holder.call('lock', 'both', { ttlMs: 2_000 })
    const waiting = next.call('lock', 'both', { ttlMs: 2_000 })
    await queued(locks, 'both', 1)
    const leader = await cluster.leader()
    const { at, remainingMs } = await holder.call('probe', first.id)
    await Promise.all([holder.kill(), leader.kill()])
    const second = await within(10_000, 'the next one', waiting)
    expect(second.fence).toBeGreaterThan(first.fence)
    const { at: grantedAt } = await next.event('acquired')
    expect(Number(grantedAt - at) / 1e6).toBeGreaterThan(remainingMs)
  })

  it('a leader that is killed while somebody holds: no second holder, and waiters go on', async () => {
    // It has to be renewed to be held at the end.
    const ttlMs = 3_000
    const contenders = await Contenders.start(route, ['leader 1', 'leader 2'])
    for (let i = 0; i < 2; i++) {
      const { leader, locks, isElsewhere } = await keptThrough(`killed ${i}`, ttlMs)
      await leader.kill()
      await Promise.all([contenders.allServed(RECOVERY_MS), sleep(ttlMs + 500)])
      expect(isElsewhere()).toBe(true)
      await Promise.all(locks.map(expectKept))
      await leader.start()
      await cluster.healthy()
      for (const kept of locks) expect(await within(RECOVERY_MS, 'an answer', kept.release())).toBe(true)
    }
    expectOrder(await contenders.end(RECOVERY_MS))
  })

  it('a leader that is cut off from the others: no second holder, and waiters go on', async () => {
    // A renewal is due after a third of it, and two members may be silent for a second each before the third is asked.
    const ttlMs = 5_000
    const contenders = await Contenders.start(route, ['cut 1', 'cut 2'])
    for (let i = 0; i < 2; i++) {
      const { leader, locks, isElsewhere } = await keptThrough(`cut off ${i}`, ttlMs)
      const cut = await cutOff(leader)
      await Promise.all([contenders.allServed(RECOVERY_MS), sleep(ttlMs + 500)])
      expect(isElsewhere()).toBe(true)
      await Promise.all(locks.map(expectKept))
      cut.heal()
      await cluster.healthy()
      await contenders.allServed(RECOVERY_MS)
      await Promise.all(locks.map(expectKept))
      for (const kept of locks) expect(await within(RECOVERY_MS, 'an answer', kept.release())).toBe(true)
    }
    expectOrder(await contenders.end(RECOVERY_MS))
  })

  // etcd 3.4.23 may end leases that were renewed while its leader stood still (etcd#15247): in a third of the rounds. Then for a
  // moment both believe that they hold: the one is told, and the fence tells its late write from the other's.
  it('a leader that stands still for longer than the TTL: whoever has lost its lock is told, and what it still writes is refused', async (context) => {
    const gate = new Gate('advances on reads', () => {})
    const managers = await Promise.all(Array.from({ length: 4 }, () => open(cluster.url)))
    const next = await open(cluster.url)
    let early = 0
    for (let round = 0; round < STILL_ROUNDS && early === 0; round++) {
      // What is deleted is to be heard of at once.
      const raw = createEtcdClient({ endpoints: (await cluster.followers()).map(({ endpoint }) => endpoint) })
      onTestFinished(() => raw.close())
      const pairs = await Promise.all(managers.map((locks, i) => Pair.of(`still ${round} ${i}`, locks, next, raw)))
      for (const pair of pairs) expect(pair.write(gate, pair.lock)).toBe(true)
      const leader = await cluster.leader()
      await leader.pause()
      await sleep(STILL_MS)
      await leader.resume()
      await cluster.healthy()
      await sleep(TOLD_MS)
      for (const pair of pairs) {
        const isEarly = await pair.wasEarly()
        if (isEarly) early++
        const second = await within(RECOVERY_MS, 'the next one', pair.next)
        expect(second.fence).toBeGreaterThan(pair.lock.fence)
        expect(pair.lostAt).toBeLessThan(pair.grantedAt + (isEarly ? TOLD_MS : 0))
        expect(pair.write(gate, second)).toBe(true)
        expect(pair.write(gate, pair.lock)).toBe(false)
        // Not always true: its lease may have been among those that ended.
        await within(RECOVERY_MS, 'an answer', second.release())
      }
    }
    if (early === 0) context.skip(`etcd has ended no lease early in ${STILL_ROUNDS} rounds`)
  })

  it('a member that is silent though its connection is well: leases are renewed elsewhere', async () => {
    const [follower] = await cluster.followers()
    const { locks, own, isElsewhere, openAll } = await openAt(follower!)
    const lock = await locks.lock('silent', { ttlMs: 4_000 })
    const { signal } = lock
    await openAll()
    // It has lost its leader, and does not say so where leases are renewed: calls find out, but that is another connection.
    const cut = await cutOff(follower!)
    own.hold({ direction: 'down', only: sends('/etcdserverpb.Watch/Watch') })
    expect(isElsewhere()).toBe(false)
    await sleep(5_000)
    expect(signal.aborted).toBe(false)
    lock.assertHeld()
    expect(isElsewhere()).toBe(true)
    cut.heal()
    expect(await within(RECOVERY_MS, 'an answer', lock.release())).toBe(true)
  })

  it('no majority: whoever holds knows in time, who comes waits for it, and when it is back all goes on', async () => {
    const [holder, next] = (await route.spawnMany(2)) as [Worker, Worker]
    const locks = await open(cluster.url)
    const first = await holder.call('lock', 'minority', { ttlMs: 1_500 })
    const waiting = next.call('lock', 'minority', { ttlMs: 1_500 })
    await queued(locks, 'minority', 1)
    const [one, two] = cluster.nodes
    await Promise.all([one!.pause(), two!.pause()])
    const lost = await within(RECOVERY_MS, 'the loss', holder.event('lost'))
    expect(lost.error).toBe('OwnershipLostError')
    // Longer than one request may take.
    const newcomer = open(cluster.url, { connectTimeoutMs: RECOVERY_MS })
    await sleep(2_500)
    await Promise.all([one!.resume(), two!.resume()])
    await within(RECOVERY_MS, 'a newcomer', newcomer)
    const second = await within(RECOVERY_MS, 'the next one', waiting)
    expect(second.fence).toBeGreaterThan(first.fence)
    expect(overlaps([...holder.holds(), ...next.holds()])).toEqual([])
  })

  it('no majority: a session can be closed all the same, and what it had is free when it is back', async () => {
    const [locks, others] = [await open(cluster.url), await open(cluster.url)]
    const before = await locks.session({ ttlMs: 30_000 })
    const mutex = new Mutex(before, 'minority-mutex')
    await mutex.lock()
    const [one, two] = cluster.nodes
    await Promise.all([one!.pause(), two!.pause()])
    const opening = locks.session({ ttlMs: 30_000 }).then((session) => session.close(), () => {})
    const startedAt = performance.now()
    await Promise.all([before.close(), opening])
    expect(performance.now() - startedAt).toBeLessThan(15_000)
    expect(before.signal.aborted).toBe(true)
    await Promise.all([one!.resume(), two!.resume()])
    const next = new Mutex(await within(RECOVERY_MS, 'another session', others.session()), 'minority-mutex')
    await within(RECOVERY_MS, 'what was held', next.lock())
    expect(next.rev).toBeGreaterThan(mutex.rev)
  })
})

describe('a server that', () => {
  it('has no space left says so, and lets go of what is held', async () => {
    await using server = await startEtcd({ quotaBytes: 300_000 })
    const locks = await open(server.url)
    const [held, other, given] = [await locks.lock('held'), await locks.lock('other'), await locks.lock('given')]
    // Leases that are there. No more are granted later.
    const second = await open(server.url)
    await Promise.all([locks.lock('long', { ttlMs: 60_000 }), second.lock('second')])
    const filler = 'x'.repeat(50_000)
    for (let i = 0; i < 20; i++) await server.ctl('put', `filler ${i}`, filler).catch(() => {})
    const refused = await locks.lock('new', { waitMs: 500 }).catch((error: unknown) => error as Error)
    expect((refused as Error).message).toContain('database space exceeded')
    // In one breath with one that is refused: they are one request, which fails, and then the release is one. What may have been put all the
    // same is deleted by a third.
    const during = await callsDuring(server, async () => {
      const [newer, released] = await Promise.all([locks.lock('newer', { waitMs: 500 }).catch((error: unknown) => error as Error), held.release()])
      expect((newer as Error).message).toContain('database space exceeded')
      expect(released).toBe(true)
    })
    expect([2, 3]).toContain(during['Txn'])
    // What has a condition of its own is within the transaction, and carried out by 3.4.
    await other.extend(60_000)
    expect(other.remainingMs).toBeGreaterThan(50_000)
    const adopted = await second.adopt(given.transfer())
    adopted.assertHeld()
    expect(await adopted.release()).toBe(true)
    const tried = await locks.tryLock('tried')
    expect(await tried!.release()).toBe(true)
    expect(await other.release()).toBe(true)
    await expect(locks.session()).rejects.toThrow('database space exceeded')
    await server.ctl('del', '--prefix', 'filler')
    await server.ctl('compact', JSON.parse(await server.ctl('get', 'x', '-w', 'json')).header.revision)
    await server.ctl('defrag')
    await server.ctl('alarm', 'disarm')
    expect(await (await locks.lock('again')).release()).toBe(true)
  })

  it('grants no lease for less than 8 s: locks last as long, as soon as that is known, also for who has not asked before', async () => {
    await using server = await startEtcd({ args: ['--election-timeout=5000'] })
    const locks = createLocks(etcdBackend({ endpoints: [server.endpoint] }), { prefix: 'test', ttlMs: 1_000 })
    onTestFinished(() => locks.close())
    await (await locks.lock('k')).release()
    const lock = await locks.lock('k')
    expect(lock.remainingMs).toBeGreaterThan(7_000)
    expect(lock.remainingMs).toBeLessThanOrEqual(8_000)
  })

  it('takes 16 operations at once: 100 locks that are asked for together are held, and released', async () => {
    await using server = await startEtcd({ args: ['--max-txn-ops=16'] })
    const locks = await open(server.url)
    const during = await callsDuring(server, async () => {
      const held = await Promise.all(Array.from({ length: 100 }, (_, i) => locks.lock(`k${i}`)))
      for (const lock of held) lock.assertHeld()
      expect(await Promise.all(held.map((lock) => lock.release()))).toEqual(held.map(() => true))
    })
    // So many are left when what is too much is halved.
    expect(during['Txn']).toBeGreaterThanOrEqual(100 / 16 + 100 / 16)
  })

  it('takes 64 KiB at once: 120 claims with 4 KiB of metadata each are held', async () => {
    await using server = await startEtcd({ args: ['--max-request-bytes=65536'] })
    const locks = await open(server.url)
    const metadata = 'x'.repeat(4_000)
    const held = await Promise.all(Array.from({ length: 120 }, (_, i) => locks.lock(`k${i}`, { metadata })))
    for (const lock of held) lock.assertHeld()
    expect(await server.ctl('get', '--prefix', 'test/k', '--keys-only').then((text) => text.match(/^test\/k/gm))).toHaveLength(120)
    expect(await Promise.all(held.map((lock) => lock.release()))).toEqual(held.map(() => true))
  })

  it('forgets tokens after a second: renewals, claims and those who wait go on', async () => {
    const password = 'canary-of-etcd'
    await using server = await startEtcd({ password, tokenTtlS: 1 })
    const [a, b] = [await open(server.url, { ttlMs: 2_000 }), await open(server.url, { ttlMs: 2_000 })]
    const first = await a.lock('k')
    const lost = once(first.signal, 'abort')
    const waiting = b.lock('k')
    await queued(a, 'k', 1)
    await sleep(4_000)
    first.assertHeld()
    const another = await within(RECOVERY_MS, 'a claim', a.lock('another'))
    await first.release()
    const second = await within(RECOVERY_MS, 'its turn', waiting)
    expect(second.fence).toBeGreaterThan(first.fence)
    await sleep(3_000)
    second.assertHeld()
    await Promise.all([second.release(), another.release()])
    expect(await Promise.race([lost, sleep(0, 'not lost')])).toBe('not lost')
  })

  it('is killed and started again: what was granted is held, and fences go on', async () => {
    await using server = await startEtcd()
    const locks = await open(server.url, { ttlMs: 30_000 })
    let last = 0n
    for (let i = 0; i < 3; i++) {
      const lock = await within(RECOVERY_MS, 'a lock', locks.lock('k'))
      expect(lock.fence).toBeGreaterThan(last)
      last = lock.fence
      await server.kill()
      await server.start()
      const other = await open(server.url)
      expect(await within(RECOVERY_MS, 'an answer', other.tryLock('k'))).toBeNull()
      lock.assertHeld()
      expect(await within(RECOVERY_MS, 'an answer', lock.release())).toBe(true)
    }
  })
})
