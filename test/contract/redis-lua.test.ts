/** The scripts themselves, one step at a time, as the server sees them. */
import { Redis } from 'ioredis'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { Keys } from '../../src/backends/redis/keys.js'
import * as lua from '../../src/backends/redis/lua.js'
import { slotOf, tagOf } from '../../src/backends/redis/slots.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

let server: RedisServer
let client: Redis
let me: Listening
const keys = new Keys('t', false)
const fence = keys.fence(0)
const [lock, queue, heard, meta] = keys.of('k')

beforeAll(async () => {
  server = await startRedis()
  client = new Redis(server.port)
  me = await listening('me')
})
afterAll(async () => {
  await me.stop()
  client.disconnect()
  await server.stop()
})
beforeEach(() => client.flushall())

const id = (letter: string) => letter.repeat(32)
const [A, B, C] = [id('a'), id('b'), id('c')]

interface Call {
  readonly owner?: string
  readonly seen?: string
  readonly resources?: readonly string[]
}

async function run(source: string, args: readonly (string | number)[], call: Call = {}): Promise<unknown[][]> {
  const { owner = 'me', seen = '0', resources = ['k'] } = call
  const allKeys = [fence, ...resources.flatMap((resource) => [...keys.of(resource)])]
  const reply = await client.eval(source, allKeys.length, ...allKeys, owner, seen, keys.wake, ...args)
  const items = Array.isArray(reply) ? (reply as [number, string, unknown[]])[2] : [reply]
  return items.map((item) => {
    if (Array.isArray(item)) return item
    if (typeof item === 'number') return [item]
    // A grant: its epoch, how many wait behind it, and whether it was passed over.
    const [epoch, waiting = 0, passedOver = 0] = String(item).split(' ')
    return [1, epoch, Number(waiting), Number(passedOver)]
  })
}

const claim = async (claimId: string, how: 'queue' | 'hearing' | 'leave' = 'queue', { ttl = 5_000, place = '', about = '', ...call }: Call & { ttl?: number; place?: string; about?: string } = {}) =>
  (await run(lua.claim, [how, place + about === '' ? `${claimId} ${ttl}` : `${claimId} ${ttl} ${place} ${about}`], call))[0]!
const renew = async (claimId: string, ttl: number, { shortenUntil = '', from = '', ...call }: Call & { shortenUntil?: string; from?: string } = {}) =>
  (await run(lua.renew, [claimId, ttl, shortenUntil, '', from], call))[0]!
const release = async (claimId: string, { ttl = 5_000, ...call }: Call & { ttl?: number } = {}) =>
  (await run(lua.release, [`${claimId} ${ttl}`], call))[0]!

interface Listening {
  readonly told: string[]
  stop(): Promise<void>
}

/** Subscribed, and so alive as long as it is heard of. */
async function listening(owner: string): Promise<Listening> {
  const subscriber = new Redis(server.port)
  const told: string[] = []
  subscriber.on('message', (_: string, message: string) => told.push(message))
  await subscriber.subscribe(keys.wake + owner)
  return { told, stop: async () => void (await subscriber.quit()) }
}

/** What renewals by the locks' own keys say: held, revoked or not ours. */
const keep = async (items: readonly { claimId: string; ttl?: number; resource?: string }[], owner = 'me') => {
  const locks = items.map(({ resource = 'k' }) => keys.lockOf(resource))
  const ids = items.map(({ claimId }) => claimId).join('')
  const ttls = items.map(({ ttl = 5_000 }) => ttl)
  const [, , states] = (await client.eval(lua.keep, locks.length, ...locks, owner, '', ids, ...ttls)) as [number, string, string]
  return states
}

