import { Redis } from 'ioredis'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import { BackendError, connect, createLocks, type LockManager, type ManagerOptions } from '../../src/index.js'
import { blackHole } from '../support/black-hole.js'
import { overlaps } from '../support/check.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'
import { sends, startProxy, type DataHook, type Proxy } from '../support/tcp-proxy.js'
import { spawnWorker } from '../support/workers.js'

let redis: RedisServer
let proxy: Proxy
let onData: DataHook
const open: AsyncDisposable[] = []
const unhandled: unknown[] = []
const noteUnhandled = (reason: unknown) => unhandled.push(reason)

beforeAll(async () => {
  process.on('unhandledRejection', noteUnhandled)
  redis = await startRedis()
})
afterAll(async () => {
  process.off('unhandledRejection', noteUnhandled)
  await redis.stop()
})
beforeEach(async () => {
  await redis.cli('FLUSHALL')
  onData = () => 'pass'
  proxy = await startProxy({ to: redis, onData: (...args) => onData(...args) })
})
afterEach(async () => {
  await proxy.heal()
  await Promise.all(open.splice(0).map((one) => one[Symbol.asyncDispose]()))
  await proxy.close()
  expect(unhandled).toEqual([])
})

async function locksThrough(url: string, options: ManagerOptions = {}): Promise<LockManager> {
  const locks = await connect(url, { prefix: 'test', ttlMs: 1_000, ...options })
  open.push(locks)
  return locks
}

const msSince = (start: number) => performance.now() - start

/** Until the server has a waiter for `k`. */
async function someoneWaits(): Promise<void> {
  while (((await redis.cli('KEYS', 'test:q1:*:k')) as string[]).length === 0) await sleep(2)
}

describe('a black-holed connection', () => {
  it.each(['drop', 'hold'] as const)('(%s): the signal aborts before an intruder has the key', async (fault) => {
    const report = await blackHole(
      {
        async acquire(url, ttlMs) {
          const locks = await connect(url, { prefix: 'test' })
          const lock = await locks.lock('k', { ttlMs })
          let heard = false
          lock.signal.addEventListener('abort', () => (heard = true))
          // Only the event counts here: nobody has to ask.
          return { lost: () => heard, dispose: () => locks.close() }
        },
        async intrude(url, ttlMs, signal) {
          const locks = await connect(url, { prefix: 'test' })
          await locks.lock('k', { ttlMs, signal })
          setTimeout(() => void locks.close(), 100)
        },
      },
      { fault, afterMs: 500 },
    )
    expect(report.intruderAtMs).toBeDefined()
    expect(report.lostWhenIntruded).toBe(true)
    expect(report.lostAtMs).toBeLessThan(report.intruderAtMs!)
  })

  it('makes a first lock() fail clearly, and leaves nothing behind', async () => {
    const locks = await locksThrough(proxy.url())
    await locks.withLock('warm up', () => {})
    proxy.blackHole()
    const startedAt = performance.now()
    await expect(locks.lock('k')).rejects.toThrow(/No answer from redis within 5000 ms/)
    expect(msSince(startedAt)).toBeLessThan(6_000)
    // Not to know is not the same as to be refused.
    await expect(locks.tryLock('k', { waitMs: 100 })).rejects.toThrow(/No answer from redis within 100 ms/)
    await proxy.heal()
    const other = await locksThrough(redis.url)
    await expect(other.lock('k', { waitMs: 3_000 })).resolves.toBeDefined()
  })
})

describe('renewals that the server refuses', () => {
  const refuse = () => redis.cli('CONFIG', 'SET', 'min-replicas-to-write', 1)
  const accept = () => redis.cli('CONFIG', 'SET', 'min-replicas-to-write', 0)
  afterEach(accept)

  it('are tried again inside the TTL: the lock survives a short outage', async () => {
    const locks = await locksThrough(redis.url)
    const lock = await locks.lock('k')
    await sleep(250)
    await refuse()
    await sleep(500)
    await accept()
    await sleep(1_000)
    expect(lock.signal.aborted).toBe(false)
    expect(await lock.release()).toBe(true)
  })

  it('end the hold before its TTL, with the signal', async () => {
    const locks = await locksThrough(redis.url)
    const lock = await locks.lock('k')
    const expiry = performance.now() + Number(await redis.cli('PTTL', 'test:lock:k'))
    let abortedAt = Infinity
    lock.signal.addEventListener('abort', () => (abortedAt = performance.now()))
    await refuse()
    await sleep(1_500)
    expect(abortedAt).toBeLessThan(expiry)
    expect(lock.signal.reason).toMatchObject({ code: 'OWNERSHIP_LOST' })
    await accept()
    expect(await lock.release()).toBe(false)
  })
})

