/** The harness itself: servers and workers do what they say, and a naive lock's defects are seen. */
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { inversions, overlaps } from '../support/check.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'
import { spawnWorker, Worker, type WorkerOptions } from '../support/workers.js'

const isAlive = (pid: number): boolean => existsSync(`/proc/${pid}`)

describe('redis-server', () => {
  let redis: RedisServer
  beforeEach(async () => {
    redis = await startRedis()
  })
  afterEach(() => redis.stop())

  test('answers, and is gone with its folder after stop', async () => {
    const { pid, folder, port } = redis
    expect(await redis.cli('SET', 'k', 'ä\r\n')).toBe('OK')
    expect(await redis.cli('GET', 'k')).toBe('ä\r\n')
    await expect(redis.cli('INCR', 'k')).rejects.toThrow(/not an integer/)
    expect(readFileSync(join(folder, `redis-${port}.pid`), 'utf8')).toBe(String(pid))
    await redis.stop()
    expect(isAlive(pid)).toBe(false)
    expect(existsSync(folder)).toBe(false)
    await expect(redis.cli('PING')).rejects.toThrow(/ECONNREFUSED/)
  })

  test.each(['stop', 'kill'] as const)('restarts on the same port without its data (%s)', async (how) => {
    const { pid, port } = redis
    await redis.cli('SET', 'k', 'v')
    await redis.restart(how)
    expect(redis.pid).not.toBe(pid)
    expect(isAlive(pid)).toBe(false)
    expect(redis.port).toBe(port)
    expect(await redis.cli('GET', 'k')).toBeNull()
  })

  test('is started again after kill', async () => {
    await redis.kill()
    expect(() => redis.pid).toThrow(/does not run/)
    expect(readdirSync(redis.folder).filter((name) => name.endsWith('.pid'))).toEqual([])
    await redis.start()
    expect(await redis.cli('PING')).toBe('PONG')
  })

  test('says nothing while paused, and goes on afterwards', async () => {
    await redis.pause()
    let answered = false
    const reply = redis.cli('PING').then((value) => ((answered = true), value))
    await sleep(100)
    expect(answered).toBe(false)
    await redis.resume()
    expect(await reply).toBe('PONG')
  })

  test('stops and is killed while paused', async () => {
    await redis.pause()
    await redis.restart('kill')
    await redis.pause()
    await redis.stop()
  })

  test('counts commands, and tells clients from scripts', async () => {
    await using client = disposable(new Redis(redis.url))
    await client.redis.ping()
    await redis.resetStats()
    const monitor = await redis.monitor()
    const script = `redis.call('SET', KEYS[1], ARGV[1]) return redis.call('PUBLISH', 'c', 'm')`
    await client.redis.eval(script, 1, 'k', 'ä "\0')
    await client.redis.get('k')
    const counts = await redis.commandCounts()
    expect(counts).toMatchObject({ eval: 1, set: 1, publish: 1, get: 1 })
    await monitor.flush()
    expect(monitor.commands.filter(({ fromScript }) => !fromScript).map(({ name }) => name)).toEqual(
      expect.arrayContaining(['eval', 'get']),
    )
    expect(monitor.commands.filter(({ fromScript }) => fromScript)).toEqual([
      { name: 'set', args: ['k', 'ä "\0'], fromScript: true },
      { name: 'publish', args: ['c', 'm'], fromScript: true },
    ])
    expect((await redis.clients()).map((one) => one['cmd'])).toEqual(expect.arrayContaining(['get', 'monitor']))
  })

  test('takes further arguments and a password', async () => {
    const other = await startRedis({ password: 'p@ss/word', args: ['--maxmemory-policy', 'allkeys-lru'] })
    onTestFinished(() => other.stop())
    expect(await other.cli('CONFIG', 'GET', 'maxmemory-policy')).toEqual(['maxmemory-policy', 'allkeys-lru'])
    await using client = disposable(new Redis(other.url))
    expect(await client.redis.ping()).toBe('PONG')
    await other.restart()
    expect(await other.cli('PING')).toBe('PONG')
  })

  test('can keep its data over a restart', async () => {
    const other = await startRedis({ args: ['--appendonly', 'yes', '--appendfsync', 'always'] })
    onTestFinished(() => other.stop())
    await other.cli('SET', 'k', 'v')
    await other.restart('kill')
    expect(await other.cli('GET', 'k')).toBe('v')
  })

  test('a missing program, and one that does not start, are errors that say so', async () => {
    await expect(startRedis({ binary: 'no-such-redis' })).rejects.toThrow(/no-such-redis was not found.*apt-get/)
    await expect(startRedis({ args: ['--nonsense', 'yes'] })).rejects.toThrow(/did not start:[^]*nonsense/)
  })

  test('a port that is taken is not taken for its own', async () => {
    await expect(startRedis({ port: redis.port })).rejects.toThrow(`Port ${redis.port} is taken`)
    expect(await redis.cli('PING')).toBe('PONG')
  })

  test('several at once do not get into each other’s way', async () => {
    const servers = await Promise.all(Array.from({ length: 5 }, () => startRedis()))
    onTestFinished(async () => void (await Promise.all(servers.map((server) => server.stop()))))
    expect(new Set(servers.map(({ port }) => port)).size).toBe(5)
  })
})

