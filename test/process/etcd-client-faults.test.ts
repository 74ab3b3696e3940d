/** The client of etcd when servers stop, die or are cut off, and when connections break. */
import { createServer, type AddressInfo, type Server } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { createEtcdClient, type EtcdClient, type EtcdOptions } from '../../src/backends/etcd/client/client.js'
import type { EtcdError } from '../../src/backends/etcd/client/errors.js'
import { startEtcdCluster, type EtcdCluster } from '../support/etcd-cluster.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { watching } from '../support/etcd-watching.js'
import { startProxy, type Proxy } from '../support/tcp-proxy.js'
import { within } from '../support/within.js'

const bytes = (text: string) => Buffer.from(text)
const key = bytes('key')
const put = (client: EtcdClient) => client.txn({ success: [{ kind: 'put', key, value: bytes('value') }] })
const failure = (work: Promise<unknown>) =>
  work.then(
    () => Promise.reject(new Error('It should have failed')),
    (error: EtcdError) => error,
  )
const took = async (work: Promise<unknown>) => {
  const startedAt = performance.now()
  await work
  return performance.now() - startedAt
}

const unhandled: unknown[] = []
const noteUnhandled = (reason: unknown) => unhandled.push(reason)
const open: EtcdClient[] = []
function connect(options: EtcdOptions): EtcdClient {
  const client = createEtcdClient(options)
  open.push(client)
  return client
}
beforeAll(() => void process.on('unhandledRejection', noteUnhandled))
afterAll(() => void process.off('unhandledRejection', noteUnhandled))
afterEach(async () => {
  await Promise.all(open.splice(0).map((client) => client.close()))
  expect(unhandled).toEqual([])
})