describe('keeping', () => {
  it('renews what is ours, and says of each what it is', async () => {
    await claim(A, 'queue', { ttl: 1_000 })
    await claim(B, 'queue', { resources: ['other'], owner: 'somebody' })
    await client.set('t:lock:revoked', `~${C}.1.me`)
    await client.rpush('t:lock:bad', 'x')
    const items = [
      { claimId: A, ttl: 60_000 },
      { claimId: B, resource: 'other' },
      { claimId: C, resource: 'revoked' },
      { claimId: C, resource: 'bad' },
      { claimId: C, resource: 'gone' },
    ]
    expect(await keep(items)).toBe('10200')
    expect(await client.pttl(lock)).toBeGreaterThan(50_000)
    expect(await client.pttl('t:lock:other')).toBeLessThanOrEqual(5_000)
  })

  it('never shortens', async () => {
    await claim(A, 'queue', { ttl: 60_000 })
    expect(await keep([{ claimId: A, ttl: 1_000 }])).toBe('1')
    expect(await client.pttl(lock)).toBeGreaterThan(50_000)
  })

  it('takes no owner for another whose name ends alike', async () => {
    await claim(A, 'queue', { owner: 'x.me', ttl: 1_000 })
    expect(await keep([{ claimId: A }], 'me')).toBe('0')
  })
})

/** What the short scripts say: the first epoch, and which were taken. */
async function take(items: readonly { claimId: string; resource?: string; ttl?: number }[], call: Call & { source?: string } = {}) {
  const { owner = 'me', seen = '0', source = lua.take } = call
  const pairs = items.flatMap(({ resource = 'k' }) => [keys.lockOf(resource), keys.queueOf(resource)])
  const args = items.map(({ claimId, ttl = 5_000 }) => `${claimId} ${ttl}`)
  const reply = (await client.eval(source, 1 + pairs.length, fence, ...pairs, owner, seen, '', ...args)) as string
  const [epoch = '', states] = reply.split(' ')
  return { epoch, states }
}
const drop = (items: readonly { claimId: string; resource?: string }[]) => {
  const pairs = items.flatMap(({ resource = 'k' }) => [keys.lockOf(resource), keys.queueOf(resource)])
  return client.eval(lua.drop, pairs.length, ...pairs, ...items.map(({ claimId }) => claimId))
}
/** The same script on a server whose clock shows something else. */
const atTime = (source: string, seconds: number, micros = 0) => {
  const changed = source.replace(/(redis\.)?call\('TIME'\)/, `{'${seconds}', '${micros}'}`)
  expect(changed).not.toBe(source)
  return changed
}

/** While it is out of memory, a script may write only what needs none until it has written something. */
async function outOfMemory<T>(body: () => Promise<T>): Promise<T> {
  await client.config('SET', 'maxmemory', '1')
  try {
    return await body()
  } finally {
    await client.config('SET', 'maxmemory', '0')
  }
}

