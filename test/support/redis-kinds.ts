/**
 * Every kind of Redis that locks can live on, so that one and the same check can be run on each: a server behind ioredis or
 * node-redis, a master watched by Sentinels, and a Cluster.
 *
 * All of them can have a proxy in between. Where Sentinels and nodes of a cluster tell a client which servers there are, the
 * proxy puts its own ports into what they say.
 */
import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster, createSentinel } from 'redis'
import { RedisBackend } from '../../src/backends/redis/backend.js'
import { openNodeRedis } from '../../src/backends/redis/clients/open-node-redis.js'
import type { RedisDriver } from '../../src/backends/redis/index.js'
import { parseRedisUrl } from '../../src/backends/redis/url.js'
import { connect, type ConnectOptions, type LockManager } from '../../src/index.js'
import { connectThroughNodeRedis } from './fixtures/node-redis.mjs'
import { startRedisCluster, type RedisCluster } from './redis-cluster.js'
import { startRedisSentinel, type RedisSentinel } from './redis-sentinel.js'
import { startRedis, type Monitor, type RedisServer } from './redis-server.js'
import type { Reply } from './resp.js'
import { startProxy, type Proxy } from './tcp-proxy.js'
import { spawnWorker, type Worker, type WorkerOptions } from './workers.js'

export interface RedisKind {
  readonly name: string
  readonly isSingle: boolean
  /** Whether the client sends again what was not answered when it lost its connection. If not, it rejects. */
  readonly resends: boolean
  readonly start: () => Promise<Deployment>
}

/** How a process gets to the servers. */
export class Route {
  readonly url: string
  readonly #driver: Driver

  constructor(url: string, driver: Driver) {
    this.url = url
    this.#driver = driver
  }

  /** A manager in this process. */
  connect(options?: ConnectOptions): Promise<LockManager> {
    return this.#driver.connect(this.url, { prefix: 'test', ...options })
  }

  /** A client that a caller makes, and has to close. */
  client(): Promise<OpenClient> {
    return this.#driver.client(this.url)
  }

  /** A manager in a process of its own. */
  spawn(options: Partial<WorkerOptions> = {}): Promise<Worker> {
    const { library } = this.#driver
    return spawnWorker({ url: this.url, ...(library !== undefined && { library }), ...options })
  }

  spawnMany(count: number): Promise<Worker[]> {
    return Promise.all(Array.from({ length: count }, () => this.spawn()))
  }
}

export interface ProxiedRoute extends Route {
  readonly proxy: Proxy
}

export interface OpenClient {
  readonly client: RedisDriver
  readonly close: () => void
}

interface Driver {
  client(url: string): Promise<OpenClient>
  connect(url: string, options: ConnectOptions): Promise<LockManager>
  /** For workers, if it is not the package's own `connect`. */
  readonly library?: string
}

const ioredis: Driver = {
  client: async (url) => {
    const { kind, hosts, masterName } = parseRedisUrl(url)
    const client = {
      single: () => new Redis({ ...hosts[0] }),
      sentinel: () => new Redis({ sentinels: [...hosts], name: masterName }),
      cluster: () => new Cluster([...hosts]),
    }[kind]()
    client.on('error', () => {})
    return { client, close: () => client.disconnect() }
  },
  connect,
}

const nodeRedis: Driver = {
  client: async (url) => {
    const { kind, hosts, masterName } = parseRedisUrl(url)
    const client = {
      single: () => createClient({ socket: { ...hosts[0]! } }),
      sentinel: () => createSentinel({ name: masterName, sentinelRootNodes: [...hosts] }),
      cluster: () => createCluster({ rootNodes: hosts.map((host) => ({ socket: { ...host } })) }),
    }[kind]()
    ;(client as NodeJS.EventEmitter).on('error', () => {})
    await client.connect()
    return { client: client as RedisDriver, close: () => void client.destroy() }
  },
  connect: connectThroughNodeRedis({ connect, RedisBackend, openNodeRedis, parseRedisUrl }),
  library: new URL('./fixtures/connect-with-node-redis.mjs', import.meta.url).href,
}

/** Gives the port at which a server is reached. */
type PortOf = (server: RedisServer) => number