describe('one server behind a proxy', () => {
  let etcd: EtcdServer
  let proxy: Proxy
  let direct: EtcdClient

  beforeAll(async () => {
    etcd = await startEtcd()
    proxy = await startProxy({ to: { port: etcd.port } })
    direct = createEtcdClient({ endpoints: [etcd.endpoint] })
  })
  afterAll(async () => {
    await direct.close()
    await proxy.close()
    await etcd.stop()
  })
  afterEach(async () => {
    proxy.onData = undefined
    await proxy.heal()
    proxy.cut()
  })

  const through = (options: Partial<EtcdOptions> = {}) => connect({ endpoints: [proxy.url('http')], ...options })
  const version = async () => (await direct.range({ key })).kvs[0]?.version ?? 0n

  it('a transaction whose answer is lost is not sent again', async () => {
    const client = through()
    await put(client)
    const before = await version()
    const lost = proxy.drop({ direction: 'down' })
    const answer = failure(put(client))
    await expect.poll(version).toBe(before + 1n)
    proxy.reset()
    lost.heal()
    expect(await answer).toMatchObject({ reason: 'unreachable', mayBeDone: true, transient: true })
    await put(client)
    expect(await version()).toBe(before + 2n)
  })

  it('a read whose answer is lost is sent again', async () => {
    const client = through()
    await put(client)
    const lost = proxy.drop({ direction: 'down' })
    const answer = client.range({ key })
    await sleep(100)
    proxy.reset()
    lost.heal()
    expect((await answer).count).toBe(1)
  })

  it('a read on a connection that has gone silent is asked again on another', async () => {
    const client = through()
    await put(client)
    const silent = new Set(proxy.connections.map(({ id }) => id))
    const fault = proxy.blackHole({ only: ({ id }) => silent.has(id) })
    expect((await client.range({ key })).count).toBe(1)
    // By now the others know better, too.
    expect(await took(put(client))).toBeLessThan(500)
    fault.heal()
  })

  it('a transaction that is not answered in time may be done', async () => {
    const client = through({ callTimeoutMs: 300 })
    await put(client)
    proxy.blackHole()
    expect(await failure(put(client))).toMatchObject({ reason: 'timeout', code: 4, mayBeDone: true, transient: true })
  })

  it('a transaction that was never sent is not done', async () => {
    proxy.blackHole()
    const client = through({ callTimeoutMs: 300 })
    expect(await failure(put(client))).toMatchObject({ mayBeDone: false, transient: true })
  })

  it('a lease whose grant was not heard of is the one that is given', async () => {
    const client = through()
    await put(client)
    const lost = proxy.drop({ direction: 'down' })
    const granted = client.leaseGrant(77, 7_777n)
    await expect.poll(async () => (await direct.leaseTimeToLive(7_777n, false)).grantedTtlS).toBe(77)
    proxy.reset()
    lost.heal()
    expect(await granted).toEqual({ id: 7_777n, ttlS: 77 })
    // The same with its end.
    const lostAgain = proxy.drop({ direction: 'down' })
    const revoked = client.leaseRevoke(7_777n)
    await expect.poll(async () => (await direct.leaseTimeToLive(7_777n, false)).ttlS).toBe(-1)
    proxy.reset()
    lostAgain.heal()
    await revoked
  })

  it('what cannot be reached is said to be, and is back as soon as it is back', async () => {
    const client = through({ callTimeoutMs: 1_000 })
    await put(client)
    expect(client.trouble).toBeUndefined()
    proxy.refuse()
    proxy.cut()
    // What is sent before the end is heard of may be done.
    await sleep(50)
    const error = await failure(put(client))
    expect(error).toMatchObject({ reason: 'unreachable', mayBeDone: false, transient: true })
    expect(error.message).toContain('ECONNREFUSED')
    expect(client.trouble?.message).toContain('ECONNREFUSED')
    await proxy.accept()
    await expect.poll(() => put(client).then(() => true, () => false), { timeout: 3_000 }).toBe(true)
    expect(client.trouble).toBeUndefined()
  })

  it('renewals go on when the connection breaks', async () => {
    const client = through()
    const { id } = await client.leaseGrant(60)
    for (let i = 0; i < 10; i++) {
      expect(await client.keepAlive(id, 500)).toBe(60)
      proxy.reset()
    }
  })

  it('renewals that are due go out again on another connection when one is silent', async () => {
    // Half of it, which is as long as any stream may be silent, is well above the bound.
    const client = through({ callTimeoutMs: 6_000 })
    const { id } = await client.leaseGrant(60)
    await client.keepAlive(id, 300)
    const silent = new Set(proxy.connections.map((connection) => connection.id))
    const fault = proxy.blackHole({ only: (connection) => silent.has(connection.id) })
    const asks = Promise.all([client.keepAlive(id, 300), client.keepAlive(id, 300)])
    expect(await took(asks)).toBeLessThan(1_400)
    expect(await asks).toEqual([60, 60])
    fault.heal()
  })

  it('renewals that are not answered at all fail in time', async () => {
    const client = through({ callTimeoutMs: 600 })
    await client.keepAlive(1n, 200)
    const fault = proxy.blackHole()
    const error = await within(1_000, 'the failure', failure(client.keepAlive(1n, 200)))
    expect(error).toMatchObject({ reason: 'timeout', transient: true })
    fault.heal()
    await expect.poll(() => client.keepAlive(1n, 200).catch(() => -1), { timeout: 5_000 }).toBe(0)
  })

  it('a watch is asked for again on another connection when one is silent, and so are those that were there', async () => {
    const client = through({ callTimeoutMs: 600 })
    const before = watching(client, { key })
    await before.hears('created')
    const silent = new Set(proxy.connections.map((connection) => connection.id))
    const fault = proxy.blackHole({ only: (connection) => silent.has(connection.id) })
    const watch = watching(client, { key })
    // Long before a PING has found out.
    expect(await took(watch.hears('created'))).toBeLessThan(2_000)
    await before.hears('created', 2)
    await put(direct)
    await Promise.all([watch.hears('put key'), before.hears('put key')])
    fault.heal()
  })

  it('a server that is slow to begin a watch is given the time', async () => {
    const client = through({ callTimeoutMs: 200 })
    await put(client)
    // There and back: shorter than it takes to give up a connection that is being made.
    const fault = proxy.delay(75)
    const watch = watching(client, { key })
    await watch.hears('created')
    fault.heal()
  })

  it('watches come back, also those that are asked for meanwhile', async () => {
    const client = through()
    const watch = watching(client, { key })
    await watch.hears('created')
    proxy.refuse()
    proxy.cut()
    await watch.hears('lost')
    const meanwhile = watching(client, { key })
    const neverMind = watching(client, { key })
    neverMind.close()
    await sleep(300)
    await put(direct)
    await proxy.accept()
    await Promise.all([watch.hears('created', 2), meanwhile.hears('created')])
    await put(direct)
    await Promise.all([watch.hears('put key'), meanwhile.hears('put key')])
    expect(watch.heard).toEqual(['created', 'lost', 'created', 'put key'])
    expect(meanwhile.heard).toEqual(['created', 'put key'])
    expect(neverMind.heard).toEqual([])
  })

  it('a silent connection is noticed by a watch, and a healthy one is not disturbed by our asking', async () => {
    const [client, healthy] = [through(), connect({ endpoints: [etcd.endpoint] })]
    const [watch, other] = [watching(client, { key }), watching(healthy, { key })]
    await Promise.all([watch.hears('created'), other.hears('created')])
    const silent = new Set(proxy.connections.map(({ id }) => id))
    const fault = proxy.blackHole({ only: ({ id }) => silent.has(id) })
    await within(11_000, 'the loss', watch.hears('lost'))
    await within(2_000, 'the next', watch.hears('created', 2))
    fault.heal()
    // With what has passed, long enough for a server that counts our questions to lose patience.
    await sleep(11_000)
    expect(other.heard).toEqual(['created'])
    await put(direct)
    await Promise.all([watch.hears('put key'), other.hears('put key')])
  })
})

