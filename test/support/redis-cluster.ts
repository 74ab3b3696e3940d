/** A private Redis Cluster on loopback: three masters with a replica each. Nodes are killed, paused and restarted by themselves. */
import { startRedis, type RedisServer } from './redis-server.js'
import type { Reply } from './resp.js'
import { until } from './until.js'

export interface RedisClusterOptions {
  readonly masters?: number
  /** Of each master. */
  readonly replicas?: number
  /** How long a node has to be silent to count as failed; a replica takes over about a second later. */
  readonly nodeTimeoutMs?: number
  /** Further arguments for each node. */
  readonly args?: readonly string[]
  /** Of each node. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

/** A node as the cluster sees it. */
export interface ClusterNode {
  readonly server: RedisServer
  readonly id: string
  readonly isMaster: boolean
  /** Of a replica. */
  readonly masterId: string | undefined
  /** Failed for sure (FAIL), or as far as the one that was asked can tell (PFAIL). */
  readonly hasFailed: boolean
  readonly slots: readonly (readonly [first: number, last: number])[]
}

/** Where the migration of a slot has got to: the slot is open at both ends, with its keys still here, half way or there. */
export type MigrationStage = 'opened' | 'one key moved' | 'keys moved'

/** A replica drops a failover that its master or the others did not agree to within 5 s, and tells nobody. */
const FAILOVER_MS = 6_000
const SLOTS = 16_384

export async function startRedisCluster(options: RedisClusterOptions = {}): Promise<RedisCluster> {
  const { masters = 3, replicas = 1, nodeTimeoutMs = 1_000, args = [], env } = options
  const settings = [
    ['--cluster-node-timeout', String(nodeTimeoutMs)],
    // A replica may take over however long ago it last heard of its master: tests pause things for long.
    ['--cluster-replica-validity-factor', '0'],
    ['--repl-diskless-sync-delay', '0'],
    ['--shutdown-timeout', '0'],
  ]
  const nodeArgs = [...settings.flat(), ...args]
  const starting = Array.from({ length: masters * (1 + replicas) }, () => startRedis({ cluster: true, args: nodeArgs, env }))
  const started = await Promise.allSettled(starting)
  const cluster = new RedisCluster(started.flatMap((one) => (one.status === 'fulfilled' ? one.value : [])))
  try {
    for (const one of started) if (one.status === 'rejected') throw one.reason
    await cluster.create(masters)
    return cluster
  } catch (error) {
    await cluster.stop()
    throw error
  }
}

export class RedisCluster {
  readonly nodes: readonly RedisServer[]

  constructor(nodes: readonly RedisServer[]) {
    this.nodes = nodes
  }

  /** All nodes, since a test may kill any. */
  get url(): string {
    return `redis+cluster://${this.nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`
  }

