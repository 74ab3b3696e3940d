/**
 * What can be done to a run, and undone. Each fault says which of the promises it takes back: where the store itself forgets (a
 * FLUSHALL, a failover to a replica that lags behind), two can hold at once for as long as a TTL, and what is left is the fence.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { RedisServer } from '../support/redis-server.js'
import type { Fault as Rule } from '../support/tcp-proxy.js'
import { PREFIX, type Environment, type Redis, type Server } from './environment.js'
import { etcdFaults } from './etcd-faults.js'
import { always, kill, never, STARVED, starved, stop, type Fault } from './fault.js'
import type { Random } from './random.js'
import { starve } from './starve.js'
import type { TrafficWorker } from './traffic.js'

const MOST_OFF_MS = 2_000

const hasNetwork = ({ ways }: Environment) => ways.every(({ proxy }) => proxy !== undefined)
const hasServers = ({ servers }: Environment) => servers !== undefined
const isRedis = ({ redis }: Environment) => redis !== undefined
/** Where another server takes over, what the first one has not passed on is gone. */
const isNotDurable = ({ servers }: Environment) => servers?.isDurable === false
/** And nobody takes over. */
const isDurable = ({ servers }: Environment) => servers?.isDurable === true

const clientFaults: Fault[] = [
  {
    name: 'client stop', part: 'client', forgets: never, isFor: always,
    async begin(victims, random) {
      const some = random.some(victims.workers())
      await Promise.all(some.map(({ worker }) => worker.stop()))
      return { target: namesOf(some), heal: async () => void (await Promise.all(some.map(({ worker }) => worker.cont()))) }
    },
  },
  {
    name: 'client kill', part: 'client', forgets: never, isFor: ({ ways }) => ways.length > 1,
    async begin(victims, random) {
      const some = random.some(victims.workers()).slice(0, 2)
      await Promise.all(some.map(({ worker }) => worker.kill()))
      return { target: namesOf(some), heal: async () => void (await Promise.all(some.map(({ way }) => victims.replace(way)))) }
    },
  },
  {
    name: 'event loop blocked', part: 'client', forgets: never, isFor: always,
    async begin(victims, random, ms) {
      const some = random.some(victims.workers())
      for (const { worker } of some) worker.block(ms)
      return { target: namesOf(some), heal: () => {} }
    },
  },
  {
    name: 'client clock steps', part: 'client', forgets: never, isFor: ({ ways }) => ways.every(({ machine }) => machine !== undefined),
    async begin(victims, random, ms) {
      const some = random.some(victims.workers())
      const machines = some.map(({ way }) => victims.environment.ways[way]!.machine!)
      const step = () => machines.forEach((machine) => machine.stepClock(random.between(-600_000, 600_000)))
      step()
      const timer = setTimeout(step, ms / 2)
      return { target: namesOf(some), heal: () => (clearTimeout(timer), machines.forEach((machine) => machine.stepClock(-machine.offsetMs))) }
    },
  },
  {
    name: 'client starved', part: 'client', forgets: never, isFor: always,
    async begin(victims, random) {
      const some = random.some(victims.workers())
      const ends = some.map(({ worker }) => starve(worker.pid, STARVED))
      return { target: namesOf(some), heal: () => ends.forEach((end) => end()) }
    },
  },
]

type OfProxy = (proxy: NonNullable<Environment['ways'][number]['proxy']>, random: Random) => Rule

/** A rule of the proxies of some workers. */
function networkFault(name: string, rule: OfProxy, cutsOff = never): Fault {
  return {
    name, part: 'network', forgets: never, cutsOff, isFor: hasNetwork,
    async begin(victims, random) {
      const some = random.some(victims.workers())
      const proxies = some.map(({ way }) => victims.environment.ways[way]!.proxy!)
      const rules = proxies.map((proxy) => rule(proxy, random))
      const heal = async () => {
        for (const one of rules) one.heal()
        // What was delayed, or has to be sent again, still takes its time: up to six seconds if it was lost five times.
        await sleep(Math.max(...proxies.map(({ behindMs }) => behindMs)))
      }
      return { target: namesOf(some), heal }
    },
  }
}

const networkFaults: Fault[] = [
  networkFault('partition', (proxy) => proxy.hold(), always),
  // What the store tells unasked still comes: one may be granted something meanwhile.
  networkFault('one-way partition: nothing gets there', (proxy) => proxy.hold({ direction: 'up' })),
  networkFault('one-way partition: nothing comes back', (proxy) => proxy.hold({ direction: 'down' }), always),
  networkFault('delay', (proxy, random) => proxy.delay(random.between(20, 300), { jitterMs: random.between(0, 300) })),
  networkFault('packets lost', (proxy, random) => proxy.lose(random.between(0.02, 0.3))),
  networkFault('replies dropped', (proxy) => {
    const rule = proxy.drop({ direction: 'down' })
    // What was dropped is missing in the middle of a stream, as TCP never does: those connections must not go on.
    return { heal: () => (rule.heal(), proxy.reset()) }
  }, always),
  networkFault('resets', (proxy, random) => {
    const everyMs = random.between(50, 500)
    const timer = setInterval(() => proxy.reset(), everyMs)
    return { heal: () => clearInterval(timer) }
  }),
]

