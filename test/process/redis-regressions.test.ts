/** What once went wrong on a real Redis, each in the sequence of events that showed it. */
import { Redis } from 'ioredis'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import {
  BackendError,
  connect,
  ConnectorError,
  createLocks,
  LockNotHeldError,
  OwnershipLostError,
  type LockManager,
  type ManagerOptions,
} from '../../src/index.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'
import { startProxy, type Proxy } from '../support/tcp-proxy.js'
import { spawnWorker } from '../support/workers.js'

let redis: RedisServer
let proxy: Proxy
const cleanUps: (() => Promise<void> | void)[] = []

beforeAll(async () => {
  redis = await startRedis()
})
afterAll(() => redis.stop())
beforeEach(async () => {
  await redis.cli('FLUSHALL')
  proxy = await startProxy({ to: redis })
})
afterEach(async () => {
  await proxy.heal()
  for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp()
  await proxy.close()
})

function manager(port: number, options: ManagerOptions = {}, clientOptions: object = {}): LockManager {
  const client = new Redis(Object.assign({ port }, clientOptions))
  client.on('error', () => {})
  const locks = createLocks(redisBackend(client), { prefix: 'test', ...options })
  cleanUps.push(async () => {
    await locks.close()
    client.disconnect()
  })
  return locks
}

const msSince = (start: number) => performance.now() - start

async function queued(count: number): Promise<void> {
  for (;;) {
    const [queue] = (await redis.cli('KEYS', 'test:q1:*:k')) as string[]
    if (queue !== undefined && Number(await redis.cli('ZCARD', queue)) >= count) return
    await sleep(5)
  }
}

describe('a process with many waiters', () => {
  it('is heard all the time, although each of them is first for only a moment', async () => {
    const locks = manager(redis.port, { ttlMs: 60_000 })
    let freedAt = performance.now()
    let worstMs = 0
    const one = async () => {
      const lock = await locks.lock('k')
      worstMs = Math.max(worstMs, msSince(freedAt))
      await sleep(100)
      freedAt = performance.now()
      await lock.release()
    }
    // Longer than the 2.5 s after which somebody unheard of counts as gone.
    await Promise.all(Array.from({ length: 40 }, one))
    expect(worstMs).toBeLessThan(400)
  })

  it('that was passed over while it stood still comes back with all of them', async () => {
    const holder = manager(redis.port, { ttlMs: 3_600_000 })
    const lock = await holder.lock('k')
    const worker = await spawnWorker({ url: redis.url })
    const convoy = worker.call('convoy', 'k', 20, 1, 1, { ttlMs: 3_600_000, fairness: 'strict' })
    await queued(20)
    await worker.stop()
    await sleep(3_000)
    await lock.release()
    await worker.cont()
    const continuedAt = performance.now()
    await convoy
    expect(msSince(continuedAt)).toBeLessThan(4_000)
  })

  it('that cannot be told of grants gets its turn on a busy key', async () => {
    await redis.cli('ACL', 'SETUSER', 'deaf', 'on', '>secret', '~*', '+@all', 'resetchannels')
    const deaf = manager(redis.port, {}, { username: 'deaf', password: 'secret' })
    const others = [manager(redis.port), manager(redis.port)]
    let stop = false
    const busy = others.flatMap((locks) =>
      [1, 2].map(async () => {
        while (!stop) await locks.withLock('k', () => sleep(20))
      }),
    )
    await sleep(300)
    const askedAt = performance.now()
    const lock = await deaf.lock('k')
    expect(msSince(askedAt)).toBeLessThan(8_000)
    // Provisional at first; in full from when it knew.
    expect(Number(await redis.cli('PTTL', 'test:lock:k'))).toBeGreaterThan(5_000)
    await lock.release()
    stop = true
    await Promise.all(busy)
    // Once it may, it listens.
    await redis.cli('ACL', 'SETUSER', 'deaf', 'allchannels')
    const subscribed = async () => ((await redis.cli('PUBSUB', 'NUMSUB', `test:wake:${deaf.owner}`)) as [string, number])[1]
    await expect.poll(subscribed, { timeout: 5_000 }).toBe(1)
    cleanUps.unshift(async () => void (await redis.cli('ACL', 'DELUSER', 'deaf')))
  })
})