describe('take.lua', () => {
  it('makes exactly what claim.lua makes, and what claim.lua knows as its own', async () => {
    const { epoch, states } = await take([{ claimId: A }])
    expect(states).toBe('1')
    expect(await client.get(lock)).toBe(`${A}.${epoch}.me`)
    expect(await client.pttl(lock)).toBeGreaterThan(4_000)
    expect((await client.keys('*')).sort()).toEqual([fence, lock].sort())
    const [seconds] = await client.time()
    expect(Math.abs(Number(epoch.slice(0, -6)) - Number(seconds))).toBeLessThanOrEqual(5)
    // Asked again, after a reply that was lost: left for claim.lua, which says what it said.
    expect((await take([{ claimId: A }])).states).toBe('0')
    expect(await claim(A)).toEqual([1, epoch, 0, 0])
  })

  it('leaves what is held, revoked, waited for, or of another type, and gives the others epochs of their own', async () => {
    await claim(A, 'queue', { resources: ['held'] })
    await client.set('t:lock:revoked', `~${A}.1.me`)
    await client.rpush('t:lock:bad', 'x')
    await client.zadd(keys.queueOf('waited for'), 1, `${B}|5000|1|me\n`)
    await client.rpush(keys.queueOf('bad queue'), 'x')
    const before = await client.dbsize()
    const names = ['one', 'held', 'revoked', 'two', 'bad', 'waited for', 'bad queue', 'three', 'one']
    const { epoch, states } = await take(names.map((resource) => ({ claimId: C, resource })))
    expect(states).toBe('100100010')
    for (const [i, resource] of names.entries()) {
      if (states![i] === '1') expect(await client.get(keys.lockOf(resource))).toBe(`${C}.${BigInt(epoch) + BigInt(i)}.me`)
    }
    expect(await client.dbsize()).toBe(before + 3)
    // Whoever comes next has a later one, by either script.
    expect(BigInt((await client.get(fence))!)).toBe(BigInt(epoch) + 8n)
  })

  it('and claim.lua take turns with epochs that only grow, also within one microsecond', async () => {
    const epochs: bigint[] = []
    const [seconds = 0] = await client.time()
    for (let i = 0; i < 20; i++) {
      const names = Array.from({ length: 1 + (i % 4) }, (_, n) => `${i} ${n}`)
      // The clock stands still, and is set back in between.
      const clock = seconds - (i % 5 === 4 ? 3_600 : 0)
      const taken = await take(names.map((resource) => ({ claimId: A, resource })), { source: atTime(lua.take, clock, 5) })
      if (taken.states !== undefined) epochs.push(...names.map((_, n) => BigInt(taken.epoch) + BigInt(n)))
      const claimed = await run(atTime(lua.claim, clock, 5), ['queue', ...names.map(() => `${B} 5000`)], {
        resources: names.map((name) => `c ${name}`),
      })
      epochs.push(...claimed.map(([, epoch]) => BigInt(epoch as string)))
    }
    expect(epochs.length).toBeGreaterThan(50)
    for (let i = 1; i < epochs.length; i++) expect(epochs[i]).toBeGreaterThan(epochs[i - 1]!)
  })

  it('takes nothing if its epoch could not be the time', async () => {
    const [seconds] = await client.time()
    for (const later of [`${Number(seconds) + 60}000000`, '9007199254740993', '9223372036854775000']) {
      await client.flushall()
      expect(await take([{ claimId: A }], { seen: later })).toEqual({ epoch: '', states: undefined })
      expect(await client.dbsize()).toBe(0)
      await client.set(fence, later)
      expect(await take([{ claimId: A }])).toEqual({ epoch: '', states: undefined })
      expect(await client.get(fence)).toBe(later)
      expect(await client.dbsize()).toBe(1)
    }
  })

  it('takes nothing a second time within one microsecond, nor in the very one that this client has seen', async () => {
    const [seconds] = await client.time()
    const source = atTime(lua.take, Number(seconds), 5)
    const first = await take([{ claimId: A, resource: 'one' }], { source })
    expect(first.states).toBe('1')
    expect(await take([{ claimId: B, resource: 'two' }], { source })).toEqual({ epoch: '', states: undefined })
    expect(await client.get(fence)).toBe(first.epoch)
    await client.flushall()
    expect(await take([{ claimId: A }], { source, seen: first.epoch })).toEqual({ epoch: '', states: undefined })
    expect(await client.dbsize()).toBe(0)
  })

  it('takes nothing on a server whose clock has fallen back to its first seconds', async () => {
    // 190 s after the beginning of 1970: as texts, '190000000' comes after '1700000000000000'.
    const source = atTime(lua.take, 190)
    expect(await take([{ claimId: A }], { source, seen: '1700000000000000' })).toEqual({ epoch: '', states: undefined })
    await client.set(fence, '1700000000000000')
    expect(await take([{ claimId: A }], { source })).toEqual({ epoch: '', states: undefined })
    expect(await client.get(fence)).toBe('1700000000000000')
    const [[, epoch]] = (await run(atTime(lua.claim, 190), ['queue', `${A} 5000`])) as [unknown[]]
    expect(epoch).toBe('1700000000000001')
  })

  it('writes nothing if it is out of memory', async () => {
    await expect(outOfMemory(() => take([{ claimId: A }, { claimId: B, resource: 'two' }]))).rejects.toThrow(/^OOM/)
    expect(await client.dbsize()).toBe(0)
  })
})

