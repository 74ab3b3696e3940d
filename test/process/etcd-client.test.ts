/** The client of etcd on a real one: what it can ask for, and what it makes of the answers. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import dns from 'node:dns'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import type { EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { Compare, KeyValue, RequestOp } from '../../src/backends/etcd/client/messages.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { watching } from '../support/etcd-watching.js'
import { within } from '../support/within.js'

const bytes = (text: string) => Buffer.from(text)
const names = (kvs: readonly KeyValue[]) => kvs.map(({ key }) => key.toString().split('/').at(-1))
const failure = (work: Promise<unknown>) =>
  work.then(
    () => Promise.reject(new Error('It should have failed')),
    (error: EtcdError) => error,
  )

/** Nothing is read meanwhile. etcd is a process of its own, and goes on. */
function standStill(ms: number): void {
  const until = performance.now() + ms
  while (performance.now() < until);
}

let etcd: EtcdServer
let client: EtcdClient
let tests = 0
/** Each test has a folder of its own. */
let folder = ''
const key = (name: string) => bytes(`${folder}/${name}`)
const put = (name: string, value = 'value'): RequestOp => ({ kind: 'put', key: key(name), value: bytes(value) })
const all = () => ({ key: key(''), rangeEnd: bytes(`${folder}0`) })

beforeAll(async () => {
  etcd = await startEtcd()
  client = createEtcdClient({ endpoints: [etcd.endpoint] })
})
afterAll(async () => {
  await client.close()
  await etcd.stop()
})
afterEach(() => void (folder = `test-${++tests}`))

describe('range', () => {
  it('knows every way of asking', async () => {
    for (const name of ['c', 'a', 'b']) await client.txn({ success: [put(name, `value of ${name}`)] })
    const { revision } = await client.txn({ success: [put('a', 'zzz')] })
    const created = { a: revision - 2n, b: revision - 1n, c: revision - 3n }

    const one = await client.range({ key: key('a') })
    expect(one).toMatchObject({ revision, count: 1, more: false })
    expect(one.kvs).toEqual([
      { key: key('a'), value: bytes('zzz'), createRevision: created.a, modRevision: revision, version: 2n, lease: 0n },
    ])
    const ask = async (how: object) => names((await client.range({ ...all(), ...how })).kvs)
    expect(await ask({})).toEqual(['a', 'b', 'c'])
    expect(await ask({ sort: { by: 'key', order: 'descend' } })).toEqual(['c', 'b', 'a'])
    expect(await ask({ sort: { by: 'create', order: 'ascend' } })).toEqual(['c', 'a', 'b'])
    expect(await ask({ sort: { by: 'mod', order: 'ascend' } })).toEqual(['c', 'b', 'a'])
    expect(await ask({ sort: { by: 'version', order: 'descend' }, limit: 1 })).toEqual(['a'])
    expect(await ask({ sort: { by: 'value', order: 'descend' }, limit: 1 })).toEqual(['a'])
    expect(await ask({ maxCreateRevision: created.a })).toEqual(['a', 'c'])
    expect(await ask({ minCreateRevision: created.b })).toEqual(['b'])
    expect(await ask({ maxModRevision: revision - 1n })).toEqual(['b', 'c'])
    expect(await ask({ minModRevision: revision })).toEqual(['a'])
    expect(await ask({ serializable: true })).toEqual(['a', 'b', 'c'])
    expect(await client.range({ ...all(), limit: 2 })).toMatchObject({ more: true, count: 3 })
    expect(await client.range({ ...all(), countOnly: true })).toMatchObject({ kvs: [], count: 3 })
    const [keyOnly] = (await client.range({ key: key('a'), keysOnly: true })).kvs
    expect(keyOnly?.value).toEqual(bytes(''))
    const [before] = (await client.range({ key: key('a'), revision: revision - 1n })).kvs
    expect(before?.value).toEqual(bytes('value of a'))
  })

  it('takes an answer that is larger than anything that is sent at once', async () => {
    const value = 'x'.repeat(1_000_000)
    for (const name of ['a', 'b', 'c']) await client.txn({ success: [put(name, value)] })
    const { kvs } = await client.range(all())
    expect(kvs.map((kv) => kv.value.toString() === value)).toEqual([true, true, true])
  })
})