  /** Joins fresh nodes: the first ones become masters, and the others their replicas in turn. */
  async create(masters: number): Promise<void> {
    const owners = this.nodes.slice(0, masters)
    // Different from the start: otherwise they have to sort that out among themselves, which takes its time.
    await Promise.all(this.nodes.map((node, i) => node.cli('CLUSTER', 'SET-CONFIG-EPOCH', i + 1)))
    await Promise.all(
      owners.map((node, i) => {
        const [first, end] = [i, i + 1].map((n) => Math.round((n * SLOTS) / masters)) as [number, number]
        return node.cli('CLUSTER', 'ADDSLOTSRANGE', first, end - 1)
      }),
    )
    // Each with each: gossip would do, a second or two later.
    for (const [i, node] of this.nodes.entries()) {
      const others = this.nodes.slice(i + 1)
      await Promise.all(others.map(({ port, clusterPort }) => node.cli('CLUSTER', 'MEET', '127.0.0.1', port, clusterPort!)))
    }
    await until('all nodes to know each other', async () => {
      const views = await Promise.all(this.nodes.map((node) => this.#view(node)))
      return views.every((view) => view.length === this.nodes.length)
    })
    await Promise.all(
      this.nodes.slice(masters).map(async (node, i) => {
        const masterId = String(await owners[i % masters]!.cli('CLUSTER', 'MYID'))
        await node.cli('CLUSTER', 'REPLICATE', masterId)
      }),
    )
    await this.healthy()
  }

  /**
   * Until all nodes that are up agree on who has which slots, every slot is served, and the replicas that are up have all
   * the data.
   */
  async healthy(): Promise<void> {
    await until('the cluster to be healthy', async () => {
      const up = this.nodes.filter(({ isUp }) => isUp)
      const views = await Promise.all(up.map((node) => this.#view(node)))
      const owners = (view: readonly ClusterNode[]) =>
        view.filter(({ isMaster }) => isMaster).map(({ id, slots }) => `${id} ${slots.join()}`).sort().join()
      if (new Set(views.map(owners)).size !== 1) return false
      // What is up must not be thought dead, and its role must be the same everywhere.
      if (views.some((view) => view.some(({ server, hasFailed }) => server.isUp && hasFailed))) return false
      const states = await Promise.all(up.map(async (node) => String(await node.cli('CLUSTER', 'INFO'))))
      if (!states.every((state) => state.includes('cluster_state:ok'))) return false
      const replicas = views[0]!.filter(({ server, isMaster }) => server.isUp && !isMaster)
      return (await Promise.all(replicas.map(({ server }) => isInSync(server)))).every(Boolean)
    })
  }

  /** As the first node that is up sees them. */
  async topology(): Promise<readonly ClusterNode[]> {
    const node = this.nodes.find(({ isUp }) => isUp)
    if (!node) throw new Error('No node of the cluster is up')
    return this.#view(node)
  }

  async slotOf(key: string): Promise<number> {
    return Number(await this.nodes.find(({ isUp }) => isUp)!.cli('CLUSTER', 'KEYSLOT', key))
  }

  async masters(): Promise<RedisServer[]> {
    return (await this.topology()).filter(({ isMaster, slots }) => isMaster && slots.length > 0).map(({ server }) => server)
  }

  /** Who serves the key, or the slot. */
  async masterOf(keyOrSlot: string | number): Promise<RedisServer> {
    const slot = typeof keyOrSlot === 'number' ? keyOrSlot : await this.slotOf(keyOrSlot)
    const owner = (await this.topology()).find(({ slots }) => slots.some(([first, last]) => first <= slot && slot <= last))
    if (!owner) throw new Error(`Nobody serves slot ${slot}`)
    return owner.server
  }

  async replicasOf(master: RedisServer): Promise<RedisServer[]> {
    const nodes = await this.topology()
    const id = nodes.find(({ server }) => server === master)?.id
    return nodes.filter(({ masterId }) => masterId === id).map(({ server }) => server)
  }

  /** One command, where its key lives. */
  async cli(command: string, key: string, ...args: (string | number)[]): Promise<Reply> {
    return (await this.masterOf(key)).cli(command, key, ...args)
  }

  /** The same command on every master. */
  async everywhere(...command: (string | number)[]): Promise<Reply[]> {
    return Promise.all((await this.masters()).map((node) => node.cli(...command)))
  }

  /**
   * A replica takes over, asked again if nothing came of it. By default with its master's consent, so that nothing is lost;
   * `FORCE` and `TAKEOVER` are for a master that does not answer. Resolves when all nodes that are up know, with the new master.
   */
  async failover(master: RedisServer, how?: 'FORCE' | 'TAKEOVER'): Promise<RedisServer> {
    const replica = (await this.replicasOf(master)).find(({ isUp }) => isUp)
    if (!replica) throw new Error(`Node ${master.port} has no replica that could take over`)
    let askAgainAt = 0
    await until(`${replica.port} to take over`, async () => {
      if (performance.now() >= askAgainAt) {
        askAgainAt = performance.now() + FAILOVER_MS
        await replica.cli('CLUSTER', 'FAILOVER', ...(how ? [how] : []))
      }
      const views = await Promise.all(this.nodes.filter(({ isUp }) => isUp).map((node) => this.#view(node)))
      return views.every((view) => view.some(({ server, isMaster }) => server === replica && isMaster))
    })
    return replica
  }

  /** Until somebody else serves what this node served; for after it was killed or paused. */
  async replaced(master: RedisServer): Promise<void> {
    await until(`${master.port} to be replaced`, async () => {
      if ((await this.masters()).includes(master)) return false
      const up = this.nodes.filter(({ isUp }) => isUp)
      const states = await Promise.all(up.map(async (node) => String(await node.cli('CLUSTER', 'INFO'))))
      return states.every((state) => state.includes('cluster_state:ok'))
    })
  }

  /** A real migration, as redis-cli does it, key by key. `during` can make it stay at any stage for as long as it likes. */
  async moveSlot(
    slot: number,
    from: RedisServer,
    to: RedisServer,
    during: (stage: MigrationStage) => Promise<void> | void = () => {},
  ): Promise<void> {
    const [fromId, toId] = (await Promise.all([from, to].map((node) => node.cli('CLUSTER', 'MYID')))).map(String) as [string, string]
    await to.cli('CLUSTER', 'SETSLOT', slot, 'IMPORTING', fromId)
    await from.cli('CLUSTER', 'SETSLOT', slot, 'MIGRATING', toId)
    await during('opened')
    for (let moved = 0; ; moved++) {
      const [key] = (await from.cli('CLUSTER', 'GETKEYSINSLOT', slot, 1)) as string[]
      if (key === undefined) break
      // NOKEY if it has expired meanwhile.
      await from.cli('MIGRATE', '127.0.0.1', to.port, key, 0, 5_000)
      if (moved === 0) await during('one key moved')
    }
    await during('keys moved')
    // First where it goes to: the other way round, a crash in between leaves nobody that serves it.
    await to.cli('CLUSTER', 'SETSLOT', slot, 'NODE', toId)
    await from.cli('CLUSTER', 'SETSLOT', slot, 'NODE', toId)
    const others = (await this.masters()).filter((node) => node !== from && node !== to)
    await Promise.all(others.map((node) => node.cli('CLUSTER', 'SETSLOT', slot, 'NODE', toId)))
  }

  /** For good. */
  async stop(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.stop()))
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  /** `<id> <ip:port@bus> <flags> <master> <ping> <pong> <epoch> <link> <slots…>` per node, without those in a handshake. */
  async #view(node: RedisServer): Promise<ClusterNode[]> {
    const lines = String(await node.cli('CLUSTER', 'NODES')).trim().split('\n')
    return lines.flatMap((line) => {
      const [id = '', address = '', flags = '', masterId = '-', , , , , ...ranges] = line.split(' ')
      const server = this.nodes.find(({ port }) => address.includes(`:${port}@`))
      if (!server || /handshake|noaddr/.test(flags)) return []
      const slots = ranges
        // In brackets: slots that are on their way.
        .filter((range) => !range.startsWith('['))
        .map((range) => range.split('-').map(Number))
        .map(([first = 0, last = first]) => [first, last] as const)
      const isMaster = flags.includes('master')
      return { server, id, isMaster, masterId: masterId === '-' ? undefined : masterId, hasFailed: flags.includes('fail'), slots }
    })
  }
}

async function isInSync(replica: RedisServer): Promise<boolean> {
  const { role, master_link_status, master_sync_in_progress } = await replica.info('replication')
  return role === 'slave' && master_link_status === 'up' && master_sync_in_progress === '0'
}