describe('drop.lua', () => {
  it('frees what is ours and what nobody waits for, and leaves the rest as it is', async () => {
    const names = ['one', 'not ours', 'revoked', 'bad', 'gone', 'waited for', 'bad queue', 'two']
    await take(['one', 'waited for', 'bad queue', 'two'].map((resource) => ({ claimId: A, resource })))
    await take([{ claimId: B, resource: 'not ours' }])
    await client.set('t:lock:revoked', `~${A}.1.me`)
    await client.rpush('t:lock:bad', 'x')
    await claim(C, 'queue', { resources: ['waited for'] })
    await client.rpush(keys.queueOf('bad queue'), 'x')
    expect(await drop(names.map((resource) => ({ claimId: A, resource })))).toBe('10000001')
    const left = await Promise.all(names.map((resource) => client.exists(keys.lockOf(resource))))
    expect(left).toEqual([0, 1, 1, 1, 0, 1, 1, 0])
    expect(await client.zcard(keys.queueOf('waited for'))).toBe(1)
    // Sent again, it says that there is nothing to release.
    expect(await drop([{ claimId: A, resource: 'one' }])).toBe('0')
  })

  it('what it leaves is handed over by release.lua', async () => {
    const next = await listening('next')
    const { epoch } = await take([{ claimId: A }])
    await claim(B, 'queue', { owner: 'next' })
    expect(await drop([{ claimId: A }])).toBe('0')
    expect(await release(A)).toEqual([1])
    const value = await client.get(lock)
    expect(value).toContain(`${B}.`)
    expect(BigInt(value!.split('.')[1]!)).toBeGreaterThan(BigInt(epoch))
    await next.stop()
  })

  it('works while it is out of memory', async () => {
    await take([{ claimId: A }])
    expect(await outOfMemory(() => drop([{ claimId: A }]))).toBe('1')
    expect(await client.exists(lock)).toBe(0)
  })
})

describe('lone.lua', () => {
  const lone = (claimId: string) => client.eval(lua.lone, 1, lock, claimId)

  it('frees what is ours by its own key, revoked or not, and touches nothing else', async () => {
    await take([{ claimId: A }])
    await claim(C)
    const others = (await client.keys('*')).filter((key) => key !== lock).sort()
    expect(await lone(B)).toBe(0)
    expect(await client.get(lock)).toContain(A)
    expect(await lone(A)).toBe(1)
    expect((await client.keys('*')).sort()).toEqual(others)
    expect(await lone(A)).toBe(0)
    await client.set(lock, `~${A}.1.me`)
    expect(await lone(A)).toBe(1)
    // Whoever waits finds out by asking, and nobody gets in before.
    expect((await take([{ claimId: B }])).states).toBe('0')
    expect((await claim(C))[0]).toBe(1)
  })

  it('says what is wrong with a key of another type', async () => {
    await client.rpush(lock, 'x')
    await expect(lone(A)).rejects.toThrow(/WRONGTYPE/)
  })
})

describe('slots and tags', () => {
  it('are those of the cluster specification', () => {
    expect(slotOf('123456789')).toBe(0x31c3 % 16_384)
    expect(slotOf('{user1000}.following')).toBe(slotOf('user1000'))
    expect(slotOf('foo{}{bar}')).not.toBe(slotOf('bar'))
    expect(slotOf('foo{{bar}}zap')).toBe(slotOf('{bar'))
    expect(slotOf('foo{bar}{zap}')).toBe(slotOf('bar'))
  })

  it('put all keys of a resource into one slot, however odd it is', () => {
    for (const key of ['k', '{a}b', '{}x', 'x{', '}{', 'é{ü}', '\n{\0}']) {
      const slots = keys.of(key).map((name) => slotOf(name))
      expect(new Set(slots).size).toBe(1)
    }
  })

  it('have a tag for every slot', () => {
    for (let slot = 0; slot < 16_384; slot++) expect(slotOf(tagOf(slot))).toBe(slot)
  })
})