describe('a reply that comes after 0.8 × TTL', () => {
  it('is not believed: the claim is asked again, and its deadline counts from the sending', async () => {
    const locks = await locksThrough(proxy.url())
    await locks.withLock('warm up', () => {})
    const slow = proxy.delay(850, { direction: 'down' })
    const locking = locks.lock('k')
    await sleep(600)
    slow.heal()
    const lock = await locking
    const left = lock.remainingMs
    expect(left).toBeGreaterThan(200)
    expect(left).toBeLessThan(Number(await redis.cli('PTTL', 'test:lock:k')) + 1)
  })

  it('again and again is an error that says so, and frees the key', async () => {
    const locks = await locksThrough(proxy.url())
    await locks.withLock('warm up', () => {})
    proxy.delay(850, { direction: 'down' })
    await expect(locks.lock('k')).rejects.toThrow(/longer TTL is needed/)
    await proxy.heal()
    const other = await locksThrough(redis.url)
    await expect(other.lock('k', { waitMs: 2_500 })).resolves.toBeDefined()
  })
})

describe('wake-ups that are lost', () => {
  async function handOver(disturb: () => Promise<void> | void): Promise<number> {
    const holder = await locksThrough(redis.url)
    const waiter = await locksThrough(proxy.url())
    const first = await holder.lock('k', { ttlMs: 30_000 })
    const waiting = waiter.lock('k', { ttlMs: 5_000 })
    await someoneWaits()
    // Until it has asked again, after its subscription came on.
    await sleep(100)
    await disturb()
    await first.release()
    const releasedAt = performance.now()
    const second = await waiting
    expect(second.fence).toBeGreaterThan(first.fence)
    expect(await redis.cli('GET', 'test:lock:k')).toBe(second.token)
    return msSince(releasedAt)
  }

  it('with the connection: the waiter comes back, and has it soon after', async () => {
    const tookMs = await handOver(async () => {
      proxy.refuse()
      proxy.cut(sends('subscribe'))
      // Until the server has noticed.
      await sleep(100)
      setTimeout(() => void proxy.accept(), 1_000)
    })
    expect(tookMs).toBeLessThan(2_500)
  })

  it('in a connection that swallows them: found out by the heartbeat', async () => {
    const tookMs = await handOver(() => {
      proxy.blackHole({ only: sends('subscribe') })
    })
    expect(tookMs).toBeLessThan(1_500)
  })

  it('one by one: found out by the heartbeat', async () => {
    onData = (direction, chunk) => (direction === 'down' && chunk.includes('granted') ? 'drop' : 'pass')
    expect(await handOver(() => {})).toBeLessThan(1_500)
  })

  it('on the server, whose user may not publish: found out by the heartbeat', async () => {
    await redis.cli('ACL', 'SETUSER', 'mute', 'on', '>secret', '~test:*', '+@all', 'resetchannels')
    const url = `redis://mute:secret@127.0.0.1:${redis.port}`
    const holder = await locksThrough(url)
    const waiter = await locksThrough(url)
    const first = await holder.lock('k', { ttlMs: 30_000 })
    const waiting = waiter.lock('k')
    await someoneWaits()
    await first.release()
    const releasedAt = performance.now()
    await (await waiting).release()
    expect(msSince(releasedAt)).toBeLessThan(2_500)
    await redis.cli('ACL', 'DELUSER', 'mute')
  })

  it('a subscription that swallows everything is replaced', async () => {
    const holder = await locksThrough(redis.url)
    const waiter = await locksThrough(proxy.url())
    const first = await holder.lock('k', { ttlMs: 30_000 })
    const waiting = waiter.lock('k')
    await someoneWaits()
    proxy.blackHole({ only: sends('subscribe') })
    const subscriptions = () => proxy.connections.filter(sends('subscribe')).length
    await expect.poll(subscriptions, { timeout: 10_000 }).toBeGreaterThan(1)
    await first.release()
    await waiting
  })
})

describe('somebody who listens to everything (PSUBSCRIBE *)', () => {
  it('does not make the dead look alive', async () => {
    const spy = new Redis(redis.port)
    await spy.psubscribe('*')
    const locks = await locksThrough(redis.url)
    const first = await locks.lock('k', { ttlMs: 30_000 })
    const dead = await spawnWorker({ url: redis.url })
    const lost = dead.call('lock', 'k', { ttlMs: 30_000 }).catch(() => {})
    await someoneWaits()
    const waiting = locks.lock('k')
    await sleep(100)
    await dead.kill()
    await lost
    const releasedAt = performance.now()
    await first.release()
    await waiting
    expect(msSince(releasedAt)).toBeLessThan(1_000)
    spy.disconnect()
  })
})

