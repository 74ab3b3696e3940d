/** A private master with two replicas on loopback, and three Sentinels that watch over them. */
import { startRedis, type RedisServer } from './redis-server.js'
import type { Reply } from './resp.js'
import { until } from './until.js'

export interface RedisSentinelOptions {
  readonly replicas?: number
  readonly sentinels?: number
  /** How long the master has to be silent to count as down; a replica takes over about a second later. */
  readonly downAfterMs?: number
  /** Further arguments for master and replicas. */
  readonly args?: readonly string[]
  /** Of master and replicas. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

const NAME = 'mymaster'

/**
 * Sentinels look and talk every few seconds; tests have not got so much time. But a replica is only promoted if it was heard of
 * less than five ping periods ago, and in a failover it is asked once a second.
 */
const HURRY = ['INFO-PERIOD', 250, 'PUBLISH-PERIOD', 250, 'PING-PERIOD', 500, 'ASK-PERIOD', 250] as const

export async function startRedisSentinel(options: RedisSentinelOptions = {}): Promise<RedisSentinel> {
  const { replicas = 2, sentinels = 3, downAfterMs = 1_000, args = [], env } = options
  const nodeArgs = ['--repl-diskless-sync-delay', '0', '--shutdown-timeout', '0', ...args]
  const servers: RedisServer[] = []
  const start = async (...starting: Promise<RedisServer>[]) => {
    const started = await Promise.allSettled(starting)
    servers.push(...started.flatMap((one) => (one.status === 'fulfilled' ? one.value : [])))
    for (const one of started) if (one.status === 'rejected') throw one.reason
    return Promise.all(starting)
  }
  try {
    const [master] = (await start(startRedis({ args: nodeArgs, env }))) as [RedisServer]
    const replicaArgs = [...nodeArgs, '--replicaof', `127.0.0.1 ${master.port}`]
    const copies = await start(...Array.from({ length: replicas }, () => startRedis({ args: replicaArgs, env })))
    const config = [
      `sentinel monitor ${NAME} 127.0.0.1 ${master.port} ${Math.floor(sentinels / 2) + 1}`,
      `sentinel down-after-milliseconds ${NAME} ${downAfterMs}`,
      // A vote that nobody wins is repeated after twice this long.
      `sentinel failover-timeout ${NAME} 3000`,
      `sentinel parallel-syncs ${NAME} ${Math.max(1, replicas)}`,
    ].join('\n')
    const watchers = await start(...Array.from({ length: sentinels }, () => startRedis({ config, args: ['--sentinel'] })))
    const sentinel = new RedisSentinel([master, ...copies], watchers)
    await Promise.all(watchers.map((one) => one.cli('SENTINEL', 'DEBUG', ...HURRY)))
    await sentinel.healthy()
    return sentinel
  } catch (error) {
    await Promise.all(servers.map((server) => server.stop()))
    throw error
  }
}

export class RedisSentinel {
  /** Master and replicas, whoever is which by now. */
  readonly nodes: readonly RedisServer[]
  readonly sentinels: readonly RedisServer[]
  readonly name = NAME

  constructor(nodes: readonly RedisServer[], sentinels: readonly RedisServer[]) {
    this.nodes = nodes
    this.sentinels = sentinels
  }

  get url(): string {
    return `redis+sentinel://${this.sentinels.map(({ port }) => `127.0.0.1:${port}`).join(',')}/${NAME}`
  }

  /** As the first Sentinel that is up sees it. */
  async master(): Promise<RedisServer> {
    const sentinel = this.sentinels.find(({ isUp }) => isUp)
    if (!sentinel) throw new Error('No Sentinel is up')
    return this.#masterOf(sentinel)
  }

  async replicas(): Promise<RedisServer[]> {
    const master = await this.master()
    return this.nodes.filter((node) => node !== master)
  }

  /** One command on the master. */
  async cli(...args: (string | number)[]): Promise<Reply> {
    return (await this.master()).cli(...args)
  }