describe('claim.lua', () => {
  it('makes exactly what SET NX PX makes', async () => {
    const [code, epoch, waiting] = await claim(A)
    expect([code, waiting]).toEqual([1, 0])
    expect(await client.get(lock)).toBe(`${A}.${String(epoch)}.me`)
    expect(await client.pttl(lock)).toBeGreaterThan(4_000)
    expect((await client.keys('*')).sort()).toEqual([fence, lock].sort())
  })

  it('gives the same state when asked again, and never a shorter life', async () => {
    const [, epoch] = await claim(A)
    await client.pexpire(lock, 60_000)
    expect(await claim(A)).toEqual([1, epoch, 0, 0])
    expect(await client.pttl(lock)).toBeGreaterThan(50_000)
    await client.pexpire(lock, 100)
    await claim(A)
    expect(await client.pttl(lock)).toBeGreaterThan(4_000)
  })

  it('epochs go on from the largest of counter, clock and what the client has seen', async () => {
    await client.set(fence, '9007199254740993')
    expect((await claim(A))[1]).toBe('9007199254740994')
    await release(A)
    expect((await claim(B, 'queue', { seen: '9223372036854775000' }))[1]).toBe('9223372036854775001')
    await release(B)
    await client.del(fence)
    const [, epoch] = await claim(C)
    const [seconds] = await client.time()
    expect(String(epoch).slice(0, -6)).toBe(String(seconds))
  })

  it('has an epoch for each of many, and a later one for whoever comes within the same microsecond', async () => {
    const [seconds] = await client.time()
    const source = atTime(lua.claim, Number(seconds), 5)
    const claims = [A, B, C].map((claimId) => `${claimId} 5000`)
    const many = await run(source, ['queue', ...claims], { resources: ['one', 'two', 'three'] })
    const next = await run(source, ['queue', `${A} 5000`], { resources: ['four'] })
    const epochs = [...many, ...next].map(([, epoch]) => BigInt(epoch as string))
    for (let i = 1; i < epochs.length; i++) expect(epochs[i]).toBeGreaterThan(epochs[i - 1]!)
  })

  it('grants no epoch that was not written down, not even out of memory', async () => {
    await claim(B, 'queue', { resources: ['mine'] })
    await client.del(fence)
    const args = [A, B, C].map((claimId) => `${claimId} 5000`)
    // The first cannot write; the second, asked again, can; and from then on all can.
    const items = await outOfMemory(() => run(lua.claim, ['queue', ...args], { resources: ['one', 'mine', 'two'] }))
    expect(items.map(([code]) => code)).toEqual([-1, 1, 1])
    expect(items[0]![1]).toMatch(/^OOM/)
    expect(BigInt((await client.get(fence)) ?? 0)).toBeGreaterThanOrEqual(BigInt(items[2]![1] as string))
  })

  it('the fast path and the long way give the same', async () => {
    const fast = await claim(A)
    await release(A)
    // With something about it, the long way is taken.
    const slow = await claim(B, 'queue', { about: '["x",null]' })
    expect([fast[0], fast[2], fast[3]]).toEqual([slow[0], slow[2], slow[3]])
    expect(BigInt(slow[1] as string)).toBeGreaterThan(BigInt(fast[1] as string))
    expect(await client.get(meta)).toBe(`${B}\n["x",null]`)
  })

  it('queues by ticket, and says who is in the way', async () => {
    const [, epoch] = await claim(A, 'queue', { owner: 'holder' })
    expect(await claim(B)).toEqual([0, '1', 0, 0, `${A}.${String(epoch)}.holder`, expect.any(Number), '', 1, 0])
    expect((await claim(C)).slice(0, 4)).toEqual([0, '2', 1, 1])
    expect((await claim(B)).slice(0, 4)).toEqual([0, '1', 0, 1])
    expect((await claim(id('d'), 'leave')).slice(0, 3)).toEqual([2, 2, 2])
    expect(await client.zcard(queue)).toBe(2)
    for (const key of [queue, heard]) expect(await client.pttl(key)).toBeGreaterThan(9_000)
  })

  it('brings one that was passed over back to its place, and says so', async () => {
    await claim(A)
    const [, place] = await claim(B)
    await claim(C)
    await client.zremrangebyrank(queue, 0, 0)
    expect(await claim(B, 'queue', { place: place as string })).toMatchObject([0, '1', 0, 1, expect.any(String), expect.any(Number), '', 1, 1])
    // The queue has vanished altogether, and its counter too: newcomers still come behind.
    await client.del(queue, heard)
    await claim(C, 'queue', { place: '7' })
    expect((await claim(id('d'))).slice(0, 3)).toEqual([0, '8', 1])
    // So has the lock: it holds at once, and the others of its process have to hear of it.
    await client.del(lock, queue, heard)
    expect(await claim(B, 'queue', { place: '1' })).toMatchObject([1, expect.any(String), 0, 1])
  })

  it('one that does not want to wait any longer leaves no trace in the queue', async () => {
    await claim(A)
    const [, place] = await claim(B)
    expect((await claim(B, 'leave', { place: place as string })).slice(0, 3)).toEqual([2, 0, 0])
    expect(await client.exists(queue)).toBe(0)
  })

  it('says of a holder what that one has told, and not what one before it has', async () => {
    await claim(A)
    // As an outsider's DEL would leave it.
    await client.set(meta, `${C}\n["x",null]`)
    expect((await claim(B))[6]).toBe('')
    await client.set(meta, `${A}\n["x",null]`)
    expect((await claim(B))[6]).toBe('["x",null]')
  })

  it('a free lock goes to the head that is alive, not to who asks', async () => {
    const alive = await listening('other')
    await claim(A)
    await claim(B, 'queue', { owner: 'other' })
    await client.del(lock)
    expect((await claim(C))[0]).toBe(0)
    expect(await client.get(lock)).toContain(`${B}.`)
    await alive.stop()
  })

  it('a head that is silent, or does not listen, is passed over', async () => {
    await claim(A)
    const gone = await listening('gone')
    await claim(B, 'queue', { owner: 'gone' })
    await gone.stop()
    const silent = await listening('silent')
    await claim(C, 'queue', { owner: 'silent' })
    await client.hset(heard, 'silent', Date.now() - 2_600)
    await client.del(lock)
    expect((await claim(id('d')))[0]).toBe(1)
    expect(await client.zcard(queue)).toBe(0)
    await silent.stop()
  })

  it('queues nobody who could not be told, unless it insists or had its place before', async () => {
    await claim(A)
    expect((await claim(B, 'hearing', { owner: 'deaf' })).slice(0, 3)).toEqual([2, 0, 0])
    expect(await client.exists(queue)).toBe(0)
    expect((await claim(B, 'hearing', { owner: 'deaf', place: '3' })).slice(0, 2)).toEqual([0, '3'])
    expect((await claim(C, 'queue', { owner: 'deaf' })).slice(0, 2)).toEqual([0, '4'])
    expect(await client.hget(heard, 'deaf')).toMatch(/^\d+d$/)
    const listens = await listening('deaf')
    await claim(C, 'queue', { owner: 'deaf', place: '4' })
    expect(await client.hget(heard, 'deaf')).toMatch(/^\d+$/)
    await listens.stop()
  })

  it('one that is deaf is granted for a while, until it asks', async () => {
    await claim(A)
    await claim(B, 'queue', { owner: 'deaf', ttl: 30_000 })
    await release(A)
    expect(await client.get(lock)).toContain(`${B}.`)
    expect(await client.pttl(lock)).toBeLessThanOrEqual(2_000)
    expect((await claim(B, 'queue', { owner: 'deaf', ttl: 30_000, place: '1' })).slice(0, 1)).toEqual([1])
    expect(await client.pttl(lock)).toBeGreaterThan(25_000)
  })

  it('one bad item leaves its neighbours alone, before it and behind it', async () => {
    await client.rpush('t:lock:bad', 'x')
    const args = [A, B, C].map((claimId) => `${claimId} 5000`)
    const items = await run(lua.claim, ['queue', ...args], { resources: ['one', 'bad', 'two'] })
    expect(items.map(([code]) => code)).toEqual([1, -1, 1])
    expect(items[1]![1]).toMatch(/WRONGTYPE/)
    expect(await client.get('t:lock:two')).toContain(C)
  })
})