describe('servers that accept connections and say nothing', () => {
  const holes: Server[] = []
  let etcd: EtcdServer
  let endpoints: string[]

  beforeAll(async () => {
    etcd = await startEtcd()
    for (let i = 0; i < 3; i++) {
      const hole = createServer((socket) => socket.on('error', () => {}).resume()).listen(0, '127.0.0.1')
      await new Promise((resolve) => hole.once('listening', resolve))
      holes.push(hole)
    }
    endpoints = [...holes.map((hole) => `http://127.0.0.1:${(hole.address() as AddressInfo).port}`), etcd.endpoint]
  })
  afterAll(async () => {
    for (const hole of holes) hole.close()
    await etcd.stop()
  })

  it('get no call and no stream', async () => {
    // Each begins somewhere else.
    const clients = Array.from({ length: 8 }, () => connect({ endpoints }))
    await Promise.all(clients.map(put))
    const ttls = await Promise.all(clients.map((client) => client.keepAlive(1n, 500)))
    expect(ttls).toEqual(clients.map(() => 0))
  })
})

describe('a cluster', () => {
  let cluster: EtcdCluster

  beforeAll(async () => {
    cluster = await startEtcdCluster(3)
  })
  afterAll(() => cluster.stop())
  afterEach(() => cluster.healthy())

  /** How long until it works again, asked by everybody at once. */
  const worksAgain = (clients: readonly EtcdClient[]) => {
    const works = (client: EtcdClient) => put(client).then(() => true, () => false)
    return took(Promise.all(clients.map((client) => expect.poll(() => works(client), { timeout: 8_000 }).toBe(true))))
  }

  it('goes on when any node is killed', async () => {
    const clients = Array.from({ length: 6 }, () => connect({ endpoints: cluster.endpoints }))
    await Promise.all(clients.map(put))
    const watches = clients.map((client) => watching(client, { key }))
    await Promise.all(watches.map((watch) => watch.hears('created')))
    const { id } = await clients[0]!.leaseGrant(60)
    const leader = await cluster.leader()
    await leader.kill()
    await worksAgain(clients)
    const ttls = clients.map((client) => expect.poll(() => client.keepAlive(id, 500).catch(() => -1)).toBe(60))
    await Promise.all(ttls)
    for (const watch of watches) await watch.hears('put key')
    await leader.start()
  })

  it('does not notice that a follower is refusing', async () => {
    const [follower] = await cluster.followers()
    await follower!.kill()
    const clients = Array.from({ length: 6 }, () => connect({ endpoints: cluster.endpoints }))
    // No client tries in vain for longer than it takes to be refused.
    expect(await took(Promise.all(clients.map(put)))).toBeLessThan(1_000)
    expect(await took(Promise.all(clients.map((client) => client.keepAlive(1n, 500))))).toBeLessThan(1_000)
    await follower!.start()
  })

  it('does not notice that a follower is stopped, but for what was on its way', async () => {
    const clients = Array.from({ length: 6 }, () => connect({ endpoints: cluster.endpoints }))
    await Promise.all(clients.map(put))
    const [follower] = await cluster.followers()
    await follower!.pause()
    const reads = clients.map((client) => client.range({ key }))
    expect((await Promise.all(reads)).map(({ count }) => count)).toEqual(clients.map(() => 1))
    expect(await took(Promise.all(clients.map(put)))).toBeLessThan(1_000)
    const fresh = Array.from({ length: 6 }, () => connect({ endpoints: cluster.endpoints }))
    await Promise.all(fresh.map(put))
    await follower!.resume()
  })

  it('renews leases when the node that is asked has lost the others', async () => {
    const clients = Array.from({ length: 6 }, () => connect({ endpoints: cluster.endpoints }))
    const { id } = await clients[0]!.leaseGrant(60)
    await Promise.all(clients.map((client) => client.keepAlive(id, 500)))
    const [follower] = await cluster.followers()
    const partition = await cluster.cutOff(follower!)
    for (let i = 0; i < 4; i++) {
      const ttls = await Promise.all(clients.map((client) => client.keepAlive(id, 500)))
      expect(ttls).toEqual(clients.map(() => 60))
      await sleep(300)
    }
    partition.heal()
  })

  it('says so if it has no leader, to calls and to watches', async () => {
    const [follower] = await cluster.followers()
    const client = connect({ endpoints: [follower!.endpoint] })
    await put(client)
    const watch = watching(client, { key })
    await watch.hears('created')
    const partition = await cluster.cutOff(follower!)
    await within(6_000, 'the loss', watch.hears('lost'))
    const error = await failure(put(client))
    expect(error.message).toBe('etcd: no leader')
    expect(error).toMatchObject({ reason: 'unreachable', mayBeDone: false, transient: true })
    expect(client.trouble?.message).toBe('etcd: no leader')
    partition.heal()
    await worksAgain([client])
    await expect.poll(() => watch.count('created'), { timeout: 5_000 }).toBeGreaterThan(1)
  })

  it('goes on when the leader is stopped', async () => {
    const clients = Array.from({ length: 6 }, () => connect({ endpoints: cluster.endpoints }))
    await Promise.all(clients.map(put))
    const leader = await cluster.leader()
    await leader.pause()
    await worksAgain(clients)
    await leader.resume()
  })
})
