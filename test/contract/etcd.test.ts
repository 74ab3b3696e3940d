import { afterAll, beforeAll, describe, it } from 'vitest'
import { etcdBackend } from '../../src/backends/etcd/index.js'
import { conformance } from '../../src/testing/index.js'
import { startEtcdCluster, type EtcdCluster } from '../support/etcd-cluster.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'

// Of a server whose leaders are elected in half a second, as the tests' are.
const traits = {
  fair: true, wakes: 'push', minTtlMs: 1_000, counted: true, tellsExpiry: false, keepsPlaces: false, heartbeatMs: Infinity, transactions: true, ownership: true,
} as const

describe('one etcd', () => {
  let server: EtcdServer
  beforeAll(async () => {
    server = await startEtcd()
  })
  afterAll(() => server.stop())

  conformance(() => etcdBackend(server.url), traits, { describe, it })
})

// Each client of three has a member of its own, and the next ones the next.
describe('an etcd cluster of three', () => {
  let cluster: EtcdCluster
  let opened = 0
  beforeAll(async () => {
    cluster = await startEtcdCluster()
  })
  afterAll(() => cluster.stop())

  conformance(() => etcdBackend(cluster.nodes[opened++ % 3]!.url), traits, { describe, it })
})