describe('release.lua', () => {
  it('hands over in the same step, and tells the next', async () => {
    const next = await listening('next')
    await claim(A)
    await claim(B, 'queue', { owner: 'next' })
    await claim(C, 'queue', { owner: 'next' })
    expect(await release(A)).toEqual([1])
    const value = await client.get(lock)
    expect(value).toMatch(new RegExp(`^${B}\\.\\d+\\.next$`))
    await expect.poll(() => next.told).toHaveLength(1)
    const [, , epoch, serverMs, waiting, name] = next.told[0]!.split(' ')
    expect([epoch, waiting, name]).toEqual([value!.split('.')[1], '1', lock])
    expect(Math.abs(Number(serverMs) - Date.now())).toBeLessThan(5_000)
    await next.stop()
  })

  it('frees what nobody waits for, and leaves what is not ours', async () => {
    await claim(A, 'queue', { about: '["x",null]' })
    expect(await release(B)).toEqual([0])
    expect(await client.get(lock)).toContain(A)
    expect((await run(lua.release, [`${A} 5000 ["x",null]`]))[0]).toEqual([1])
    expect(await client.keys('*')).toEqual([fence])
    expect(await release(A)).toEqual([0])
  })

  it('withdraws one that waits, by its whole name', async () => {
    await claim(A)
    await claim(B)
    expect(await release(B)).toEqual([0])
    expect(await client.exists(queue)).toBe(0)
    expect(await client.get(lock)).toContain(A)
  })

  it('withdrawing the head of a free lock lets the next in', async () => {
    const next = await listening('next')
    await claim(A)
    await claim(B)
    await claim(C, 'queue', { owner: 'next' })
    await client.del(lock)
    await release(B)
    expect(await client.get(lock)).toContain(C)
    await next.stop()
  })
})

