/** A user with the rights that docs/backends/redis.md names, and no others: enough for everything, and none too many. */
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster, Redis } from 'ioredis'
import { createCluster } from 'redis'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import type { Backend, Claim, WakeUp } from '../../src/core/backend.js'
import { systemClock } from '../../src/core/clock.js'
import { tokenOf } from '../../src/core/token.js'
import { conformance } from '../../src/testing/index.js'
import { startRedisCluster, type RedisCluster } from '../support/redis-cluster.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

const TRAITS = { fair: true, wakes: 'push', minTtlMs: 1, counted: false, tellsExpiry: true, keepsPlaces: true, heartbeatMs: 800, transactions: true, ownership: true } as const

const docs = readFileSync(new URL('../../docs/backends/redis.md', import.meta.url), 'utf8')
/** What follows `ACL SETUSER name` in the documentation, up to the end of its block. */
function documented(user: string): string[] {
  const rules = new RegExp(`^ACL SETUSER ${user} ([^\`]*)`, 'm').exec(docs)?.[1]
  if (rules === undefined) throw new Error(`The documentation has no ACL SETUSER ${user}`)
  return rules.split(/\s+/).filter((rule) => /^[+~&]/.test(rule))
}
const SINGLE = documented('locks')
const CLUSTER = documented('cluster-locks')

describe('a user with the documented rights', () => {
  let server: RedisServer
  const clients: Redis[] = []
  const open = (username: string) => {
    // Its check asks for INFO, and grumbles if it may not.
    const client = new Redis(server.port, { username, password: 'secret', enableReadyCheck: false, disableClientInfo: true })
    clients.push(client)
    return client
  }
  const setUser = (name: string, prefix: string, rules: readonly string[]) =>
    server.cli('ACL', 'SETUSER', name, 'reset', 'on', '>secret', ...rules.map((rule) => rule.replace('shop', prefix)))

  beforeAll(async () => {
    // So that there is something to warn of.
    server = await startRedis({ args: ['--maxmemory-policy', 'volatile-lru'] })
    await setUser('all', 'conformance-*', SINGLE)
  })
  afterAll(async () => {
    for (const client of clients) client.disconnect()
    await server.stop()
  })

  conformance(() => redisBackend(open('all')), TRAITS, { describe, it })

  it('has no right too many', async () => {
    const outcomeWithout = async (left: string) => {
      const prefix = `p${SINGLE.indexOf(left)}`
      await setUser(prefix, prefix, SINGLE.filter((rule) => rule !== left))
      // As if it had run ahead of the clock: then it is counted on.
      await server.cli('SET', `${prefix}:fence`, '9007199254740993')
      return everything(prefix, () => redisBackend(open(prefix)))
    }
    await server.cli('SCRIPT', 'FLUSH')
    const withoutEval = await outcomeWithout('+eval')
    const complete = await outcomeWithout('nothing')
    expect(complete.error).toBeUndefined()
    expect(withoutEval).not.toEqual(complete)
    const others = SINGLE.filter((rule) => rule !== '+eval')
    const outcomes = await Promise.all(others.map(async (rule) => [rule, await outcomeWithout(rule)] as const))
    // Whatever differs does so because of the right, and not by chance.
    expect(await outcomeWithout('nothing')).toEqual(complete)
    for (const [rule, outcome] of outcomes) expect(outcome, `without ${rule} it is all the same`).not.toEqual(complete)
  })
})

describe('on a cluster', () => {
  let cluster: RedisCluster
  const closing: (() => void)[] = []
  const setUser = async (name: string, rules: readonly string[]) => {
    const own = rules.map((rule) => rule.replace('shop', 'conformance-*'))
    await Promise.all(cluster.nodes.map((node) => node.cli('ACL', 'SETUSER', name, 'reset', 'on', '>secret', ...own)))
  }
  const nodes = () => cluster.nodes.map(({ port }) => ({ host: '127.0.0.1', port }))
  const openIoredis = (username: string) => {
    const redisOptions = { username, password: 'secret', enableReadyCheck: false, disableClientInfo: true }
    const client = new Cluster(nodes(), { redisOptions, clusterRetryStrategy: () => 100 })
    client.on('error', () => {})
    closing.push(() => client.disconnect())
    return client
  }
  const openNodeRedis = async (username: string) => {
    const client = createCluster({ rootNodes: nodes().map((socket) => ({ socket })), defaults: { username, password: 'secret' } })
    client.on('error', () => {})
    await client.connect()
    closing.push(() => client.destroy())
    return client
  }

  beforeAll(async () => {
    cluster = await startRedisCluster({ replicas: 0 })
    await setUser('all', CLUSTER)
  }, 60_000)
  afterAll(async () => {
    for (const close of closing) close()
    await cluster.stop()
  })

  describe('ioredis', () => conformance(() => redisBackend(openIoredis('all')), { ...TRAITS, ownership: false }, { describe, it }, { withSessions: false }))

  it('node-redis needs no more', async () => {
    const outcome = await everything('conformance-a', await openNodeRedis('all').then((client) => () => redisBackend(client)))
    expect(outcome.error).toBeUndefined()
  })

  it.each(CLUSTER.filter((rule) => !SINGLE.includes(rule) && rule !== '+asking'))('%s is needed', async (left) => {
    const name = left.replace(/\W/g, '-')
    await setUser(name, CLUSTER.filter((rule) => rule !== left))
    const outcome = everything('conformance-b', () => redisBackend(openIoredis(name)))
    const inVain = sleep(3_000, { error: 'It never connected.' })
    expect((await Promise.race([outcome, inVain])).error).toBeDefined()
  })
})

