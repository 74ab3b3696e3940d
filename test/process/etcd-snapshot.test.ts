/** A snapshot is restored: what came after it never happened. No lock can be kept through that, but whoever believes in it is told, and nobody waits for ever. */
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it, onTestFinished } from 'vitest'
import { createEtcdClient } from '../../src/backends/etcd/client/client.js'
import { connect, Election, type LockManager } from '../../src/index.js'
import { Observer } from '../../src/testing/managers.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { until } from '../support/until.js'
import { within } from '../support/within.js'

const TTL_MS = 2_000
const PATIENCE_MS = 20_000
/** So many revisions that what happens by itself afterwards does not make up for them. */
const REVISIONS = 500

async function manager(server: EtcdServer): Promise<LockManager> {
  const locks = await connect(server.url, { prefix: 'test', ttlMs: TTL_MS })
  onTestFinished(() => locks.close())
  // Its lease is in the snapshot, too.
  await (await locks.lock('warm')).release()
  return locks
}

async function writeMuch(server: EtcdServer): Promise<void> {
  const raw = createEtcdClient({ endpoints: [server.endpoint] })
  for (let i = 0; i < REVISIONS; i++) await raw.txn({ success: [{ kind: 'put', key: 'filler', value: String(i) }] })
  await raw.close()
}

it('locks of before it are held, those of after it are lost in time, and whoever waited has them', async () => {
  await using server = await startEtcd()
  const [a, b] = [await manager(server), await manager(server)]
  const before = await a.lock('before', { ttlMs: 60_000 })
  const snapshot = await server.snapshot()
  await writeMuch(server)
  const after = await a.lock('after')
  const waiting = b.lock('after')
  await until('it to wait', async () => {
    for await (const { key, waiters } of a.inspect()) if (key === 'after' && waiters.length > 0) return true
    return false
  })
  let lostAt = Infinity
  after.signal.addEventListener('abort', () => (lostAt = performance.now()))
  await server.restore(snapshot)
  const restoredAt = performance.now()
  const next = await within(PATIENCE_MS, 'its turn', waiting)
  expect(lostAt - restoredAt).toBeLessThan(TTL_MS)
  next.assertHeld()
  before.assertHeld()
  expect(await b.tryLock('before')).toBeNull()
  expect(await before.release()).toBe(true)
  expect(await after.release()).toBe(false)
  expect(await next.release()).toBe(true)
})

it('whoever observes an election hears of who leads since, and of all that is said', async () => {
  await using server = await startEtcd()
  const [a, b] = [await manager(server), await manager(server)]
  const election = new Election(await a.session({ ttlMs: 60_000 }), 'leader')
  await election.campaign('old')
  const observer = new Observer(new Election(await b.session({ ttlMs: 60_000 }), 'leader'))
  await observer.sees('old')
  const snapshot = await server.snapshot()
  await writeMuch(server)
  await election.proclaim('new')
  await observer.sees('new')
  await server.restore(snapshot)
  // As long as that it may be a member that is behind.
  await sleep(6_000)
  await until('a proclamation', () => election.proclaim('newest').then(() => true))
  await within(PATIENCE_MS, 'the newest', observer.sees('newest'))
  await observer.stop()
  expect(observer.values).toEqual(['old', 'new', 'old', 'newest'])
})