describe('a lock that was given away', () => {
  it('can be adopted only once, by whichever manager', async () => {
    const [a, b, c] = [manager(redis.port), manager(redis.port), manager(redis.port)]
    const text = (await a.lock('k')).transfer()
    const adopted = await b.adopt(text)
    await expect(c.adopt(text)).rejects.toBeInstanceOf(OwnershipLostError)
    await expect(b.adopt(text)).rejects.toBeInstanceOf(OwnershipLostError)
    adopted.assertHeld()
    expect(await adopted.release()).toBe(true)
  })

  it('can be adopted only once, also if the one who gave it takes it back, or gives it on', async () => {
    const [a, b, c] = [manager(redis.port), manager(redis.port), manager(redis.port)]
    const own = (await a.lock('own')).transfer()
    const back = await a.adopt(own)
    await expect(b.adopt(own)).rejects.toBeInstanceOf(OwnershipLostError)
    back.assertHeld()

    const first = (await a.lock('k')).transfer()
    const second = (await b.adopt(first)).transfer()
    await expect(b.adopt(first)).rejects.toBeInstanceOf(OwnershipLostError)
    const last = await c.adopt(second)
    expect(await redis.cli('GET', 'test:lock:k')).toBe(last.token)
    await expect(a.adopt(second)).rejects.toBeInstanceOf(OwnershipLostError)
    last.assertHeld()
  })

  it('and was revoked before anybody adopted it is free when one tries', async () => {
    const [a, b, c] = [manager(redis.port), manager(redis.port), manager(redis.port)]
    const text = (await a.lock('k', { ttlMs: 60_000 })).transfer()
    expect(await c.forceRelease('k')).toBe(true)
    await expect(b.adopt(text)).rejects.toBeInstanceOf(OwnershipLostError)
    await expect.poll(() => redis.cli('EXISTS', 'test:lock:k')).toBe(0)
  })

  it('is not cut short by a late renewal of whoever gave it away', async () => {
    const a = manager(proxy.port, { ttlMs: 1_200 })
    const b = manager(redis.port)
    const lock = await a.lock('k')
    const held = proxy.hold({ direction: 'up' })
    await sleep(500) // A renewal is on its way.
    const adopted = await b.adopt(lock.transfer())
    await adopted.extend(30_000)
    held.heal()
    await sleep(300)
    expect(Number(await redis.cli('PTTL', 'test:lock:k'))).toBeGreaterThan(25_000)
    expect(await redis.cli('GET', 'test:lock:k')).toBe(adopted.token)
  })
})

describe('requests that come late, or twice', () => {
  it('a forced release that is sent again leaves the next holder alone', async () => {
    const operator = manager(proxy.port, {}, { retryStrategy: () => 200 })
    const [a, d] = [manager(redis.port), manager(redis.port)]
    await a.lock('k', { ttlMs: 30_000 })
    proxy.onData = (direction, chunk, connection) => {
      if (direction !== 'down' || !chunk.includes('freed')) return 'pass'
      proxy.onData = undefined
      setImmediate(() => proxy.cut(connection))
      return 'drop'
    }
    const forcing = operator.forceRelease('k', { now: true })
    const next = await d.lock('k', { ttlMs: 30_000, waitMs: 5_000 })
    expect(await forcing).toBe(true)
    await sleep(200)
    expect(await redis.cli('GET', 'test:lock:k')).toBe(next.token)
    next.assertHeld()
  })

  it('a claim that comes after an extension does not cut it short', async () => {
    const a = manager(proxy.port, { ttlMs: 1_500 })
    const holder = manager(redis.port)
    const first = await holder.lock('k')
    const locking = a.lock('k')
    await queued(1)
    await sleep(900)
    // The heartbeat's claim is held back while the grant comes by the other connection.
    const held = proxy.hold({ direction: 'up', only: (connection) => !connection.sent.toLowerCase().includes('subscribe') })
    await sleep(900)
    await first.release()
    const lock = await locking
    await redis.cli('PEXPIRE', 'test:lock:k', 60_000)
    held.heal()
    await sleep(200)
    expect(Number(await redis.cli('PTTL', 'test:lock:k'))).toBeGreaterThan(50_000)
    await lock.release()
  })
})

