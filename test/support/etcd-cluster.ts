/**
 * A private etcd cluster on loopback. Nodes are killed, paused and restarted by themselves.
 *
 * What nodes say to each other goes through a proxy per node, under whose address the others know it. All of them dial
 * the same address, but each says who it is (X-Server-From), so a node can be cut off in both directions: nobody gets
 * through its proxy, and it gets through none of the others'. Clients reach it all the same.
 */
import { startEtcd, type EtcdServer, type EtcdServerOptions } from './etcd-server.js'
import { freePort } from './ports.js'
import { sends, startProxy, type Fault, type Proxy } from './tcp-proxy.js'
import { until } from './until.js'

const ASK_MS = 1_000
const ATTEMPTS = 3

interface Status {
  readonly header: { readonly member_id: string }
  readonly leader?: string
}

export async function startEtcdCluster(size = 3, options: EtcdServerOptions = {}): Promise<EtcdCluster> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await start(size, options)
    } catch (error) {
      // The ports for peers were chosen before all of them were taken.
      if (attempt === ATTEMPTS) throw error
    }
  }
}

async function start(size: number, options: EtcdServerOptions): Promise<EtcdCluster> {
  const peerPorts = await Promise.all(Array.from({ length: size }, () => freePort()))
  const proxies = await Promise.all(peerPorts.map((port) => startProxy({ to: { port } })))
  const initialCluster = proxies.map((proxy, i) => `node-${i}=${proxy.url('http')}`).join(',')
  const starting = peerPorts.map((peerPort, i) => {
    const member = { name: `node-${i}`, peerPort, initialCluster, advertise: proxies[i]!.url('http') }
    return startEtcd({ ...options, member })
  })
  const started = await Promise.allSettled(starting)
  const cluster = new EtcdCluster(started.flatMap((one) => (one.status === 'fulfilled' ? one.value : [])), proxies)
  try {
    for (const one of started) if (one.status === 'rejected') throw one.reason
    await cluster.healthy()
    return cluster
  } catch (error) {
    await cluster.stop()
    throw error
  }
}

export class EtcdCluster {
  readonly nodes: readonly EtcdServer[]
  readonly #proxies: readonly Proxy[]

  constructor(nodes: readonly EtcdServer[], proxies: readonly Proxy[]) {
    this.nodes = nodes
    this.#proxies = proxies
  }

  get endpoints(): readonly string[] {
    return this.nodes.map(({ endpoint }) => endpoint)
  }

  /** All nodes, since a test may kill any. */
  get url(): string {
    return `etcd://${this.nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`
  }

  /** As most of the nodes that are up see it; waits until there is one. */
  async leader(): Promise<EtcdServer> {
    let leader: EtcdServer | undefined
    await until('a leader', async () => (leader = await this.#leaderNow()) !== undefined)
    return leader!
  }

  async followers(): Promise<EtcdServer[]> {
    const leader = await this.leader()
    return this.nodes.filter((node) => node !== leader)
  }

  /** Until all nodes that are up follow one leader and answer with what the cluster has agreed on. */
  async healthy(): Promise<void> {
    await until('the cluster to be healthy', async () => {
      const up = this.nodes.filter(({ isUp }) => isUp)
      const statuses = await Promise.all(up.map(statusOf))
      await Promise.all(up.map((node) => ask(node, 'kv/range', { key: 'AA==' })))
      return new Set(statuses.map(({ leader }) => leader)).size === 1 && (await this.#leaderNow()) !== undefined
    })
  }

  /** From the other nodes, in both directions. */
  async cutOff(node: EtcdServer): Promise<Fault> {
    // In decimal there, and in hexadecimal between peers.
    const id = BigInt((await statusOf(node)).header.member_id).toString(16)
    const own = this.#proxies[this.nodes.indexOf(node)]!
    const others = this.#proxies.filter((proxy) => proxy !== own)
    const fromNode = sends(`X-Server-From: ${id}`)
    const faults = [own.blackHole(), ...others.map((proxy) => proxy.blackHole({ only: fromNode }))]
    const heal = () => {
      for (const fault of faults) fault.heal()
      // A connection that has lost something on its way is of no use to anybody.
      own.reset()
      for (const proxy of others) proxy.reset(fromNode)
    }
    return { heal }
  }

  /** For good. */
  async stop(): Promise<void> {
    await Promise.all(this.nodes.map((node) => node.stop()))
    await Promise.all(this.#proxies.map((proxy) => proxy.close()))
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  async #leaderNow(): Promise<EtcdServer | undefined> {
    const up = this.nodes.filter(({ isUp }) => isUp)
    const statuses = await Promise.all(up.map((node) => statusOf(node).catch(() => undefined)))
    const votes = ({ header }: Status) => statuses.filter((one) => one?.leader === header.member_id).length
    return up[statuses.findIndex((status) => status && votes(status) > this.nodes.length / 2)]
  }
}

function statusOf(node: EtcdServer): Promise<Status> {
  return ask(node, 'maintenance/status', {}) as Promise<Status>
}

/** By HTTP and JSON, which etcd offers beside gRPC. */
async function ask({ endpoint }: EtcdServer, what: string, body: object): Promise<unknown> {
  const signal = AbortSignal.timeout(ASK_MS)
  const answer = await fetch(`${endpoint}/v3/${what}`, { method: 'POST', body: JSON.stringify(body), signal })
  if (!answer.ok) throw new Error(`${what}: ${answer.status} ${await answer.text()}`)
  return answer.json()
}