describe('renew.lua', () => {
  it('raises, and shortens only in time', async () => {
    await claim(A)
    expect((await renew(A, 9_000)).slice(0, 2)).toEqual([1, 0])
    expect(await client.pttl(lock)).toBeGreaterThan(8_000)
    await renew(A, 1_000)
    expect(await client.pttl(lock)).toBeGreaterThan(8_000)
    await renew(A, 1_000, { shortenUntil: `${Date.now() - 60_000} ` })
    expect(await client.pttl(lock)).toBeGreaterThan(8_000)
    await renew(A, 1_000, { shortenUntil: `${Date.now() + 60_000} another node` })
    expect(await client.pttl(lock)).toBeGreaterThan(8_000)
    await renew(A, 1_000, { shortenUntil: `${Date.now() + 60_000} ` })
    expect(await client.pttl(lock)).toBeLessThanOrEqual(1_000)
  })

  it('is for the owner alone; it can be taken over once, as another claim, from whom it was given by', async () => {
    const [, epoch] = await claim(A, 'queue', { owner: 'the.giver', about: '["x",null]' })
    expect(await renew(A, 60_000)).toEqual([0])
    const token = (await client.get(lock))!
    for (const wrong of [`${A}.${String(epoch)}.somebody`, `${A}.1.the.giver`, `${C}.${String(epoch)}.the.giver`]) {
      expect(await renew(B, 60_000, { from: wrong })).toEqual([0])
    }
    expect(await client.pttl(lock)).toBeLessThanOrEqual(5_000)
    expect(await renew(B, 9_000, { from: token })).toEqual([1, 0, epoch])
    expect(await client.get(lock)).toBe(`${B}.${String(epoch)}.me`)
    expect(await client.get(meta)).toBe(`${B}\n["x",null]`)
    // Asked again after a lost reply; but nobody else, nor anything that the giver still has on its way.
    expect((await renew(B, 9_000, { from: token }))[0]).toBe(1)
    expect(await renew(C, 60_000, { owner: 'third', from: token })).toEqual([0])
    expect(await renew(A, 60_000, { owner: 'the.giver' })).toEqual([0])
    expect(await release(A, { owner: 'the.giver' })).toEqual([0])
    expect(await client.pttl(lock)).toBeLessThanOrEqual(9_000)
    expect(await release(B)).toEqual([1])
  })

  it('keeps what is known of the holder for as long as the lock', async () => {
    await claim(A, 'queue', { about: '["x",null]' })
    expect((await run(lua.renew, [A, 60_000, '', '1', '']))[0]![0]).toBe(1)
    expect(await client.pttl(lock)).toBeGreaterThan(50_000)
    expect(await client.pttl(meta)).toBeGreaterThan(50_000)
  })

  it('of one that is gone lets the next in', async () => {
    const next = await listening('next')
    await claim(A)
    await claim(B, 'queue', { owner: 'next' })
    await client.del(lock)
    expect(await renew(A, 5_000)).toEqual([0])
    expect(await client.get(lock)).toContain(B)
    await next.stop()
  })
})