/** Takes every way there is, and tells what came of it. */
async function everything(prefix: string, factory: () => ReturnType<typeof redisBackend>) {
  const outcome: Record<string, unknown> & { error?: string } = {}
  const [a, b] = [party(prefix, 'a', factory()), party(prefix, 'b', factory())]
  const claim = (id: string, resource: string, rest: Partial<Claim> = {}): Claim => {
    return { id: id.repeat(32), resource, take: 1, limit: 1, ttlMs: 60_000, ...rest }
  }
  const status = ([state]: readonly { status: string }[]) => state!.status
  try {
    await a.backend.ready()
    outcome['warnings'] = a.warnings.length
    const [alone, held, waiting, given, taken] = [claim('1', 'alone'), claim('2', 'k'), claim('3', 'k'), claim('4', 'm', { type: 't' }), claim('5', 'm')]
    outcome['alone'] = [status(await a.backend.claim([alone], 'queue')), status(await a.backend.release([alone]))]
    outcome['held'] = status(await a.backend.claim([held], 'queue'))
    await sleep(1_200)
    for (let i = 0; i < 5; i++) {
      const [state] = await b.backend.claim([waiting], 'queue')
      outcome['waiting'] = state!.status
      if (state!.status === 'queued') waiting.place = state!.place
      // Long enough for a connection that hears nothing to be pinged.
      await sleep(700)
    }
    outcome['told to look'] = b.wakeUps.some(({ kind }) => kind === 'look')
    outcome['contended'] = a.wakeUps.some(({ kind }) => kind === 'contended')
    outcome['renewed'] = status(await a.backend.renew([{ claim: held, ttlMs: 30_000, exact: true }]))
    outcome['inspected'] = []
    for await (const { key, waiters } of a.backend.inspect('')) (outcome['inspected'] as unknown[]).push([key, waiters.length])
    outcome['released'] = status(await a.backend.release([held]))
    await sleep(200)
    const granted = b.wakeUps.find((wakeUp) => wakeUp.kind === 'granted')
    outcome['granted'] = granted && typeof granted.since
    outcome['revoked'] = await a.backend.revoke('k', 'now')
    const [state] = await a.backend.claim([given], 'queue')
    outcome['given'] = state!.status
    const from = tokenOf(given.id, state!.status === 'held' ? state!.epoch : 0n, 'a')
    outcome['taken'] = status(await b.backend.renew([{ claim: taken, ttlMs: 30_000, exact: false, from }]))
    const write = { comparisons: [], puts: [{ key: 'k', value: Buffer.from('v') }], deletes: [], reads: [] }
    outcome['written'] = (await a.backend.store!.commit(write)).status
    outcome['deleted'] = (await a.backend.store!.commit({ ...write, puts: [], deletes: ['k'] })).status
    outcome['returned'] = status(await b.backend.release([taken]))
  } catch (error) {
    outcome.error = (error as Error).message
  }
  await Promise.all([a.backend.close(), b.backend.close()])
  return outcome
}

function party(prefix: string, owner: string, factory: ReturnType<typeof redisBackend>) {
  const wakeUps: WakeUp[] = []
  const warnings: string[] = []
  const warn = (warning: string) => warnings.push(warning)
  const backend: Backend = factory({ prefix, owner, clock: systemClock(), retryMs: 50, wake: (wakeUp) => wakeUps.push(wakeUp), warn })
  return { backend, wakeUps, warnings }
}