describe('txn', () => {
  it('compares whatever there is to compare', async () => {
    const { id } = await client.leaseGrant(60)
    const { revision } = await client.txn({ success: [{ ...put('a', 'm'), lease: id } as RequestOp] })
    const is = async (compare: Omit<Compare, 'key'>) =>
      (await client.txn({ compare: [{ key: key('a'), ...compare } as Compare] })).succeeded
    for (const [target, value] of [['create', revision], ['mod', revision], ['version', 1n], ['lease', id]] as const) {
      expect(await is({ target, value })).toBe(true)
      expect(await is({ target, value: value + 1n })).toBe(false)
      expect(await is({ target, value: value + 1n, result: 'less' })).toBe(true)
      expect(await is({ target, value: value - 1n, result: 'greater' })).toBe(true)
      expect(await is({ target, value, result: 'not-equal' })).toBe(false)
    }
    expect(await is({ target: 'value', value: bytes('m') })).toBe(true)
    expect(await is({ target: 'value', value: bytes('z'), result: 'less' })).toBe(true)
    expect(await is({ target: 'value', value: bytes('') })).toBe(false)
    // Of a range: about each key in it, and true if there is none.
    await client.txn({ success: [put('b')] })
    const newer = { ...all(), target: 'create', result: 'greater' } as const
    expect((await client.txn({ compare: [{ ...newer, value: revision - 1n }] })).succeeded).toBe(true)
    expect((await client.txn({ compare: [{ ...newer, value: revision }] })).succeeded).toBe(false)
    const none = { key: key('none/'), rangeEnd: key('none0'), target: 'create', value: 0n } as const
    expect((await client.txn({ compare: [none] })).succeeded).toBe(true)
    await client.leaseRevoke(id)
  })

  it('does one thing or the other, and tells what came of each', async () => {
    const { id } = await client.leaseGrant(60)
    const absent = { target: 'create', key: key('a'), value: 0n } as const
    const request = {
      compare: [absent],
      success: [{ ...put('a', 'first'), lease: id } as RequestOp],
      failure: [
        { kind: 'range', key: key('a') },
        { kind: 'put', key: key('a'), value: bytes('second'), ignoreLease: true, prevKv: true },
      ] satisfies RequestOp[],
    }
    const first = await client.txn(request)
    expect(first).toMatchObject({ succeeded: true, responses: [{ kind: 'put', prevKv: undefined }] })
    const again = await client.txn(request)
    expect(again).toMatchObject({
      succeeded: false,
      responses: [
        { kind: 'range', kvs: [{ value: bytes('first'), lease: id }] },
        { kind: 'put', prevKv: { value: bytes('first') } },
      ],
    })
    const a = { key: key('a') }
    const moved = await client.txn({ success: [{ kind: 'put', ...a, ignoreValue: true }, { kind: 'range', ...a }] })
    expect(moved.responses[1]).toMatchObject({ kvs: [{ value: bytes('second'), lease: 0n, version: 3n }] })
    const gone = await client.txn({ success: [{ kind: 'delete', ...all(), prevKv: true }] })
    expect(gone.responses).toMatchObject([{ kind: 'delete', deleted: 1, prevKvs: [{ value: bytes('second') }] }])
    expect(await client.txn({})).toMatchObject({ succeeded: true, responses: [] })
    await client.leaseRevoke(id)
  })

  it('has others within it, which see what was there before', async () => {
    const absent = (name: string) => ({ target: 'create', key: key(name), value: 0n }) as const
    const inner = (name: string): RequestOp => ({
      kind: 'txn',
      compare: [absent(name)],
      success: [put(name)],
      failure: [{ kind: 'range', key: key(name) }],
    })
    await client.txn({ success: [put('a')] })
    const { responses } = await client.txn({ success: [inner('a'), inner('b'), { kind: 'txn' }] })
    expect(responses).toMatchObject([
      { kind: 'txn', succeeded: false, responses: [{ kind: 'range', kvs: [{ key: key('a') }] }] },
      { kind: 'txn', succeeded: true, responses: [{ kind: 'put' }] },
      { kind: 'txn', succeeded: true, responses: [] },
    ])
  })

  it('can be under way many times at once', async () => {
    const answers = await Promise.all(Array.from({ length: 512 }, (_, i) => client.txn({ success: [put(`${i}`)] })))
    expect(new Set(answers.map(({ revision }) => revision)).size).toBe(512)
    expect((await client.range({ ...all(), countOnly: true })).count).toBe(512)
  })

  it('means the same to etcdctl', async () => {
    await client.txn({ success: [put('a', 'hello')] })
    expect(await etcd.ctl('get', '--print-value-only', `${folder}/a`)).toBe('hello')
  })
})

