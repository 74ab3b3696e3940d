/**
 * What a run is about: workers that ask for locks, each on its own way to the store, and the servers of the store. Faults are about
 * one of them.
 */
import { randomBytes } from 'node:crypto'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { connect } from '../../src/index.js'
import { onCluster, onSentinel, onSingle, type Deployment } from '../support/redis-kinds.js'
import { startEtcdCluster, type EtcdCluster } from '../support/etcd-cluster.js'
import { startRedisCluster } from '../support/redis-cluster.js'
import { startRedisSentinel } from '../support/redis-sentinel.js'
import { makeFolder } from '../support/processes.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'
import { mariaDb, pgBouncer, postgres, type SqlDeployment, type SqlKind } from '../support/sql-kinds.js'
import type { Proxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'
import { canFakeMachines, Machine } from './machine.js'
import type { Random } from './random.js'

export type BackendName = 'memory' | 'sqlite' | 'etcd' | keyof typeof starters | keyof typeof databases

/** How one worker gets to the store. */
export interface Way {
  readonly url: string
  /** Undefined where there is no network. */
  readonly proxy?: Proxy
  /** A file that exports `connect`, if it is not the package itself. */
  readonly library?: string
  /** The machine that the worker is on; undefined where that cannot be faked. */
  readonly machine: Machine | undefined
}

export interface Environment {
  readonly name: BackendName
  readonly ways: readonly Way[]
  /** How many managers each worker has: several where one process is all there is. */
  readonly managers: number
  readonly servers?: Servers
  readonly redis?: Redis
  readonly sql?: SqlDeployment
  readonly etcd?: Etcd
  /** Where the store is on a disk that can be full: what to do when it is no longer. */
  readonly disk?: { readonly machines: readonly Machine[]; afterwards(): Promise<void> }
  /** By how much longer than its TTL the store keeps what a killed process held, at most; a second if not given. */
  readonly handOffMs?: number
  /** What it forgets, it has forgotten as a whole: nothing of it goes on renewing. */
  readonly forgetsAsOne?: boolean
  /** Must not appear in anything that is printed. */
  readonly canary?: string
  /** Something that the store does at once, unless the machine has too much to do. */
  probe?(): Promise<unknown>
  /** Until it serves everything again. */
  healthy(): Promise<void>
  /** What is left on the store of locks that nobody has any more. */
  leftovers(): Promise<string[]>
  stop(): Promise<void>
}

/** What can be stopped, killed and starved. */
export type Server = Pick<RedisServer, 'port' | 'pid' | 'isUp' | 'start' | 'kill' | 'pause' | 'resume'>

/** The servers, for faults that are about them. */
export interface Servers {
  /** Those that clients depend on. */
  masters(): Promise<readonly Server[]>
  /** What is kept survives that a server is killed, and no other takes over. */
  readonly isDurable: boolean
  /** That all servers are on; not the Sentinels, nor a pooler. */
  readonly machine: Machine | undefined
}

export interface Redis extends Omit<Servers, 'masters'> {
  readonly deployment: Deployment
  /** If it has ended by itself. */
  restart?(): Promise<void>
  failover?(random: Random): Promise<unknown>
  replicas?(): Promise<readonly RedisServer[]>
}

export interface Etcd {
  readonly cluster: EtcdCluster
  /** All that was before is forgotten, but for what is there. */
  compact(): Promise<unknown>
  /** That of the clients, to the same one: their tokens are not good any more. */
  changePassword(): Promise<unknown>
  /** By hand: all claims, and perhaps the mailboxes of their leases. */
  deleteKeys(which: 'claims' | 'claims and mailboxes'): Promise<unknown>
}

export const PREFIX = 'nemesis'
const aMachine = () => (canFakeMachines ? new Machine() : undefined)
const fixture = (name: string) => new URL(`../support/fixtures/${name}.mjs`, import.meta.url).href
const NODE_REDIS = fixture('connect-with-node-redis')
const POSTGRES_JS = fixture('connect-with-postgres-js')

export async function startEnvironment(name: BackendName, workers: number): Promise<Environment> {
  if (name === 'memory') return memory()
  if (name === 'sqlite') return sqlite(workers)
  const canary = `canary-${randomBytes(8).toString('hex')}`
  if (name === 'etcd') return onEtcd(canary, workers)
  if (isDatabase(name)) return onDatabase(name, databases[name], canary, workers)
  const user = ['--user', 'nemesis', 'on', `>${canary}`, '~*', '&*', '+@all']
  const redis = await starters[name](user)
  return onRedis(name, redis, canary, workers)
}

function isDatabase(name: keyof typeof starters | keyof typeof databases): name is keyof typeof databases {
  return name in databases
}

function memory(): Environment {
  return {
    name: 'memory',
    ways: [{ url: 'memory:', machine: aMachine() }],
    managers: 6,
    healthy: async () => {},
    leftovers: async () => [],
    stop: async () => {},
  }
}

function sqlite(workers: number): Environment {
  const folder = makeFolder('nemesis')
  const url = `sqlite:${join(folder, 'locks.db')}`
  const ways = Array.from({ length: workers }, () => ({ url, machine: aMachine() }))
  const machines = ways.flatMap(({ machine }) => machine ?? [])
  return {
    name: 'sqlite',
    ways,
    managers: 1,
    ...(machines.length > 0 && { disk: { machines, afterwards: async () => {} } }),
    healthy: async () => {},
    leftovers: () => inUse(url),
    stop: async () => rmSync(folder, { recursive: true, force: true }),
  }
}

async function inUse(url: string): Promise<string[]> {
  const locks = await connect(url, { prefix: PREFIX })
  const keys: string[] = []
  for await (const { key } of locks.inspect()) keys.push(key)
  await locks.close()
  return keys
}

/** Counters of fences, and what transactions have written. */
const KEPT = ['fence', 'stm1']

const starters = {
  redis: async (user: readonly string[]): Promise<Redis> => {
    // So that a server that is killed has forgotten nothing: what it has answered is on the disk.
    const machine = aMachine()
    const server = await startRedis({ args: ['--appendonly', 'yes', '--appendfsync', 'always', ...user], env: machine?.env })
    const restart = () =>
      until('Redis to serve again', async () => {
        if (!server.isUp) await server.start()
        // One that is about to end does not write any more.
        await server.cli('SET', 'probe', 1)
        return true
      })
    return { deployment: onSingle(server, 'ioredis'), isDurable: true, machine, restart }
  },
  sentinel: async (user: readonly string[]): Promise<Redis> => {
    const machine = aMachine()
    const sentinel = await startRedisSentinel({ args: user, env: machine?.env })
    return {
      deployment: onSentinel(sentinel, 'ioredis'),
      isDurable: false,
      machine,
      failover: () => sentinel.failover(),
      replicas: () => sentinel.replicas(),
    }
  },
  cluster: async (user: readonly string[]): Promise<Redis> => {
    const machine = aMachine()
    const cluster = await startRedisCluster({ args: user, env: machine?.env })
    const failover = async (random: Random) =>
      cluster.failover(random.one(await cluster.masters()), random.one([undefined, 'FORCE', 'TAKEOVER'] as const))
    return { deployment: onCluster(cluster, 'ioredis'), isDurable: false, machine, failover }
  },
}

async function onRedis(name: BackendName, redis: Redis, canary: string, workers: number): Promise<Environment> {
  const { deployment } = redis
  const routes = await Promise.all(Array.from({ length: workers }, () => deployment.behindProxy()))
  return {
    name,
    servers: { ...redis, masters: () => deployment.masters() },
    redis,
    canary,
    managers: 1,
    ...(redis.isDurable && redis.machine && { disk: { machines: [redis.machine], afterwards: async () => redis.restart?.() } }),
    ways: routes.map(({ url, proxy }, i) => ({
      url: url.replace('://', `://nemesis:${canary}@`),
      proxy,
      machine: aMachine(),
      // Every third goes by the other client, where that knows all there is to know.
      ...(i % 3 === 2 && { library: NODE_REDIS }),
    })),
    // Where all is kept, the answer has to wait for the disk.
    probe: () => (redis.isDurable ? deployment.everywhere('SET', 'probe', 1) : deployment.everywhere('PING')),
    healthy: () => deployment.healthy(),
    leftovers: async () => (await deployment.keys(`${PREFIX}:*`)).filter((key) => !KEPT.some((kept) => key.startsWith(`${PREFIX}:${kept}`))),
    stop: async () => {
      await Promise.all(routes.map(({ proxy }) => proxy.close()))
      await deployment.stop()
    },
  }
}

interface DatabaseKind {
  readonly kind: SqlKind
  /** Every third worker goes by this one. */
  readonly otherClient?: string
}

/** What is left of claims, whether their locks know of them or not. */
const CLAIMS = 'SELECT count(*) AS count FROM holdfast_claims'

/** What was committed is on the disk, so that a server that is killed has forgotten nothing. */
const databases: Readonly<Record<'postgres' | 'pgbouncer' | 'mariadb', DatabaseKind>> = {
  postgres: { kind: postgres, otherClient: POSTGRES_JS },
  pgbouncer: { kind: pgBouncer, otherClient: POSTGRES_JS },
  mariadb: { kind: mariaDb },
}

async function onDatabase(name: BackendName, { kind, otherClient }: DatabaseKind, canary: string, workers: number): Promise<Environment> {
  const machine = aMachine()
  const sql = await kind.start({ password: canary, env: machine?.env })
  const { server } = sql
  await server.query('CREATE TABLE probes (count integer NOT NULL)')
  await server.query('INSERT INTO probes VALUES (0)')
  const routes = await Promise.all(Array.from({ length: workers }, () => sql.behindProxy()))
  // The answer has to wait for the disk.
  const probe = () => server.query('UPDATE probes SET count = count + 1')
  const restart = () =>
    until('the database to serve again', async () => {
      if (!server.isUp) await server.start()
      // One that is about to end does not write any more.
      await probe()
      return true
    })
  return {
    name,
    servers: { masters: async () => [server], isDurable: true, machine },
    sql,
    canary,
    managers: 1,
    ...(machine && { disk: { machines: [machine], afterwards: restart } }),
    ways: routes.map((route, i) => ({
      ...route,
      machine: aMachine(),
      ...(i % 3 === 2 && otherClient !== undefined && { library: otherClient }),
    })),
    probe,
    healthy: () => sql.healthy(),
    async leftovers() {
      const keys = await inUse(sql.url)
      const [{ count }] = (await server.query(CLAIMS)) as [{ count: string | number }]
      return Number(count) > 0 ? [...keys, `${count} claims`] : keys
    },
    async stop() {
      await Promise.all(routes.map(({ proxy }) => proxy.close()))
      await sql.stop()
    },
  }
}

const USER = 'nemesis'
/** A token that nobody uses for so long is not good any more: of one that is cut off, for instance. */
const TOKEN_TTL_S = 2

async function onEtcd(canary: string, workers: number): Promise<Environment> {
  // Each connection begins with a password, and to check it is meant to take long.
  const cluster = await startEtcdCluster(3, { tokenTtlS: TOKEN_TTL_S, args: ['--bcrypt-cost=4'] })
  const [node] = cluster.nodes
  // With no more rights than the docs ask for.
  await node!.ctl('user', 'add', `${USER}:${canary}`)
  await node!.ctl('role', 'add', USER)
  await node!.ctl('role', 'grant-permission', USER, 'readwrite', '--prefix=true', `${PREFIX}/`)
  await node!.ctl('user', 'grant-role', USER, USER)
  await cluster.enableAuth(canary)
  await cluster.healthy()
  const routes = await Promise.all(Array.from({ length: workers }, () => cluster.behindProxy()))
  const inPrefix = { key: base64(`${PREFIX}/`), range_end: base64(`${PREFIX}0`) }
  const claims = { ...inPrefix, key: base64(`${PREFIX}/&`) }
  return {
    name: 'etcd',
    etcd: {
      cluster,
      async compact() {
        const { header } = (await cluster.ask('kv/range', { key: base64('probe') })) as { header: { revision: string } }
        return cluster.ask('kv/compaction', { revision: header.revision }).catch((error: Error) => {
          // Nothing was written since the last time.
          if (!error.message.includes('has been compacted')) throw error
        })
      },
      changePassword: () => cluster.ask('auth/user/changepw', { name: USER, password: canary }),
      deleteKeys: (which) => cluster.ask('kv/deleterange', which === 'claims' ? claims : inPrefix),
    },
    // A lease lasts longer than the TTL, and etcd looks twice a second which are over (docs/backends/etcd.md).
    handOffMs: 2_000,
    forgetsAsOne: true,
    canary,
    managers: 1,
    ways: routes.map(({ url, proxy }) => ({ url: url.replace('://', `://${USER}:${canary}@`), proxy, machine: aMachine() })),
    // Most nodes have to have it on their disks.
    probe: () => cluster.ask('kv/put', { key: base64('probe') }),
    healthy: () => cluster.healthy(),
    async leftovers() {
      const { kvs = [] } = (await cluster.ask('kv/range', { ...inPrefix, keys_only: true })) as { kvs?: { key: string }[] }
      const { leases = [] } = (await cluster.ask('lease/leases', {})) as { leases?: { ID: string }[] }
      const keys = kvs.map(({ key }) => Buffer.from(key, 'base64').toString())
      return [...keys.filter((key) => !key.startsWith(`${PREFIX}/tx/`)), ...leases.map(({ ID }) => `lease ${BigInt(ID).toString(16)}`)]
    },
    async stop() {
      await Promise.all(routes.map(({ proxy }) => proxy.close()))
      await cluster.stop()
    },
  }
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64')
}
