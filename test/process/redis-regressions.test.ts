/** What once went wrong on a real Redis, each in the sequence of events that showed it. */
import { Redis } from 'ioredis'
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import * as lua from '../../src/backends/redis/lua.js'
import {
  BackendError,
  connect,
  ConnectorError,
  createLocks,
  LockNotHeldError,
  OwnershipLostError,
  type Leader,
  type LockManager,
  type ManagerOptions,
} from '../../src/index.js'
import { kinds, type Deployment, type ProxiedRoute, type Route } from '../support/redis-kinds.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'
import { startProxy, type Proxy } from '../support/tcp-proxy.js'

const msSince = (start: number) => performance.now() - start

describe.each(kinds)('$name', ({ start, resends }) => {
  let redis: Deployment
  let proxied: ProxiedRoute
  let proxy: Proxy
  const cleanUps: (() => Promise<void> | void)[] = []

  beforeAll(async () => {
    redis = await start()
  })
  afterAll(() => redis.stop())
  beforeEach(async () => {
    await redis.flush()
    proxied = await redis.behindProxy()
    proxy = proxied.proxy
  })
  afterEach(async () => {
    proxy.onData = undefined
    await proxy.heal()
    for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp()
    await proxy.close()
  })

  async function manager(route: Route, options: ManagerOptions = {}): Promise<LockManager> {
    const locks = await route.connect(options)
    cleanUps.push(() => locks.close())
    return locks
  }

  const threeManagers = async () => [await manager(redis), await manager(redis), await manager(redis)] as const

  async function queued(count: number): Promise<void> {
    while ((await redis.waiting('k')) < count) await sleep(5)
  }

  it('whoever observes an election hears of the next leader when the store has forgotten everything', async () => {
    const [a, b, c] = await threeManagers()
    const heard: Leader[] = []
    const observing = (async () => {
      for await (const leader of c.election('e').observe()) heard.push(leader)
    })()
    const until = async (value: string) => {
      while (heard.at(-1)?.value !== value) await sleep(5)
    }
    const first = await a.election('e').campaign('a1')
    await until('a1')
    // A Redis Cluster has no words, only leaders.
    for (const value of ['a2', 'a3']) await first.proclaim(value).then(() => until(value), () => {})
    await redis.flush()
    await b.election('e').campaign('b1')
    await until('b1')
    const revisions = heard.map(({ header }) => header.revision)
    expect(revisions).toEqual([...new Set(revisions)].sort((x, y) => Number(x - y)))
    await c.close()
    await observing
  })

  describe('a process with many waiters', () => {
    it('is heard all the time, although each of them is first for only a moment', async () => {
      const locks = await manager(redis, { ttlMs: 60_000 })
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
      const holder = await manager(redis, { ttlMs: 3_600_000 })
      const lock = await holder.lock('k')
      const worker = await redis.spawn()
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
      await redis.acl('SETUSER', 'deaf', 'on', '>secret', '~*', '+@all', 'resetchannels')
      const deaf = await manager(redis.as('deaf', 'secret'))
      const others = await threeManagers()
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
      await redis.acl('SETUSER', 'deaf', 'allchannels')
      await expect.poll(() => redis.channelsOf(deaf.owner, 'k'), { timeout: 5_000 }).toHaveLength(1)
      cleanUps.unshift(() => redis.acl('DELUSER', 'deaf'))
    })
  })

  describe('a lock that was given away', () => {
    it('can be adopted only once, by whichever manager', async () => {
      const [a, b, c] = await threeManagers()
      const text = (await a.lock('k')).transfer()
      const adopted = await b.adopt(text)
      await expect(c.adopt(text)).rejects.toBeInstanceOf(OwnershipLostError)
      await expect(b.adopt(text)).rejects.toBeInstanceOf(OwnershipLostError)
      adopted.assertHeld()
      expect(await adopted.release()).toBe(true)
    })

    it('can be adopted only once, also if the one who gave it takes it back, or gives it on', async () => {
      const [a, b, c] = await threeManagers()
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
      const [a, b, c] = await threeManagers()
      const text = (await a.lock('k', { ttlMs: 60_000 })).transfer()
      expect(await c.forceRelease('k')).toBe(true)
      await expect(b.adopt(text)).rejects.toBeInstanceOf(OwnershipLostError)
      await expect.poll(() => redis.cli('EXISTS', 'test:lock:k')).toBe(0)
    })

    it('is not cut short by a late renewal of whoever gave it away', async () => {
      const a = await manager(proxied, { ttlMs: 1_200 })
      const b = await manager(redis)
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
      const operator = await manager(proxied)
      const [a, d] = await threeManagers()
      await a.lock('k', { ttlMs: 30_000 })
      proxy.onData = (direction, chunk, connection) => {
        if (direction !== 'down' || !chunk.includes('freed')) return 'pass'
        proxy.onData = undefined
        setImmediate(() => proxy.cut(connection))
        return 'drop'
      }
      const forcing = operator.forceRelease('k', { now: true })
      const forced = resends ? expect(forcing).resolves.toBe(true) : expect(forcing).rejects.toBeInstanceOf(BackendError)
      const next = await d.lock('k', { ttlMs: 30_000, waitMs: 5_000 })
      await forced
      await sleep(200)
      expect(await redis.cli('GET', 'test:lock:k')).toBe(next.token)
      next.assertHeld()
    })

    it('a claim that comes after an extension does not cut it short', async () => {
      const a = await manager(proxied, { ttlMs: 1_500 })
      const holder = await manager(redis)
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

  describe('what is told', () => {
    it('may be anything: a channel is open to all', async () => {
      const holder = await manager(redis)
      const waiter = await manager(redis)
      const first = await holder.lock('k')
      const waiting = waiter.lock('k')
      await queued(1)
      const server = await redis.masterOf('test:lock:k')
      const [channel] = await redis.channelsOf(waiter.owner, 'k')
      const strange = ['', 'granted', 'granted x y z', 'granted 0 0 0 0 k', `granted ${'a'.repeat(32)} 9 9 9 test:lock:k`, 'revoked', '\0']
      for (const message of strange) expect(await server.cli('PUBLISH', channel!, message)).toBe(1)
      await first.release()
      expect(await (await waiting).release()).toBe(true)
    })

    it('reaches a holder that has never waited', async () => {
      const holder = await manager(redis, { ttlMs: 3_600_000 })
      const operator = await manager(redis)
      const lock = await holder.lock('k')
      await expect.poll(() => redis.channelsOf(holder.owner, 'k'), { timeout: 5_000 }).toHaveLength(1)
      expect(await operator.forceRelease('k')).toBe(true)
      await expect.poll(() => lock.signal.aborted, { timeout: 2_000 }).toBe(true)
      await expect.poll(() => redis.cli('EXISTS', 'test:lock:k')).toBe(0)
    })

    it('is as good a proof of an epoch as a reply: fences go on from there', async () => {
      const [a, b] = await threeManagers()
      await a.withLock('k', () => {})
      await redis.cli('SET', await redis.fenceOf('k'), '1893456000000000') // in the year 2030
      const first = await a.lock('k')
      const waiting = b.lock('k')
      await queued(1)
      await sleep(100)
      await first.release()
      const second = await waiting
      await redis.flush()
      expect(await second.release()).toBe(false)
      expect((await b.lock('k')).fence).toBeGreaterThan(second.fence)
    })
  })

  it('a slow reply does not make the first renewal too late', async () => {
    const locks = await manager(proxied, { ttlMs: 1_000 })
    await locks.withLock('warm up', () => {})
    const slow = proxy.delay(700, { direction: 'down' })
    const locking = locks.lock('k')
    await sleep(10)
    slow.heal()
    const lock = await locking
    await sleep(1_500)
    expect(lock.signal.aborted).toBe(false)
  })
})

describe('a client of the caller', () => {
  let redis: RedisServer

  beforeAll(async () => {
    redis = await startRedis()
  })
  afterAll(() => redis.stop())
  beforeEach(() => redis.cli('FLUSHALL'))

  /** An ioredis client with settings that are not the usual ones. */
  async function withClient(settings: object, body: (client: Redis) => Promise<void>): Promise<void> {
    const client = new Redis(settings)
    client.on('error', () => {})
    try {
      await body(client)
    } finally {
      client.disconnect()
    }
  }

  it('that does not send again: a release whose reply is lost ends the hold, whoever has the key by then', async () => {
    await using proxy = await startProxy({ to: redis })
    await using c = await connect(redis.url, { prefix: 'test' })
    const settings = { port: proxy.port, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 }
    await withClient(settings, async (client) => {
      await using a = createLocks(redisBackend(client), { prefix: 'test', ttlMs: 30_000 })
      // From here on the server knows the scripts.
      await a.withLock('k', () => {})
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

  describe('that loses its connection between the short way and the long one', () => {
    /** From now on this script fails, as often as is said. */
    function failing(client: Redis, source: string, times: number): void {
      const sha = createHash('sha1').update(source).digest('hex')
      const evalsha = client.evalsha.bind(client) as (...args: unknown[]) => Promise<unknown>
      const sometimes = (...args: unknown[]) => {
        if (args[0] === sha && times-- > 0) return Promise.reject(new Error('Connection is closed.'))
        return evalsha(...args)
      }
      Object.assign(client, { evalsha: sometimes })
    }

    it('what was taken is held, beside what is not known', async () => {
      await using other = await connect(redis.url, { prefix: 'test' })
      await other.lock('busy')
      await withClient({ port: redis.port }, async (client) => {
        await using locks = createLocks(redisBackend(client), { prefix: 'test' })
        failing(client, lua.claim, 1)
        const [free, busy] = await Promise.allSettled([locks.tryLock('free'), locks.tryLock('busy')])
        expect(busy).toMatchObject({ status: 'rejected', reason: expect.any(BackendError) as unknown })
        expect(free).toMatchObject({ status: 'fulfilled', value: { key: 'free' } })
      })
    })

    it('what was dropped is released, beside what is not known', async () => {
      await using other = await connect(redis.url, { prefix: 'test' })
      await withClient({ port: redis.port }, async (client) => {
        await using locks = createLocks(redisBackend(client), { prefix: 'test' })
        const [free, contended] = await Promise.all([locks.lock('free'), locks.lock('contended')])
        const waiting = other.lock('contended')
        waiting.catch(() => {})
        while (((await redis.cli('KEYS', 'test:q1:*')) as string[]).length === 0) await sleep(5)
        failing(client, lua.release, 1)
        const [dropped, unknown] = await Promise.allSettled([free.release(), contended.release()])
        expect(unknown).toMatchObject({ status: 'rejected', reason: expect.any(BackendError) as unknown })
        expect(dropped).toEqual({ status: 'fulfilled', value: true })
        expect(await contended.release()).toBe(true)
        await waiting
      })
    })
  })

  it('takes the short way until somebody is in the way, and again when nobody has been for a while; its fences only grow', async () => {
    await withClient({ port: redis.port }, async (client) => {
      const names = new Map(Object.entries(lua).map(([name, source]) => [createHash('sha1').update(source).digest('hex'), name]))
      const ran: string[] = []
      const evalsha = client.evalsha.bind(client) as (...args: unknown[]) => Promise<unknown>
      Object.assign(client, { evalsha: (...args: unknown[]) => (ran.push(names.get(String(args[0]))!), evalsha(...args)) })
      const ranSince = () => ran.splice(0)
      const queued = async () => {
        while (((await redis.cli('KEYS', 'test:q1:*:k')) as string[]).length === 0) await sleep(5)
      }
      await using locks = createLocks(redisBackend(client), { prefix: 'test' })
      await using other = await connect(redis.url, { prefix: 'test' })
      const fences: bigint[] = []
      const noted = <Lock extends { readonly fence: bigint }>(lock: Lock) => (fences.push(lock.fence), lock)

      const alone = noted(await locks.lock('k'))
      await alone.release()
      expect(ranSince()).toEqual(['take', 'drop'])

      // Somebody waits: what is dropped is left, and released.
      const first = noted(await locks.lock('k'))
      const others = other.lock('k')
      await queued()
      expect(await first.release()).toBe(true)
      const second = noted(await others)
      expect(ranSince()).toEqual(['take', 'drop', 'release'])

      // Somebody holds: known as busy by now, it is claimed, and queued once it listens.
      const waiting = locks.lock('k')
      await queued()
      expect(new Set(ranSince())).toEqual(new Set(['claim']))
      // A newcomer finds it free for no moment.
      const third = Promise.all([waiting.then(noted), second.release(), other.tryLock('k').then((lock) => expect(lock).toBeNull())])
      const [held] = await third
      expect(await held.release()).toBe(true)
      // It may have asked again while it waited.
      expect(ranSince().filter((name) => name !== 'claim')).toEqual(['release'])

      // What is not busy takes the short way all the same.
      await locks.withLock('another', () => {})
      expect(ranSince()).toEqual(['take', 'drop'])
      await sleep(5_100)
      await (await locks.lock('k').then(noted)).release()
      expect(ranSince()).toEqual(['take', 'drop'])
      for (let i = 1; i < fences.length; i++) expect(fences[i]).toBeGreaterThan(fences[i - 1]!)
      expect(fences).toHaveLength(5)
    })
  })

  it('of a user who may not have one key any more keeps the locks on others', async () => {
    await redis.cli('ACL', 'SETUSER', 'some', 'on', '>secret', '~*', '&*', '+@all')
    await withClient({ port: redis.port, username: 'some', password: 'secret' }, async (client) => {
      await using locks = createLocks(redisBackend(client), { prefix: 'test' })
      const options = { ttlMs: 1_000, renewEveryMs: 200 }
      const [kept, forbidden] = await Promise.all([locks.lock('kept', options), locks.lock('forbidden', options)])
      await redis.cli('ACL', 'SETUSER', 'some', 'resetkeys', '~test:fence', '~test:*kept')
      await expect.poll(() => forbidden.signal.aborted, { timeout: 2_000 }).toBe(true)
      await sleep(500)
      expect(kept.signal.aborted).toBe(false)
    })
    await redis.cli('ACL', 'DELUSER', 'some')
  })

  it('an outsider may hold with any value, also one that looks like a failure', async () => {
    await withClient({ port: redis.port }, async (client) => {
      await using locks = createLocks(redisBackend(client), { prefix: 'test' })
      await client.set('test:lock:k', '-1', 'PX', 60_000)
      expect(await locks.tryLock('k')).toBeNull()
      const seen: string[] = []
      for await (const { key } of locks.inspect()) seen.push(key)
      expect(seen).toEqual(['k'])
      await locks.forceRelease('k', { now: true })
      expect(await client.exists('test:lock:k')).toBe(0)
    })
  })

  it('hears of an epoch that cannot be: nobody is kept from locking by it', async () => {
    await withClient({ port: redis.port }, async (client) => {
      await using locks = createLocks(redisBackend(client), { prefix: 'test' })
      await locks.lock('held')
      const channel = `test:wake:${locks.owner}`
      await expect.poll(async () => (await client.pubsub('NUMSUB', channel))[1], { timeout: 3_000 }).toBe(1)
      await client.publish(channel, `granted ${'a'.repeat(32)} ${'9'.repeat(20)} 1 0 test:lock:k`)
      await client.set('test:lock:busy', `${'a'.repeat(32)}.${'9'.repeat(19)}.somebody`, 'PX', 60_000)
      expect(await locks.tryLock('busy')).toBeNull()
      await sleep(50)
      await locks.withLock('k', () => {})
      expect(String(await client.get('test:fence'))).toHaveLength(16)
    })
  })

  it('that gives numbers as strings is understood', async () => {
    await withClient({ port: redis.port, stringNumbers: true }, async (client) => {
      await using locks = createLocks(redisBackend(client), { prefix: 'test' })
      const lock = await locks.lock('k')
      expect(await locks.tryLock('k')).toBeNull()
      const waiting = locks.lock('k', { fairness: 'strict' })
      while (((await redis.cli('KEYS', 'test:q1:*:k')) as string[]).length === 0) await sleep(5)
      expect(await lock.release()).toBe(true)
      expect(await (await waiting).release()).toBe(true)
    })
  })

  it('keeps its database', async () => {
    await withClient({ port: redis.port, db: 1 }, async (client) => {
      await client.select(2)
      await client.set('where', 'two')
      await using locks = createLocks(redisBackend(client), { prefix: 'test' })
      await locks.withLock('k', () => {})
      await sleep(50)
      expect(await client.get('where')).toBe('two')
    })
  })

  it('is not needed for a URL; one with a database that does not exist is an error, not another database', async () => {
    await expect(connect(`${redis.url}/99`, { connectTimeoutMs: 2_000 })).rejects.toBeInstanceOf(ConnectorError)
  })
})