describe('what the server refuses', () => {
  it.each<[EtcdError['reason'], () => Promise<unknown>]>([
    ['lease-not-found', () => client.txn({ success: [{ ...put('a'), lease: 12345n } as RequestOp] })],
    ['lease-not-found', () => client.leaseRevoke(12345n)],
    ['lease-exists', () => client.leaseGrant(60, 99n).then(() => client.leaseGrant(60, 99n))],
    ['too-many-operations', () => client.txn({ success: Array.from({ length: 129 }, (_, i) => put(`${i}`)) })],
    ['too-large', () => client.txn({ success: [put('a', 'x'.repeat(1_700_000))] })],
    ['too-large', () => client.txn({ success: [put('a', 'x'.repeat(3_000_000))] })],
    ['duplicate-key', () => client.txn({ success: [put('a'), put('a')] })],
    ['compacted', () => etcd.ctl('compact', '2').then(() => client.range({ key: key('a'), revision: 1n }))],
    ['other', () => client.range({ key: bytes('') })],
  ])('%s', async (reason, work) => {
    expect(await failure(work())).toMatchObject({ name: 'EtcdError', reason, transient: false, mayBeDone: false })
  })

  it('no-space', async () => {
    await using small = await startEtcd({ quotaBytes: 1_000_000 })
    const own = createEtcdClient({ endpoints: [small.endpoint], callTimeoutMs: 10_000 })
    onTestFinished(() => own.close())
    const refused = new Map<string, EtcdError>()
    // It knows how large it is ten times a second only: many are on their way when it finds out.
    const write = async (writer: number) => {
      for (let i = 0; i < 100 && refused.size === 0; i++) {
        const name = `${writer}-${i}`
        await own.txn({ success: [put(name, 'x'.repeat(4_000))] }).catch((error: EtcdError) => refused.set(name, error))
      }
    }
    await Promise.all(Array.from({ length: 256 }, (_, writer) => write(writer)))
    expect(refused.size).toBeGreaterThan(0)
    for (const error of refused.values()) expect(error).toMatchObject({ reason: 'no-space', transient: false, mayBeDone: true })
    // It says the same of what it has carried out.
    const there = names((await own.range({ ...all(), keysOnly: true })).kvs)
    expect(there.filter((name) => refused.has(name!)).length).toBeGreaterThan(0)
  })
})

describe('what comes while the event loop stands still', () => {
  const TIMEOUT_MS = 800
  const STALL_MS = 1_200
  let connections = 0
  let latest: Socket
  const count = (message: unknown) => {
    connections++
    latest = (message as { socket: Socket }).socket
  }
  const connect = (callTimeoutMs: number, endpoints = [etcd.endpoint]) => {
    const own = createEtcdClient({ endpoints, callTimeoutMs })
    onTestFinished(() => own.close())
    return own
  }
  beforeAll(() => subscribe('net.client.socket', count))
  afterAll(() => void unsubscribe('net.client.socket', count))

  it.each<[string, (own: EtcdClient) => Promise<unknown>]>([
    ['a transaction', (own) => own.txn({ success: [put('a')] })],
    ['a read', (own) => own.range({ key: key('a') })],
    ['a renewal', (own) => own.keepAlive(1n, 500)],
  ])('is the answer of %s', async (_, ask) => {
    const own = connect(TIMEOUT_MS)
    await ask(own)
    connections = 0
    const answer = ask(own)
    standStill(STALL_MS)
    await answer
    await ask(own)
    // The one that it came on was not taken for silent.
    expect(connections).toBe(0)
  })

  it('is the answer of a read, also if only half its time has passed', async () => {
    const own = connect(TIMEOUT_MS)
    await own.range({ key: key('a') })
    connections = 0
    const answer = own.range({ key: key('a') })
    standStill(TIMEOUT_MS * 0.75)
    await answer
    expect(connections).toBe(0)
  })

  it('is a new connection', async () => {
    // Of two endpoints, each has half the time to be connected to.
    const own = connect(2_000, [etcd.endpoint, etcd.endpoint])
    connections = 0
    const answer = own.txn({ success: [put('a')] })
    await new Promise((resolve) => setImmediate(resolve))
    standStill(STALL_MS)
    await answer
    expect(connections).toBe(1)
  })

  it('is a new connection, also if the time of whoever waits for it is over', async () => {
    const own = connect(TIMEOUT_MS)
    connections = 0
    const answer = own.txn({ success: [put('a')] })
    // What the server says to that comes meanwhile.
    await once(latest, 'connect')
    standStill(STALL_MS)
    await answer
    expect(connections).toBe(1)
  })
})