describe('a release whose reply is lost', () => {
  it('ends the hold for its holder, whoever has the key by then', async () => {
    const a = manager(proxy.port, { ttlMs: 30_000 }, { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 })
    const c = manager(redis.port)
    const lock = await a.lock('k')
    proxy.drop({ direction: 'down' })
    const releasing = lock.release()
    await sleep(100)
    proxy.cut()
    await proxy.heal()
    await expect(releasing).rejects.toBeInstanceOf(BackendError)
    await c.lock('k')
    expect(() => lock.assertHeld()).toThrow(LockNotHeldError)
    expect(lock.remainingMs).toBe(0)
    await expect(lock.extend(5_000)).rejects.toBeInstanceOf(LockNotHeldError)
    expect(() => lock.transfer()).toThrow(LockNotHeldError)
    expect(await lock.release()).toBe(true)
    expect(await a.tryLock('k')).toBeNull()
  })
})

describe('what is told', () => {
  it('may be anything: a channel is open to all', async () => {
    const holder = manager(redis.port)
    const waiter = manager(redis.port)
    const first = await holder.lock('k')
    const waiting = waiter.lock('k')
    await queued(1)
    for (const message of ['', 'granted', 'granted x y z', 'granted 0 0 0 0 k', `granted ${'a'.repeat(32)} 9 9 9 test:lock:k`, 'revoked', '\0'])
      await redis.cli('PUBLISH', `test:wake:${waiter.owner}`, message)
    await first.release()
    expect(await (await waiting).release()).toBe(true)
  })

  it('reaches a holder that has never waited', async () => {
    const holder = manager(redis.port, { ttlMs: 3_600_000 })
    const operator = manager(redis.port)
    const lock = await holder.lock('k')
    const subscribed = async () => ((await redis.cli('PUBSUB', 'NUMSUB', `test:wake:${holder.owner}`)) as [string, number])[1]
    await expect.poll(subscribed, { timeout: 5_000 }).toBe(1)
    expect(await operator.forceRelease('k')).toBe(true)
    await expect.poll(() => lock.signal.aborted, { timeout: 2_000 }).toBe(true)
    await expect.poll(() => redis.cli('EXISTS', 'test:lock:k')).toBe(0)
  })

  it('is as good a proof of an epoch as a reply: fences go on from there', async () => {
    await redis.cli('SET', 'test:fence', '1893456000000000') // in the year 2030
    const [a, b] = [manager(redis.port), manager(redis.port)]
    const first = await a.lock('k')
    const waiting = b.lock('k')
    await queued(1)
    await sleep(100)
    await first.release()
    const second = await waiting
    await redis.cli('FLUSHALL')
    expect((await b.lock('other')).fence).toBeGreaterThan(second.fence)
    expect(await second.release()).toBe(false)
  })
})

it('a client that gives numbers as strings is understood', async () => {
  const locks = manager(redis.port, {}, { stringNumbers: true })
  const lock = await locks.lock('k')
  expect(await locks.tryLock('k')).toBeNull()
  const waiting = locks.lock('k', { fairness: 'strict' })
  await queued(1)
  expect(await lock.release()).toBe(true)
  expect(await (await waiting).release()).toBe(true)
})

it('the database of a client that is not ours stays what it is', async () => {
  const client = new Redis({ port: redis.port, db: 1 })
  await client.select(2)
  await client.set('where', 'two')
  const locks = createLocks(redisBackend(client), { prefix: 'test' })
  await locks.withLock('k', () => {})
  await sleep(50)
  expect(await client.get('where')).toBe('two')
  await locks.close()
  client.disconnect()
})

it('a URL with a database that does not exist is an error, not another database', async () => {
  await expect(connect(`${redis.url}/99`, { connectTimeoutMs: 2_000 })).rejects.toBeInstanceOf(ConnectorError)
})

it('a slow reply does not make the first renewal too late', async () => {
  const locks = manager(proxy.port, { ttlMs: 1_000 })
  await locks.withLock('warm up', () => {})
  const slow = proxy.delay(700, { direction: 'down' })
  const locking = locks.lock('k')
  await sleep(10)
  slow.heal()
  const lock = await locking
  await sleep(1_500)
  expect(lock.signal.aborted).toBe(false)
})