const serverFaults: Fault[] = [
  stop('server stop', { forgets: isNotDurable, erases: isNotDurable, cutsOff: isDurable, isFor: hasServers }, aMaster),
  kill('server kill', { forgets: isNotDurable, erases: isNotDurable, cutsOff: isDurable, isFor: hasServers }, aMaster),
  starved('server starved', { forgets: isNotDurable, erases: isNotDurable, isFor: hasServers }, aMaster),
  {
    // Ahead, and what is held expires early. Back, and it lives longer: not for so long that a wait would seem endless.
    name: 'server clock steps', part: 'server', forgets: always, isFor: ({ servers }) => servers?.machine !== undefined,
    async begin({ environment }, random) {
      const machine = environment.servers!.machine!
      machine.stepClock(random.between(-MOST_OFF_MS, MOST_OFF_MS) - machine.offsetMs)
      return { target: 'all servers', heal: () => {} }
    },
  },
  {
    // A Redis that has promised to keep everything ends itself then, and so does PostgreSQL.
    name: 'disk full', part: 'server', forgets: never, isFor: ({ disk }) => disk !== undefined,
    async begin({ environment }) {
      const disk = environment.disk!
      for (const machine of disk.machines) machine.diskIsFull = true
      const heal = async () => {
        for (const machine of disk.machines) machine.diskIsFull = false
        await disk.afterwards()
      }
      return { target: 'the disk', heal }
    },
  },
  {
    name: 'failover', part: 'server', forgets: always, erases: always, isFor: ({ redis }) => redis?.failover !== undefined,
    async begin({ environment }, random) {
      await environment.redis!.failover!(random)
      return { target: 'a master', heal: () => {} }
    },
  },
  {
    name: 'replicas stop', part: 'server', forgets: never, isFor: ({ redis }) => redis?.replicas !== undefined,
    async begin({ environment }) {
      const replicas = await environment.redis!.replicas!()
      await Promise.all(replicas.map((server) => server.pause()))
      return { target: 'all replicas', heal: async () => void (await Promise.all(replicas.map((server) => server.resume()))) }
    },
  },
  {
    name: 'connections cut', part: 'server', forgets: never, isFor: ({ sql }) => sql !== undefined,
    async begin({ environment }, random) {
      const cut = () => void environment.sql!.cutConnections().catch(() => {})
      cut()
      const timer = setInterval(cut, random.between(50, 1_000))
      return { target: 'all connections', heal: () => clearInterval(timer) }
    },
  },
  stop('pooler stop', { forgets: never, cutsOff: always, isFor: hasPooler }, thePooler),
  kill('pooler kill', { forgets: never, cutsOff: always, isFor: hasPooler }, thePooler),
  atOnce('FLUSHALL', true, ({ deployment }) => deployment.flush()),
  atOnce('SCRIPT FLUSH', false, ({ deployment }) => deployment.everywhere('SCRIPT', 'FLUSH')),
  shortOfMemory('eviction', true, async (server) => {
    await addBallast(server)
    await limitMemory(server, 'allkeys-random', 0.85)
  }),
  // Nothing is forgotten, but what is new is refused, also in the middle of a script.
  shortOfMemory('out of memory', false, (server) => limitMemory(server, 'noeviction', 0.9)),
]

function hasPooler({ sql }: Environment): boolean {
  return sql?.pooler !== undefined
}

async function thePooler({ sql }: Environment): Promise<Server> {
  return sql!.pooler!
}

/** Over as soon as it has begun. */
function atOnce(name: string, forgets: boolean, act: (redis: Redis) => Promise<unknown>): Fault {
  return {
    name, part: 'server', forgets: () => forgets, erases: () => forgets, isFor: isRedis,
    async begin({ environment }) {
      await act(environment.redis!)
      return { target: 'all masters', heal: () => {} }
    },
  }
}

function shortOfMemory(name: string, forgets: boolean, limit: (server: RedisServer) => Promise<void>): Fault {
  return {
    name, part: 'server', forgets: () => forgets, erases: () => forgets, isFor: isRedis,
    async begin({ environment }) {
      const masters = await environment.redis!.deployment.masters()
      await Promise.all(masters.map(limit))
      const heal = async (server: RedisServer) => {
        await server.cli('CONFIG', 'SET', 'maxmemory', 0)
        await server.cli('CONFIG', 'SET', 'maxmemory-policy', 'noeviction')
      }
      return { target: 'all masters', heal: async () => void (await Promise.all(masters.map(heal))) }
    },
  }
}

/** To a share of what is in use already: of the ballast, and so of all else, about a half has to go then, or nothing new is let in. */
async function limitMemory(server: RedisServer, policy: 'allkeys-random' | 'noeviction', share: number): Promise<void> {
  const { used_memory } = await server.info('memory')
  await server.cli('CONFIG', 'SET', 'maxmemory-policy', policy)
  await server.cli('CONFIG', 'SET', 'maxmemory', Math.round(Number(used_memory) * share))
}

const BALLAST = `for i = 1, 500 do redis.call('SET', KEYS[1] .. i, string.rep('x', 1000)) end`

/** Keys of no use. Without them all others would be evicted at once, and would still not be enough: a FLUSHALL. */
async function addBallast(server: RedisServer): Promise<void> {
  const [fence] = (await server.cli('KEYS', `${PREFIX}:fence*`)) as string[]
  // In a cluster, a script may only write to slots of its own server.
  if (fence !== undefined) await server.cli('EVAL', BALLAST, 1, `ballast:${/\{.*\}/.exec(fence)?.[0] ?? ''}:`)
}

async function aMaster({ servers }: Environment, random: Random): Promise<Server> {
  return random.one((await servers!.masters()).filter(({ isUp }) => isUp))
}

function namesOf(workers: readonly { readonly worker: TrafficWorker }[]): string {
  return workers.map(({ worker }) => worker.name).join(' ')
}

export const FAULTS: readonly Fault[] = [...clientFaults, ...networkFaults, ...serverFaults, ...etcdFaults]