  /**
   * Until all Sentinels that are up agree on the master and know each other and the replicas, and the replicas that are up
   * have all the data.
   */
  async healthy(): Promise<void> {
    await until('Sentinels and replicas to be healthy', async () => {
      const up = this.sentinels.filter(({ isUp }) => isUp)
      const [master, ...others] = new Set(await Promise.all(up.map((sentinel) => this.#masterOf(sentinel))))
      if (!master?.isUp || others.length > 0 || (await master.info('replication'))['role'] !== 'master') return false
      const replicas = this.nodes.filter((node) => node !== master && node.isUp)
      const known = await Promise.all(up.map((sentinel) => this.#knowsAll(sentinel, replicas)))
      const synced = await Promise.all(replicas.map((replica) => isInSyncWith(master, replica)))
      return [...known, ...synced].every(Boolean)
    })
  }

  /** With everybody's consent. Resolves when all Sentinels that are up know, with the new master. */
  async failover(): Promise<RedisServer> {
    const before = await this.master()
    return this.replaced(before, async () => {
      const asked = this.sentinels.find(({ isUp }) => isUp)!
      // A failover that did not come off is given up silently. INPROG while one is under way, NOGOODSLAVE until the Sentinel
      // has heard of the replicas lately.
      if ((await this.#masterOf(asked)) === before) await asked.cli('SENTINEL', 'FAILOVER', NAME).catch(() => {})
    })
  }

  /** Until somebody else is the master; for after it was killed or paused. */
  async replaced(before: RedisServer, urge = async () => {}): Promise<RedisServer> {
    let master = before
    await until(`${before.port} to be replaced`, async () => {
      await urge()
      const up = this.sentinels.filter(({ isUp }) => isUp)
      const masters = new Set(await Promise.all(up.map((sentinel) => this.#masterOf(sentinel))))
      ;[master = before] = masters
      return masters.size === 1 && master !== before && (await master.info('replication'))['role'] === 'master'
    })
    return master
  }

  /** For good. */
  async stop(): Promise<void> {
    // Sentinels first: they would start a failover.
    await Promise.all(this.sentinels.map((sentinel) => sentinel.stop()))
    await Promise.all(this.nodes.map((node) => node.stop()))
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  async #masterOf(sentinel: RedisServer): Promise<RedisServer> {
    const [, port] = (await sentinel.cli('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', NAME)) as [string, string]
    return this.nodes.find((node) => node.port === Number(port))!
  }

  async #knowsAll(sentinel: RedisServer, replicas: readonly RedisServer[]): Promise<boolean> {
    const [others, copies] = (await Promise.all(
      ['SENTINELS', 'REPLICAS'].map((what) => sentinel.cli('SENTINEL', what, NAME)),
    )) as [string[][], string[][]]
    const isSound = (fields: Record<string, string>) => !/down|disconnected/.test(fields['flags']!)
    const sound = copies.map(fieldsOf).filter(isSound).filter((fields) => fields['master-link-status'] === 'ok')
    const isKnown = ({ port }: RedisServer) => sound.some((fields) => Number(fields['port']) === port)
    const sentinelsUp = this.sentinels.filter(({ isUp }) => isUp).length
    return others.map(fieldsOf).filter(isSound).length >= sentinelsUp - 1 && replicas.every(isKnown)
  }
}

/** `[name, value, name, value …]` */
function fieldsOf(list: readonly string[]): Record<string, string> {
  return Object.fromEntries(list.flatMap((name, i) => (i % 2 === 0 ? [[name, list[i + 1]!]] : [])))
}

async function isInSyncWith(master: RedisServer, replica: RedisServer): Promise<boolean> {
  const { role, master_port, master_link_status, master_sync_in_progress } = await replica.info('replication')
  return role === 'slave' && Number(master_port) === master.port && master_link_status === 'up' && master_sync_in_progress === '0'
}
