/** Three members of etcd, all on this machine. Whoever is asked, each of them writes it to its disk. */
import { startDatabase } from './database.mjs'
import { member } from './etcd.mjs'
import { freePort } from './ports.mjs'
import { startOnFreePort, whileRunning } from './running.mjs'

const NAMES = ['etcd-a', 'etcd-b', 'etcd-c']

export async function withEtcdCluster(folder, body) {
  // Each tries another port for its clients by itself; those that they know each other by are tried anew together.
  return whileRunning(await startOnFreePort(() => start(folder)), body)
}

/** Together: none is ready before it has found another. */
async function start(folder) {
  const peerPorts = {}
  for (const name of NAMES) peerPorts[name] = await freePort()
  const starting = await Promise.allSettled(NAMES.map((name) => startDatabase(member(name, peerPorts), folder)))
  const members = starting.flatMap(({ value }) => value ?? [])
  const failed = starting.find(({ status }) => status === 'rejected')
  if (!failed) return new Cluster(members)
  await stopAll(members)
  throw failed.reason
}

class Cluster {
  #members

  constructor(members) {
    this.#members = members
    this.url = `etcd://${members.map(({ url }) => new URL(url).host).join()}`
  }

  stop() {
    return stopAll(this.#members)
  }

  version() {
    return this.#members[0].version()
  }

  empty() {
    return this.#members[0].empty()
  }

  /** Of all members together. */
  async counters() {
    const counted = await Promise.all(this.#members.map((each) => each.counters()))
    const total = (numberOf) => counted.reduce((sum, each) => sum + numberOf(each), 0)
    return { takenAt: performance.now(), calls: { message: total(({ calls }) => calls.message) }, cpuMs: total(({ cpuMs }) => cpuMs) }
  }
}

async function stopAll(members) {
  await Promise.all(members.map((each) => each.stop()))
}
