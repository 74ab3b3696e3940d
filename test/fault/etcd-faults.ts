/**
 * What can be done to a cluster of etcd. What most of its nodes have agreed on is not forgotten, so the promises hold, but for two
 * cases that docs/backends/etcd.md excludes: a leader that stands still for longer than the TTL, and keys that are deleted by hand.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ELECTION_TIMEOUT_MS, type EtcdServer } from '../support/etcd-server.js'
import { until } from '../support/until.js'
import type { Environment, Etcd } from './environment.js'
import { always, kill, never, starved, stop, type Choice, type Fault, type Injection } from './fault.js'
import type { Random } from './random.js'

/** Less than the shortest TTL of a run. */
const SHORT_STOP_MS = [100, 900] as const

/**
 * One that goes on ends leases by proposing it, sixteen at a time. What it has proposed while it took itself for the leader comes to
 * nothing; after five seconds and two election timeouts it gives up on that, and ends the next ones of its list, which are alive.
 */
const LATE_END_MS = 5_000 + 2 * ELECTION_TIMEOUT_MS + 1_000

const isEtcd = ({ etcd }: Environment) => etcd !== undefined
const holds = { forgets: never, isFor: isEtcd }
const leader: Choice = ({ etcd }) => etcd!.cluster.leader()
const follower: Choice = async ({ etcd }, random) => random.one(await etcd!.cluster.followers())

export const etcdFaults: readonly Fault[] = [
  kill('leader kill', holds, leader),
  kill('follower kill', holds, follower),
  // 3.4 then ends leases that another leader has renewed meanwhile (etcd#15247): the holder is told, and the fence refuses the rest.
  stop('leader stop', { forgets: always, forgetsForMs: LATE_END_MS, isFor: isEtcd }, leader),
  onEtcd('leader stop for less than a TTL', async ({ cluster }, random) => {
    const node = await cluster.leader()
    await node.pause()
    await sleep(random.between(...SHORT_STOP_MS))
    await node.resume()
    return { target: String(node.port), heal: () => {} }
  }),
  stop('follower stop', holds, follower),
  starved('leader starved', holds, leader),
  onEtcd('leader cut off from the others', async (etcd) => cutOff(etcd, await etcd.cluster.leader())),
  onEtcd('follower cut off from the others', async (etcd, random) => cutOff(etcd, random.one(await etcd.cluster.followers()))),
  {
    ...onEtcd('no majority', async ({ cluster }) => {
      const [one, followers] = [await cluster.leader(), await cluster.followers()]
      await Promise.all(followers.map((node) => node.pause()))
      // It renews leases until it has noticed that nobody follows it.
      await until('the leader to step down', async () => !(await cluster.hasLeader(one)))
      return { target: 'all followers stopped', heal: async () => void (await Promise.all(followers.map((node) => node.resume()))) }
    }),
    cutsOff: always,
  },
  onEtcd('leadership moves', async ({ cluster }, random) => {
    const [from, to] = [await cluster.leader(), random.one(await cluster.followers())]
    const targetID = String(await cluster.memberId(to))
    await surely(async () => {
      if ((await cluster.leader()) === from) await cluster.ask('maintenance/transfer-leadership', { targetID }, from)
    })
    return { target: `${from.port} to ${to.port}`, heal: () => {} }
  }),
  again('compaction', [50, 500], (etcd) => etcd.compact()),
  again('tokens invalid', [200, 2_000], (etcd) => etcd.changePassword()),
  onEtcd('NOSPACE', async (etcd) => {
    const { cluster } = etcd
    const alarm = (action: string) => cluster.ask('maintenance/alarm', { action, memberID: '0', alarm: 'NOSPACE' })
    await surely(() => alarm('ACTIVATE'))
    // As one would do it by hand.
    const heal = () => surely(async () => {
      await etcd.compact()
      for (const node of cluster.nodes) await cluster.ask('maintenance/defragment', {}, node)
      await alarm('DEACTIVATE')
    })
    return { target: 'all nodes', heal }
  }),
  // Without their mailboxes, processes hear of it at once; else at the next renewal.
  { ...again('claims deleted', [300, 2_000], (etcd) => etcd.deleteKeys('claims')), forgets: always, erases: always },
  { ...again('claims and mailboxes deleted', [300, 2_000], (etcd) => etcd.deleteKeys('claims and mailboxes')), forgets: always, erases: always },
]

function onEtcd(name: string, begin: (etcd: Etcd, random: Random) => Promise<Injection>): Fault {
  return { name, part: 'server', ...holds, begin: ({ environment }, random) => begin(environment.etcd!, random) }
}

/** Without end, with such a pause in between. */
function again(name: string, everyMs: readonly [number, number], act: (etcd: Etcd) => Promise<unknown>): Fault {
  return onEtcd(name, async (etcd, random) => {
    await surely(() => act(etcd))
    const timer = setInterval(() => void act(etcd).catch(() => {}), random.between(...everyMs))
    return { target: 'all nodes', heal: () => clearInterval(timer) }
  })
}

/** On a busy machine, an answer may take longer than one is waited for: what is done is the same if it is done twice. */
function surely(act: () => Promise<unknown>): Promise<void> {
  return until('etcd to do it', async () => {
    await act()
    return true
  })
}

async function cutOff({ cluster }: Etcd, node: EtcdServer): Promise<Injection> {
  const rule = await cluster.cutOff(node)
  return { target: String(node.port), heal: () => rule.heal() }
}
