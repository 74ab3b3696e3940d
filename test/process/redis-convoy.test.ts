import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { connect } from '../../src/index.js'
import { inversions, overlaps } from '../support/check.js'
import { startRedis, type MonitoredCommand, type RedisServer } from '../support/redis-server.js'
import { spawnWorker } from '../support/workers.js'

let redis: RedisServer

beforeAll(async () => {
  redis = await startRedis()
})
afterAll(() => redis.stop())
beforeEach(async () => {
  await redis.cli('FLUSHALL')
  await redis.cli('SCRIPT', 'FLUSH')
})

const isScript = ({ name, fromScript }: MonitoredCommand) => !fromScript && (name === 'evalsha' || name === 'eval')

describe('without contention', () => {
  it('sends one script to acquire and one to release, and opens no second connection', async () => {
    await using locks = await connect(redis.url, { prefix: 'test' })
    await locks.withLock('warm up', () => {})
    const monitor = await redis.monitor()
    for (let i = 0; i < 10; i++) await locks.withLock(`k${i}`, () => {})
    await monitor.flush()
    monitor.stop()
    const sent = monitor.commands.filter(({ fromScript }) => !fromScript)
    expect(sent.map(({ name }) => name)).toEqual(Array.from({ length: 20 }, () => 'evalsha'))
    expect(await redis.clients()).toHaveLength(1)
  })

  it('loads a script with EVAL once, when the server does not know it', async () => {
    await using locks = await connect(redis.url, { prefix: 'test' })
    const monitor = await redis.monitor()
    await locks.withLock('k', () => {})
    await locks.withLock('k', () => {})
    await monitor.flush()
    monitor.stop()
    expect(monitor.commands.filter(isScript).map(({ name }) => name)).toEqual(['evalsha', 'eval', 'evalsha', 'eval', 'evalsha', 'evalsha'])
  })
})

describe('a convoy of 4 processes with 16 waiters each', () => {
  it('is served in order, one grant for each release, with at most 3 scripts per acquisition', async () => {
    const processes = 4
    const waiters = 16
    const rounds = 5
    const workers = await Promise.all(Array.from({ length: processes }, () => spawnWorker({ url: redis.url, prefix: 'test' })))
    const monitor = await redis.monitor()
    const convoy = workers.map((worker) => worker.call('convoy', 'k', waiters, rounds, 1, { fairness: 'strict' }))
    await Promise.all(convoy)
    await monitor.flush()
    monitor.stop()

    const holds = workers.flatMap((worker) => worker.holds())
    const acquisitions = processes * waiters * rounds
    expect(holds).toHaveLength(acquisitions)
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 1_000 }).fence).toEqual([])

    const scripts = monitor.commands.filter(isScript)
    expect(scripts.length / acquisitions).toBeLessThanOrEqual(3)

    const { queued, granted, told } = queueOrder(monitor.commands)
    // In the order in which the server queued them, and only once each.
    expect(granted).toHaveLength(acquisitions)
    expect(new Set(granted).size).toBe(acquisitions)
    const waited = new Set(queued)
    expect(granted.filter((id) => waited.has(id))).toEqual(queued)
    // Nobody is told who does not get it.
    expect(told.length).toBeLessThanOrEqual(acquisitions)
    expect(new Set(told).size).toBe(told.length)
    await Promise.all(workers.map((worker) => worker.exit()))
  })
})

/** What the server did with the key `k`: claim ids in the order of queueing, of grants and of pushed grants. */
function queueOrder(commands: readonly MonitoredCommand[]) {
  const queued = new Set<string>()
  const granted: string[] = []
  const told: string[] = []
  for (const { name, args, fromScript } of commands) {
    if (!fromScript && name !== 'evalsha') continue
    if (name === 'zadd') queued.add(args[2]!.slice(0, 32))
    if (name === 'set' && args[0] === 'test:lock:k') granted.push(args[1]!.slice(0, 32))
    if (name === 'publish') told.push(args[1]!.split(' ')[1]!)
  }
  return { queued: [...queued], granted, told }
}

describe('an outsider that follows the SET NX PX recipe', () => {
  it('makes tryLock null, and is shut out by our lock', async () => {
    await using locks = await connect(redis.url, { prefix: 'app' })
    expect(await redis.cli('SET', 'app:lock:k', 'x', 'NX', 'PX', 5000)).toBe('OK')
    expect(await locks.tryLock('k')).toBeNull()
    await redis.cli('DEL', 'app:lock:k')

    const lock = await locks.lock('k', { ttlMs: 5_000 })
    expect(await redis.cli('SET', 'app:lock:k', 'x', 'NX', 'PX', 5000)).toBeNull()
    expect(await redis.cli('GET', 'app:lock:k')).toBe(lock.token)
    const pttl = Number(await redis.cli('PTTL', 'app:lock:k'))
    expect(pttl).toBeGreaterThan(0)
    expect(pttl).toBeLessThanOrEqual(5_000)
    expect(await lock.release()).toBe(true)
    expect(await redis.cli('SET', 'app:lock:k', 'x', 'NX', 'PX', 5000)).toBe('OK')
  })

  it.each(['expires', 'is deleted'])('lets our waiter in when its key %s', async (how) => {
    await using locks = await connect(redis.url, { prefix: 'app' })
    await redis.cli('SET', 'app:lock:k', 'x', 'NX', 'PX', how === 'expires' ? 400 : 60_000)
    const waiting = locks.lock('k', { waitMs: 5_000, retryMs: 20 })
    await sleep(150)
    if (how === 'is deleted') await redis.cli('DEL', 'app:lock:k')
    const lock = await waiting
    expect(await redis.cli('GET', 'app:lock:k')).toBe(lock.token)
  })

  it('is named in the refusal, as somebody who does not tell', async () => {
    await using locks = await connect(redis.url, { prefix: 'app' })
    await redis.cli('SET', 'app:lock:k', 'x')
    await expect(locks.lock('k', { waitMs: 0 })).rejects.toThrow(/^Lock not acquired: "k" is held by another client without expiry/)
    await expect(locks.forceRelease('k')).rejects.toThrow(/now: true/)
    expect(await locks.forceRelease('k', { now: true })).toBe(true)
    expect(await locks.tryLock('k')).not.toBeNull()
  })
})