describe('leases', () => {
  it('live, are renewed and die', async () => {
    const { id, ttlS } = await client.leaseGrant(60)
    expect(id).toBeGreaterThan(0n)
    expect(ttlS).toBe(60)
    expect(await client.leaseGrant(30, 4711n)).toEqual({ id: 4711n, ttlS: 30 })
    await client.txn({ success: [{ ...put('a'), lease: id } as RequestOp] })
    const life = await client.leaseTimeToLive(id, true)
    expect(life).toMatchObject({ grantedTtlS: 60, keys: [key('a')] })
    expect(life.ttlS).toBeGreaterThan(55)
    expect((await client.leaseTimeToLive(id, false)).keys).toEqual([])
    expect(await client.keepAlive(id, 500)).toBe(60)
    await client.leaseRevoke(id)
    expect((await client.range({ key: key('a') })).kvs).toEqual([])
    expect(await client.leaseTimeToLive(id, true)).toMatchObject({ ttlS: -1, keys: [] })
    expect(await client.keepAlive(id, 500)).toBe(0)
  })

  it('answer every ask, in any mixture', async () => {
    const ids = [501n, 502n, 503n]
    for (const [i, id] of ids.entries()) await client.leaseGrant(100 + i, id)
    const asks = Array.from({ length: 60 }, (_, i) => ids[i % 3]!)
    const ttls = await Promise.all(asks.map((id) => client.keepAlive(id, 500)))
    expect(ttls).toEqual(asks.map((id) => Number(id) - 401))
  })

  it('live as long as they are renewed', async () => {
    const { id } = await client.leaseGrant(2)
    for (let i = 0; i < 10; i++) {
      expect(await client.keepAlive(id, 500)).toBe(2)
      await sleep(400)
    }
    expect((await client.leaseTimeToLive(id, false)).ttlS).toBeGreaterThanOrEqual(0)
  })
})

describe('watches', () => {
  it('are not given up for what was not read while the event loop stood still', async () => {
    const other = createEtcdClient({ endpoints: [etcd.endpoint], callTimeoutMs: 400 })
    const first = watching(other, { key: key('first') })
    await first.hears('created')
    // It is on its way by then: what can be written at once is.
    const second = watching(other, { key: key('second') })
    standStill(500)
    await second.hears('created')
    expect(first.heard).toEqual(['created'])
    await other.close()
  })

  it('tell what happens, from the moment at which they are there', async () => {
    await client.txn({ success: [put('before')] })
    const watch = watching(client, { ...all(), prevKv: true })
    await watch.hears('created')
    const { id } = await client.leaseGrant(60)
    await client.txn({ success: [put('a', '1')] })
    const second = await client.txn({ success: [{ ...put('a', '2'), lease: id } as RequestOp, put('b')] })
    const last = await client.txn({ success: [{ kind: 'delete', key: key('a') }] })
    await watch.hears(`delete ${folder}/a`)
    const expected = ['put a', 'put a', 'put b', 'delete a'].map((event) => event.replace(' ', ` ${folder}/`))
    expect(watch.heard).toEqual(['created', ...expected])
    expect(watch.batches).toEqual([1, 2, 1])
    expect(watch.events[1]).toMatchObject({ value: bytes('2'), version: 2n, lease: id, modRevision: second.revision })
    expect(watch.events[1]?.prevKv?.value).toEqual(bytes('1'))
    expect(watch.events[3]).toMatchObject({ modRevision: last.revision, prevKv: { value: bytes('2') } })
    watch.close()
    watch.close()
    await client.txn({ success: [put('c')] })
    await sleep(100)
    expect(watch.count(`put ${folder}/c`)).toBe(0)
    await client.leaseRevoke(id)
  })

  it('leave out what is not wanted', async () => {
    const deletes = watching(client, { ...all(), filters: ['noput'] })
    const puts = watching(client, { ...all(), filters: ['nodelete'] })
    await Promise.all([deletes.hears('created'), puts.hears('created')])
    await client.txn({ success: [put('a')] })
    await client.txn({ success: [{ kind: 'delete', key: key('a') }] })
    await Promise.all([deletes.hears(`delete ${folder}/a`), puts.hears(`put ${folder}/a`)])
    await sleep(50)
    expect([...deletes.heard, ...puts.heard]).toEqual(['created', `delete ${folder}/a`, 'created', `put ${folder}/a`])
    deletes.close()
    puts.close()
  })

  it('can begin in the past, unless that is gone', async () => {
    const { revision } = await client.txn({ success: [put('a')] })
    const early = watching(client, { ...all(), startRevision: revision })
    await early.hears(`put ${folder}/a`)
    early.close()
    const later = await client.txn({ success: [put('b')] })
    await etcd.ctl('compact', String(later.revision))
    const tooEarly = watching(client, { ...all(), startRevision: revision })
    // There, told that its beginning is gone, and there again from now on.
    await tooEarly.hears('created', 2)
    await client.txn({ success: [put('c')] })
    await tooEarly.hears(`put ${folder}/c`)
    expect(tooEarly.heard).toEqual(['created', 'created', `put ${folder}/c`])
    expect(tooEarly.revisions[1]).toBeGreaterThanOrEqual(later.revision)
    tooEarly.close()
  })

  it('are many, come and go, and each hears its own', async () => {
    const first = watching(client, { key: key('first') })
    await first.hears('created')
    const many = Array.from({ length: 100 }, (_, i) => watching(client, { key: key(`${i}`) }))
    // Closed before they are there: that must not shift the others' numbers.
    const gone = Array.from({ length: 50 }, (_, i) => watching(client, { key: key(`${i}`) }))
    for (const one of gone) one.close()
    const last = watching(client, { key: key('last') })
    await Promise.all([...many, last].map((one) => one.hears('created')))
    await Promise.all(many.map((_, i) => client.txn({ success: [put(`${i}`)] })))
    await client.txn({ success: [put('last')] })
    await Promise.all(many.map((one, i) => one.hears(`put ${folder}/${i}`)))
    await last.hears(`put ${folder}/last`)
    expect(many.every(({ heard }) => heard.length === 2)).toBe(true)
    expect(gone.every(({ heard }) => heard.length === 0)).toBe(true)
    for (const one of [first, ...many, last]) one.close()
  })

  it('hear of one large change as a whole', async () => {
    for (let i = 0; i < 8; i++) await client.txn({ success: [put(`${i}`, 'x'.repeat(700_000))] })
    const watch = watching(client, { ...all(), prevKv: true })
    await watch.hears('created')
    await client.txn({ success: [{ kind: 'delete', ...all() }] })
    await watch.hears(`delete ${folder}/7`)
    expect(watch.batches).toEqual([8])
    watch.close()
  })
})