describe('revoke.lua', () => {
  const revoke = async (when: 'told' | 'now', seen: string) => (await run(lua.revoke, [when, seen]))[0]![0]

  it('told: marks it, keeps its life, and it cannot be renewed or claimed, only released', async () => {
    const holder = await listening('holder')
    await claim(A, 'queue', { owner: 'holder' })
    const value = (await client.get(lock))!
    expect(await revoke('told', value)).toBe('told')
    expect(await client.get(lock)).toBe(`~${value}`)
    expect(await client.pttl(lock)).toBeGreaterThan(4_000)
    expect(await renew(A, 9_000, { owner: 'holder' })).toEqual([2])
    expect(await claim(A, 'queue', { owner: 'holder' })).toEqual([3, value.split('.')[1]])
    expect((await claim(B, 'leave'))[0]).toBe(2)
    await expect.poll(() => holder.told).toEqual([`revoked ${A} ${lock}`])
    expect(await release(A)).toEqual([1])
    expect(await client.exists(lock)).toBe(0)
    await holder.stop()
  })

  it('now: takes it from the one that was seen, and from nobody after it', async () => {
    await claim(A)
    const value = (await client.get(lock))!
    expect(await revoke('now', value)).toBe('freed')
    await claim(B)
    expect(await revoke('now', value)).toBe('changed')
    expect(await client.get(lock)).toContain(B)
  })

  it('an outsider cannot be told, but it can be thrown out', async () => {
    for (const value of ['x', '', '~', '~x', 'a.b.c', `${'z'.repeat(32)}.1.me`]) {
      await client.set(lock, value)
      expect(await revoke('told', value)).toBe('outsider')
      expect(await client.get(lock)).toBe(value)
      expect(await revoke('now', value)).toBe('freed')
      expect(await client.exists(lock)).toBe(0)
    }
  })
})

describe('inspect.lua', () => {
  it('reads, and writes nothing', async () => {
    await claim(A, 'queue', { about: '["x",null]' })
    await claim(B)
    await client.config('RESETSTAT')
    const [item] = await run(lua.inspect, [])
    expect(item).toEqual([await client.get(lock), expect.any(Number), '["x",null]', [`${B}|5000|1|me\n`]])
    const counts = await server.commandCounts()
    for (const write of ['set', 'del', 'zadd', 'zrem', 'pexpire', 'hset', 'publish']) expect(counts[write]).toBeUndefined()
  })
})