/** What all kinds come down to. */
interface Shape {
  /** Those that have data, replicas too. */
  readonly nodes: readonly RedisServer[]
  readonly sentinels?: readonly RedisServer[]
  masters(): Promise<readonly RedisServer[]>
  masterOf(key: string): Promise<RedisServer>
  /** `login` is empty or `user:password@`. */
  urlOf(login: string, portOf: PortOf): string
  /** Until it serves all keys, and its replicas have them. */
  healthy(): Promise<void>
  stop(): Promise<void>
}

/** The servers of one test file. */
export class Deployment extends Route {
  readonly nodes: readonly RedisServer[]
  readonly #shape: Shape
  readonly #driver: Driver

  constructor(shape: Shape, driver: Driver) {
    super(shape.urlOf('', ({ port }) => port), driver)
    this.nodes = shape.nodes
    this.#shape = shape
    this.#driver = driver
  }

  /** The same servers, for a user of the ACL. */
  as(user: string, password: string): Route {
    return new Route(this.#shape.urlOf(`${user}:${password}@`, ({ port }) => port), this.#driver)
  }

  /** Where nobody listens. */
  nowhere(): Route {
    return new Route(this.#shape.urlOf('', () => 1), this.#driver)
  }

  /** The same servers, with a proxy in between. */
  async behindProxy(): Promise<ProxiedRoute> {
    const servers = [...this.nodes, ...(this.#shape.sentinels ?? [])]
    const portOf = (port: number) => proxy.ports[servers.findIndex((server) => server.port === port)] ?? port
    const proxy = await startProxy({ to: servers, translate: (chunk) => translatePorts(chunk, portOf) })
    return Object.assign(new Route(this.#shape.urlOf('', ({ port }) => portOf(port)), this.#driver), { proxy })
  }

  /** Several masters, which share the keys. */
  get isCluster(): boolean {
    return this.url.startsWith('redis+cluster')
  }

  masters(): Promise<readonly RedisServer[]> {
    return this.#shape.masters()
  }

  /** Who serves the key. */
  masterOf(key: string): Promise<RedisServer> {
    return this.#shape.masterOf(key)
  }

  healthy(): Promise<void> {
    return this.#shape.healthy()
  }

  /** One command, where its key lives. */
  async cli(command: string, key: string, ...args: (string | number)[]): Promise<Reply> {
    return (await this.masterOf(key)).cli(command, key, ...args)
  }

  /** The same command on each master. */
  async everywhere(...command: (string | number)[]): Promise<Reply[]> {
    return Promise.all((await this.masters()).map((server) => server.cli(...command)))
  }

  async flush(): Promise<void> {
    await this.everywhere('FLUSHALL')
  }

  /** On each server, replicas too: they have an ACL of their own. */
  async acl(...args: string[]): Promise<void> {
    await Promise.all(this.nodes.map((server) => server.cli('ACL', ...args)))
  }

  async configure(name: string, value: string | number): Promise<void> {
    await this.everywhere('CONFIG', 'SET', name, value)
  }

  /** The names of all keys like that. */
  async keys(pattern: string): Promise<string[]> {
    return (await this.everywhere('KEYS', pattern)).flat() as string[]
  }

  /** How many claims wait for a key. */
  async waiting(key: string): Promise<number> {
    const [queue] = (await (await this.masterOf(`test:lock:${key}`)).cli('KEYS', `test:q1:*:${key}`)) as string[]
    return queue === undefined ? 0 : Number(await this.cli('ZCARD', queue))
  }

  /** The counter of the fences of a key, once it has been granted. */
  async fenceOf(key: string): Promise<string> {
    const server = await this.masterOf(`test:lock:${key}`)
    const fences = (await server.cli('KEYS', 'test:fence*')) as string[]
    if (!this.isCluster) return fences[0]!
    const slots = await Promise.all([`test:lock:${key}`, ...fences].map((name) => server.cli('CLUSTER', 'KEYSLOT', name)))
    return fences[slots.indexOf(slots[0]!, 1) - 1]!
  }

  /** On which a manager is told of a key, if it listens. */
  async channelsOf(owner: string, key: string): Promise<string[]> {
    return (await (await this.masterOf(`test:lock:${key}`)).cli('PUBSUB', 'CHANNELS', `test:wake:*${owner}`)) as string[]
  }

  /** What clients send to any master. In order for each key, since that has one master. */
  async monitor(): Promise<Monitor> {
    const monitors = await Promise.all((await this.masters()).map((server) => server.monitor()))
    return {
      get commands() {
        return monitors.flatMap(({ commands }) => commands)
      },
      flush: async () => void (await Promise.all(monitors.map((monitor) => monitor.flush()))),
      stop: () => monitors.forEach((monitor) => monitor.stop()),
    }
  }

  /** Of ours: Sentinels have their own. */
  async subscriptions(): Promise<number> {
    const clients = (await Promise.all((await this.masters()).map((server) => server.clients()))).flat()
    return clients.filter(({ name, sub, ssub }) => !name?.startsWith('sentinel') && (sub !== '0' || ssub !== '0')).length
  }

  stop(): Promise<void> {
    return this.#shape.stop()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }
}

/**
 * `MOVED 1 127.0.0.1:20001` and CLUSTER NODES, CLUSTER SLOTS, SENTINEL GET-MASTER-ADDR-BY-NAME; with the name of the field in between
 * SENTINEL MASTER, REPLICAS and SENTINELS, which node-redis goes by. All ports of tests have five digits, so that lengths stay as they
 * are.
 */
const ADDRESS = /(127\.0\.0\.1(?::|\r\n:|\r\n(?:\$4\r\nport\r\n)?\$5\r\n))(\d{5})(?!\d)/g

function translatePorts(chunk: Buffer, portOf: (port: number) => number): Buffer {
  if (!chunk.includes('127.0.0.1')) return chunk
  const text = chunk.toString('latin1')
  return Buffer.from(text.replace(ADDRESS, (_, before: string, port: string) => before + portOf(Number(port))), 'latin1')
}

function shapeOfSingle(server: RedisServer): Shape {
  return {
    nodes: [server],
    masters: async () => [server],
    masterOf: async () => server,
    urlOf: (login, portOf) => `redis://${login}127.0.0.1:${portOf(server)}`,
    healthy: async () => {},
    stop: () => server.stop(),
  }
}

const listOf = (servers: readonly RedisServer[], portOf: PortOf) => servers.map((server) => `127.0.0.1:${portOf(server)}`).join(',')

function shapeOfSentinel(sentinel: RedisSentinel): Shape {
  return {
    nodes: sentinel.nodes,
    sentinels: sentinel.sentinels,
    masters: async () => [await sentinel.master()],
    masterOf: () => sentinel.master(),
    urlOf: (login, portOf) => `redis+sentinel://${login}${listOf(sentinel.sentinels, portOf)}/${sentinel.name}`,
    healthy: () => sentinel.healthy(),
    stop: () => sentinel.stop(),
  }
}

function shapeOfCluster(cluster: RedisCluster): Shape {
  return {
    nodes: cluster.nodes,
    masters: () => cluster.masters(),
    masterOf: (key) => cluster.masterOf(key),
    urlOf: (login, portOf) => `redis+cluster://${login}${listOf(cluster.nodes, portOf)}`,
    healthy: () => cluster.healthy(),
    stop: () => cluster.stop(),
  }
}

const drivers = { ioredis, 'node-redis': nodeRedis }
export type DriverName = keyof typeof drivers

export const onSentinel = (sentinel: RedisSentinel, driver: DriverName) => new Deployment(shapeOfSentinel(sentinel), drivers[driver])
export const onCluster = (cluster: RedisCluster, driver: DriverName) => new Deployment(shapeOfCluster(cluster), drivers[driver])
export const onSingle = (server: RedisServer, driver: DriverName) => new Deployment(shapeOfSingle(server), drivers[driver])

/** Those that every check is run on. Faults that only Sentinels and clusters have are tried through node-redis as well. */
export const kinds: readonly RedisKind[] = [
  { name: 'ioredis', isSingle: true, resends: true, start: async () => onSingle(await startRedis(), 'ioredis') },
  { name: 'node-redis', isSingle: true, resends: false, start: async () => onSingle(await startRedis(), 'node-redis') },
  { name: 'Sentinel', isSingle: false, resends: true, start: async () => onSentinel(await startRedisSentinel(), 'ioredis') },
  { name: 'Cluster', isSingle: false, resends: true, start: async () => onCluster(await startRedisCluster(), 'ioredis') },
]
