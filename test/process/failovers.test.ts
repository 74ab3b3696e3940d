/** Leaders that are killed again and again, and servers that are: never two leaders in one term, and never nobody for long. */
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it, type TestContext } from 'vitest'
import { Candidates, faultsOf, type CandidateEvent } from '../support/candidates.js'
import { startEtcd } from '../support/etcd-server.js'
import { startMariaDb } from '../support/mariadb-server.js'
import { startPostgres } from '../support/postgres-server.js'
import { startRedis } from '../support/redis-server.js'
import { within } from '../support/within.js'

const TTL_MS = 1_000
const FAILOVERS = 20
/** A TTL, what etcd adds to it, and a machine that has other things to do. */
const FAILOVER_MS = TTL_MS + 6_000
/** So short that whoever leads goes on, and so long that nobody may. */
const DOWN_MS = [0, 2 * TTL_MS]
const RECOVERY_MS = 30_000

interface Server {
  readonly url: string
  kill(): Promise<void>
  start(): Promise<void>
  stop(): Promise<void>
}

interface Store {
  readonly start: () => Promise<Server>
  readonly keepsData: boolean
  readonly failovers: number
}

const STORES: Record<string, Store> = {
  Redis: { start: () => startRedis(), keepsData: false, failovers: FAILOVERS },
  PostgreSQL: { start: () => startPostgres(), keepsData: true, failovers: FAILOVERS },
  // A leader's death is to it what it is to PostgreSQL, and they take their time. How a server comes back is its own.
  MariaDB: { start: () => startMariaDb(), keepsData: true, failovers: 0 },
  etcd: { start: () => startEtcd(), keepsData: true, failovers: FAILOVERS },
}

describe.concurrent.each(Object.entries(STORES))('%s', (_, { start, keepsData, failovers }) => {
  // Of tests that run at once each has to say by itself what is to be done at its end.
  async function open(name: string, { onTestFinished }: TestContext): Promise<{ server: Server; candidates: Candidates }> {
    const server = await start()
    const candidates = new Candidates(server.url, { name, ttlMs: TTL_MS })
    onTestFinished(async () => {
      await candidates.end()
      await server.stop()
    })
    return { server, candidates }
  }

  if (failovers > 0) {
    it(`${failovers} leaders are killed: the next leads in time, and no term has two`, async (context) => {
      const { candidates } = await open('killed', context)
      await Promise.all([candidates.add(), candidates.add(), candidates.add()])
      let term = await candidates.leader()
      for (let i = 0; i < failovers; i++) {
        const joining = candidates.add()
        await candidates.kill(term)
        term = await within(FAILOVER_MS, `leader ${i + 2}`, candidates.leader(term.rev))
        await joining
      }
      await candidates.end()
      expect(faultsOf(candidates.log)).toEqual([])
      expect(new Set(candidates.log.filter(({ type }) => type === 'elected').map(({ rev }) => rev)).size).toBeGreaterThan(failovers)
    })
  }

  // etcd3#158: there, two lead after a restart.
  it('a server that is killed and started again has one leader', async (context) => {
    const { server, candidates } = await open('restarted', context)
    await Promise.all([candidates.add(), candidates.add(), candidates.add()])
    await candidates.leader()
    for (const downMs of DOWN_MS) {
      await server.kill()
      await sleep(downMs)
      await server.start()
      const before = candidates.log.length
      await within(RECOVERY_MS, 'somebody to lead', heardOfALeader(candidates, before))
    }
    const term = await candidates.leader()
    await candidates.kill(term)
    await within(RECOVERY_MS, 'the next', candidates.leader(term.rev))
    await candidates.end()
    const faults = faultsOf(candidates.log)
    if (keepsData) expect(faults).toEqual([])
    // Without its data a server forgets who leads: the old one is told at its next renewal, and until then only the fence tells them apart.
    else expect(faults.filter((fault) => fault.startsWith('two leaders'))).toEqual([])
  })
})

async function heardOfALeader({ log }: Candidates, from: number): Promise<void> {
  while (!log.slice(from).some(({ type }: CandidateEvent) => type === 'tick')) await new Promise((resolve) => setTimeout(resolve, 20))
}