describe('requests that are carried out twice', () => {
  /** The reply is swallowed and the connection cut: ioredis sends the request again. */
  function loseOneReply() {
    let lost = false
    onData = (direction, _chunk, connection) => {
      if (direction !== 'down' || lost) return 'pass'
      lost = true
      setImmediate(() => proxy.cut(connection))
      return 'drop'
    }
  }

  it('a claim holds once, with one fence', async () => {
    const locks = await locksThrough(proxy.url())
    await locks.withLock('warm up', () => {})
    loseOneReply()
    const lock = await locks.lock('k')
    expect(await redis.cli('GET', 'test:lock:k')).toBe(lock.token)
    expect(await lock.release()).toBe(true)
    expect(await redis.cli('EXISTS', 'test:lock:k')).toBe(0)
  })

  it('a release says that it was ours, and does not touch who holds it now', async () => {
    const locks = await locksThrough(proxy.url())
    const other = await locksThrough(redis.url)
    const lock = await locks.lock('k')
    const waiting = other.lock('k')
    await someoneWaits()
    loseOneReply()
    expect(await lock.release()).toBe(true)
    const second = await waiting
    expect(await redis.cli('GET', 'test:lock:k')).toBe(second.token)
  })

  it('through a client of the caller that does not send again, the release rejects and can be repeated', async () => {
    const client = new Redis(proxy.port, { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 })
    client.on('error', () => {})
    const locks = createLocks(redisBackend(client), { prefix: 'test' })
    const lock = await locks.lock('k')
    loseOneReply()
    await expect(lock.release()).rejects.toBeInstanceOf(BackendError)
    expect(await lock.release()).toBe(true)
    await locks.close()
    client.disconnect()
  })
})

describe('a wait that is aborted while it is being granted', () => {
  it('never leaves a lock behind, nor strands the next in line', async () => {
    const holder = await locksThrough(redis.url)
    const quitter = await locksThrough(proxy.url())
    const next = await locksThrough(redis.url)
    proxy.delay(1, { jitterMs: 3 })
    for (let round = 0; round < 100; round++) {
      const first = await holder.lock('k', { ttlMs: 30_000 })
      const controller = new AbortController()
      const quitting = quitter.lock('k', { ttlMs: 30_000, signal: controller.signal }).then(
        (lock) => lock.release(),
        (error: unknown) => expect(error).toBe(controller.signal.reason),
      )
      await someoneWaits()
      const waiting = next.lock('k', { ttlMs: 30_000, waitMs: 5_000 })
      setTimeout(() => controller.abort(), Math.random() * 8)
      await sleep(Math.random() * 5)
      await first.release()
      await quitting
      await (await waiting).release()
    }
    await sleep(100)
    expect(await redis.cli('KEYS', 'test:lock:*')).toEqual([])
  })
})

describe('a stress of everything at once', () => {
  it('has no two holders at a time, strands nobody and ends in time', async () => {
    const random = seeded(20_261_115)
    const workers = await Promise.all(Array.from({ length: 4 }, () => spawnWorker({ url: proxy.url() })))
    const convoys = workers.map((worker) => worker.call('convoy', 'k', 4, 150, 2, { ttlMs: 800 }))
    let done = false
    const all = Promise.all(convoys).finally(() => (done = true))
    all.catch(() => {})
    const faults = [
      () => proxy.reset(),
      () => proxy.cut((connection) => connection.id % 3 === 0),
      () => proxy.cut(sends('subscribe')),
      () => proxy.drop({ direction: 'down', only: (connection) => connection.id % 2 === 0 }),
      () => proxy.drop({ direction: 'up', only: (connection) => connection.id % 2 === 0 }),
      () => proxy.delay(100, { jitterMs: 300 }),
      () => proxy.hold(),
      () => proxy.blackHole({ only: (connection) => connection.id % 2 === 0 && sends('subscribe')(connection) }),
      () => void redis.cli('SCRIPT', 'FLUSH'),
      () => workers[Math.floor(random() * 4)]!.stop(),
    ]
    while (!done) {
      faults[Math.floor(random() * faults.length)]!()
      await sleep(50 + random() * 600)
      await proxy.heal()
      // What was dropped is missing in the middle of a stream, as TCP never does: those connections must not go on.
      proxy.reset((connection) => connection.id % 2 === 0 || random() < 0.5)
      await Promise.all(workers.map((worker) => worker.cont()))
      await sleep(100 + random() * 200)
    }
    await all
    const holds = workers.flatMap((worker) => worker.holds())
    expect(holds.length).toBeGreaterThanOrEqual(4 * 4 * 150)
    expect(overlaps(holds)).toEqual([])
  })
})

/** mulberry32 */
function seeded(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}