function disposable(redis: Redis): AsyncDisposable & { readonly redis: Redis } {
  redis.on('error', () => {})
  return { redis, [Symbol.asyncDispose]: async () => redis.disconnect() }
}

describe('workers', () => {
  const library = new URL('../support/fixtures/naive-locks.mjs', import.meta.url).href
  let redis: RedisServer
  beforeAll(async () => {
    redis = await startRedis()
  })
  afterAll(() => redis.stop())
  beforeEach(() => redis.cli('FLUSHALL'))

  const naive = (options: Record<string, unknown> = {}): WorkerOptions => ({ url: redis.url, library, options })

  test('lock, probe, release', async () => {
    const worker = await spawnWorker(naive())
    const held = await worker.call('lock', 'k')
    expect(held).toEqual({ id: 0, key: 'k', fence: 1n, token: expect.any(String) })
    expect(await worker.call('tryLock', 'k')).toBeNull()
    expect(await worker.call('probe', held.id)).toMatchObject({ aborted: false, assertHeld: 'ok' })
    expect(await worker.call('release', held.id)).toBe(true)
    expect(await worker.call('release', held.id)).toBe(false)
    await expect(worker.call('probe', 99)).rejects.toThrow('There is no hold 99')
    expect(worker.events.map(({ type }) => type)).toEqual(['acquired', 'released'])
    expect(worker.holds()).toMatchObject([{ key: 'k', process: worker.pid, fence: 1n, releasedAt: expect.any(BigInt) }])
    await worker.exit()
    expect(worker.exitCode).toBe(0)
  })

  test('hold is as long as it says', async () => {
    const worker = await spawnWorker(naive())
    await worker.call('hold', 'k', {}, 50)
    const [hold] = worker.holds()
    expect(Number((hold?.releasedAt ?? 0n) - (hold?.grantedAt ?? 0n)) / 1e6).toBeGreaterThanOrEqual(49)
    await worker.exit()
  })

  test('a blocked event loop is looked at in the very next line', async () => {
    const worker = await spawnWorker(naive({ ttlMs: 100 }))
    const held = await worker.call('lock', 'k')
    const from = process.hrtime.bigint()
    const probe = await worker.call('blockThenProbe', held.id, 150)
    expect(probe).toMatchObject({ aborted: false, assertHeld: 'RangeError', remainingMs: 0 })
    expect(probe.at - from).toBeGreaterThanOrEqual(150_000_000n)
    await worker.call('block', 1)
  })

  test('a convoy of two processes: a lock within its TTL never overlaps', async () => {
    const workers = await Promise.all([spawnWorker(naive()), spawnWorker(naive())])
    const logs = await Promise.all(workers.map((worker) => worker.call('convoy', 'k', 3, 4, 1)))
    expect(logs.map((log) => log.length)).toEqual([12, 12])
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds).toHaveLength(24)
    expect(overlaps(holds)).toEqual([])
    expect(inversions(holds, { toleranceMs: 60_000 })).toEqual({ fence: [], fifo: [] })
    for (const worker of workers) await worker.exit()
  })

  test('a convoy that holds longer than the TTL overlaps, and is seen', async () => {
    const workers = await Promise.all([spawnWorker(naive({ ttlMs: 20 })), spawnWorker(naive({ ttlMs: 20 }))])
    await Promise.all(workers.map((worker) => worker.call('convoy', 'k', 2, 3, 60)))
    expect(overlaps(workers.flatMap((worker) => worker.holds())).length).toBeGreaterThan(0)
  })

  test('a stopped holder is overtaken, and does not know it when it goes on', async () => {
    const [holder, intruder] = await Promise.all([spawnWorker(naive({ ttlMs: 300 })), spawnWorker(naive())])
    await holder.call('lock', 'k')
    await holder.stop()
    const taken = await intruder.call('lock', 'k')
    await holder.cont()
    expect(await holder.call('probe', 0)).toMatchObject({ aborted: false, remainingMs: 0 })
    expect(taken.fence).toBe(2n)
    expect(overlaps([...holder.holds(), ...intruder.holds()])).toMatchObject([{ ns: undefined }])
  })

  test('kill ends calls and holds', async () => {
    const worker = await spawnWorker(naive())
    await worker.call('lock', 'k')
    expect(worker.holds()[0]?.releasedAt).toBeUndefined()
    const waiting = expect(worker.call('lock', 'k')).rejects.toThrow(/signal SIGKILL/)
    await worker.stop()
    await worker.kill()
    await waiting
    expect(worker.signalCode).toBe('SIGKILL')
    expect(isAlive(worker.pid)).toBe(false)
    expect(worker.holds()[0]?.releasedAt).toBeGreaterThan(worker.holds()[0]?.grantedAt ?? 0n)
    worker.assertHealthy()
    await expect(worker.call('lock', 'k')).rejects.toThrow(/ended already/)
  })

  test('events are found in the past and in the future', async () => {
    const worker = await spawnWorker(naive())
    const coming = worker.event('released')
    await worker.call('hold', 'k', {}, 1)
    expect(await coming).toBe(await worker.event(({ type, key }) => type === 'released' && key === 'k'))
    await expect(worker.event('lost', { timeoutMs: 20 })).rejects.toThrow(/No such event/)
    const never = expect(worker.event('lost')).rejects.toThrow(/ended before the event/)
    await worker.kill()
    await never
  })

  // These are not made with spawnWorker: it would fail the test, as it should.
  async function bad(options: Record<string, unknown>): Promise<Worker> {
    const worker = new Worker(naive(options))
    onTestFinished(() => worker.kill())
    await worker.ready()
    return worker
  }

  test('an unhandled rejection is not healthy', async () => {
    const worker = await bad({ defect: 'rejection' })
    worker.assertHealthy()
    const call = worker.call('lock', 'k').catch((error: Error) => error)
    await expect(worker.event('lost')).rejects.toThrow('nobody catches this')
    await call
    expect(worker.exitCode).toBe(1)
    expect(() => worker.assertHealthy()).toThrow('nobody catches this')
    await expect(worker.exit()).rejects.toThrow('nobody catches this')
  })

  test('what outlives close() is a leak', async () => {
    const worker = await bad({ defect: 'leak' })
    await expect(worker.exit({ withinMs: 300 })).rejects.toThrow(/still ran/)
  })

  test('a library that is not there', async () => {
    const worker = new Worker({ url: redis.url, library: 'file:///nowhere.mjs' })
    await expect(worker.ready()).rejects.toThrow(/did not start[^]*nowhere/)
  })
})
