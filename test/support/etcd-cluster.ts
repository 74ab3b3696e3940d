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
const ROOT = 'root'
const INVALID_TOKEN = 'invalid auth token'

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
  #password: string | undefined
  #token: string | undefined

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

  /** For one that goes by a way of its own, to all nodes. */
  async behindProxy(): Promise<{ readonly url: string; readonly proxy: Proxy }> {
    const proxy = await startProxy({ to: this.nodes.map(({ port }) => ({ port })) })
    return { url: `etcd://${proxy.ports.map((port) => `127.0.0.1:${port}`).join(',')}`, proxy }
  }

  /** From now on everybody has to say who it is. */
  async enableAuth(password: string): Promise<void> {
    await this.nodes[0]!.enableAuth(password)
    this.#password = password
  }

  /** By HTTP and JSON, which etcd offers beside gRPC; as root if there are users. */
  async ask(what: string, body: object, node = this.nodes.find(({ isUp }) => isUp)!): Promise<unknown> {
    const password = this.#password
    if (password === undefined || this.#token !== undefined) {
      try {
        return await post(node, what, body, this.#token)
      } catch (error) {
        // A token is good for a while, on the nodes that it is used on; and one that was started anew knows none.
        if (password === undefined || !(error as Error).message.includes(INVALID_TOKEN)) throw error
      }
    }
    const { token } = (await post(node, 'auth/authenticate', { name: ROOT, password })) as { token: string }
    this.#token = token
    return post(node, what, body, token)
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
      const statuses = await Promise.all(up.map((node) => this.#statusOf(node)))
      await Promise.all(up.map((node) => this.ask('kv/range', { key: 'AA==' }, node)))
      return new Set(statuses.map(({ leader }) => leader)).size === 1 && (await this.#leaderNow()) !== undefined
    })
  }

  /** As this node sees it. */
  async hasLeader(node: EtcdServer): Promise<boolean> {
    return ((await this.#statusOf(node)).leader ?? '0') !== '0'
  }

  async memberId(node: EtcdServer): Promise<bigint> {
    return BigInt((await this.#statusOf(node)).header.member_id)
  }

  /** From the other nodes, in both directions. */
  async cutOff(node: EtcdServer): Promise<Fault> {
    const id = (await this.memberId(node)).toString(16)
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
    const statuses = await Promise.all(up.map((node) => this.#statusOf(node).catch(() => undefined)))
    const votes = ({ header }: Status) => statuses.filter((one) => one?.leader === header.member_id).length
    return up[statuses.findIndex((status) => status && votes(status) > this.nodes.length / 2)]
  }

  async #statusOf(node: EtcdServer): Promise<Status> {
    return (await this.ask('maintenance/status', {}, node)) as Status
  }
}

async function post({ endpoint }: EtcdServer, what: string, body: object, token?: string): Promise<unknown> {
  const headers = token === undefined ? {} : { authorization: token }
  const signal = AbortSignal.timeout(ASK_MS)
  const answer = await fetch(`${endpoint}/v3/${what}`, { method: 'POST', headers, body: JSON.stringify(body), signal })
  if (!answer.ok) throw new Error(`${what}: ${answer.status} ${await answer.text()}`)
  return answer.json()
}