describe('its life', () => {
  const kept = () => process.getActiveResourcesInfo().filter((what) => /TCP|Timeout/.test(what)).length

  it('lets the process end, unless somebody waits for an answer', async () => {
    const before = kept()
    const own = createEtcdClient({ endpoints: [etcd.endpoint] })
    const waiting = own.range({ key: key('a') })
    expect(kept()).toBeGreaterThan(before)
    await waiting
    const { id } = await own.leaseGrant(60)
    await own.keepAlive(id, 500)
    await new Promise<void>((resolve) => own.watch(all(), { onCreated: () => resolve(), onEvents() {}, onLost() {} }))
    await sleep(20)
    expect(kept()).toBeLessThanOrEqual(before)
    await own.close()
  })

  it('lets the process end, if the second address of a name is the one that works, too', async () => {
    const addresses = [{ address: '::1', family: 6 }, { address: '127.0.0.1', family: 4 }]
    const lookup = (_name: string, _options: object, tell: (error: null, found: typeof addresses) => void) => process.nextTick(tell, null, addresses)
    const lookups = vi.spyOn(dns, 'lookup').mockImplementation(lookup as unknown as typeof dns.lookup)
    onTestFinished(() => lookups.mockRestore())
    const before = kept()
    const own = createEtcdClient({ endpoints: [etcd.endpoint.replace('127.0.0.1', 'two.example')] })
    await own.range({ key: key('a') })
    await own.keepAlive(1n, 500)
    expect(lookups).toHaveBeenCalledTimes(2)
    await sleep(20)
    expect(kept()).toBeLessThanOrEqual(before)
    await own.close()
  })

  it('ends with close(), and everything under way with it', async () => {
    const own = createEtcdClient({ endpoints: [etcd.endpoint] })
    await own.range({ key: key('a') })
    const watch = watching(own, all())
    await watch.hears('created')
    await etcd.pause()
    const [txn, ask] = [failure(own.txn({ success: [put('a')] })), failure(own.keepAlive(1n, 500))]
    await sleep(20)
    await own.close()
    await own.close()
    const errors = await within(500, 'the ends of calls', Promise.all([txn, ask]))
    expect(errors).toMatchObject([{ mayBeDone: true, transient: false }, { transient: false }])
    await etcd.resume()
    const late = await failure(own.range({ key: key('a') }))
    expect(late).toMatchObject({ message: 'This etcd client is closed', mayBeDone: false })
    expect(await failure(own.keepAlive(1n, 500))).toMatchObject({ message: 'This etcd client is closed' })
    expect(watch.heard).toEqual(['created'])
  })
})
