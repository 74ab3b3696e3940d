/** etcd: a network that swallows, holds back and delays, and a holder that stands still. */
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { connect, type ConnectOptions, type LockManager } from '../../src/index.js'
import { Gate } from '../fault/gate.js'
import { blackHole } from '../support/black-hole.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { startProxy, type Proxy } from '../support/tcp-proxy.js'
import { within } from '../support/within.js'
import { spawnWorker } from '../support/workers.js'

const TTL_MS = 2_000
/** A lease lasts a second longer, and etcd looks for those that have expired twice a second. */
const LEASE_MS = 4_000
let server: EtcdServer
let proxy: Proxy
const open: LockManager[] = []

beforeAll(async () => {
  server = await startEtcd()
})
afterAll(() => server.stop())
beforeEach(async () => {
  proxy = await startProxy({ to: { port: server.port } })
})
afterEach(async () => {
  await proxy.heal()
  proxy.cut()
  await Promise.all(open.splice(0).map((locks) => locks.close()))
  await proxy.close()
})

async function manager(url: string, options: ConnectOptions = {}): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test', ttlMs: TTL_MS, ...options })
  open.push(locks)
  return locks
}

describe('a black-holed connection', () => {
  it.each(['drop', 'hold'] as const)('(%s): the signal aborts within the TTL, and before an intruder has the key', async (fault) => {
    const report = await blackHole(
      {
        async acquire(url, ttlMs) {
          const lock = await (await manager(url)).lock('k', { ttlMs })
          let heard = false
          lock.signal.addEventListener('abort', () => (heard = true))
          // Only the event counts here: nobody has to ask.
          return { lost: () => heard, dispose: () => {} }
        },
        async intrude(url, ttlMs, signal) {
          const lock = await (await manager(url)).lock('k', { ttlMs, signal })
          setTimeout(() => void lock.release(), 100)
        },
      },
      { ttlMs: TTL_MS, fault, afterMs: 1_000, on: { proxy, holderUrl: proxy.url('etcd'), directUrl: server.url } },
    )
    expect(report.intruderAtMs).toBeDefined()
    expect(report.lostWhenIntruded).toBe(true)
    expect(report.lostAtMs).toBeLessThan(TTL_MS)
  })
})

describe('answers that are late', () => {
  it('do not make a hold longer: it is counted from the sending', async () => {
    const locks = await manager(proxy.url('etcd'))
    await locks.withLock('warm up', () => {})
    const slow = proxy.delay(700, { direction: 'down' })
    const lock = await locks.lock('k')
    expect(lock.remainingMs).toBeLessThan(TTL_MS - 690)
    slow.heal()
  })

  it('by 0.8 × TTL are not believed: the claim is asked for again', async () => {
    const locks = await manager(proxy.url('etcd'))
    await locks.withLock('warm up', () => {})
    const slow = proxy.delay(0.85 * TTL_MS, { direction: 'down' })
    const locking = locks.lock('k')
    await sleep(0.5 * TTL_MS)
    slow.heal()
    const lock = await locking
    expect(lock.remainingMs).toBeGreaterThan(0.2 * TTL_MS)
    lock.assertHeld()
    expect(await lock.release()).toBe(true)
  })
})

describe('a holder that stands still', () => {
  it('for longer than its lease knows it when it goes on, and what it writes late is refused', async () => {
    const gate = new Gate('advances on reads', () => {})
    const visit = (fence: bigint, what: 'read' | 'write') => gate.visit({ op: `${fence}`, key: 'k', fence, workload: 'fenced', what })
    const holder = await spawnWorker({ url: server.url, options: { ttlMs: TTL_MS } })
    const first = await holder.call('lock', 'k')
    const read = visit(first.fence, 'read')
    await holder.stop()
    const stoppedAt = performance.now()
    const second = await within(2 * LEASE_MS, 'the next one', (await manager(server.url)).lock('k'))
    expect(performance.now() - stoppedAt).toBeGreaterThan(TTL_MS / 2)
    expect(second.fence).toBeGreaterThan(first.fence)
    visit(second.fence, 'read')
    await holder.cont()
    expect(await holder.call('probe', first.id)).toMatchObject({ aborted: true, assertHeld: 'OwnershipLostError', remainingMs: 0 })
    expect(gate.visit({ op: 'late', key: 'k', fence: first.fence, workload: 'fenced', what: 'write', base: read.value }).accepted).toBe(false)
    second.assertHeld()
  })
})
