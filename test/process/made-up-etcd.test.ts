/** The etcd that tests make up answers as a real one does: the same requests, in turn, to both. */
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { Compare, RequestOp, TxnRequest, WatchEvent } from '../../src/backends/etcd/client/messages.js'
import { systemClock } from '../../src/core/clock.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { watching } from '../support/etcd-watching.js'
import { MadeUpClient, MadeUpEtcd } from '../support/made-up-etcd.js'

let server: EtcdServer
let real: EtcdClient
let tests = 0

beforeAll(async () => {
  server = await startEtcd()
  real = createEtcdClient({ endpoints: [server.endpoint] })
})
afterAll(async () => {
  await real.close()
  await server.stop()
})

/** One of the two, with what differs between them left out: where it began. */
class Party {
  readonly client: EtcdClient
  readonly #folder: string
  readonly #begin: bigint

  constructor(client: EtcdClient, folder: string, begin: bigint) {
    this.client = client
    this.#folder = folder
    this.#begin = begin
  }

  static async on(client: EtcdClient, folder: string): Promise<Party> {
    const { revision } = await client.range({ key: Buffer.from(folder) })
    return new Party(client, folder, revision)
  }

  key(name: string): Buffer {
    return Buffer.from(`${this.#folder}/${name}`)
  }

  /** All of its keys that begin so. */
  all(beginning = ''): { readonly key: Buffer; readonly rangeEnd: Buffer } {
    return { key: this.key(beginning), rangeEnd: this.key(`${beginning}\xff`) }
  }

  at(revision: bigint): bigint {
    return this.#begin + revision
  }

  /** What came of it, with revisions from the start of the test. */
  async heard(answer: Promise<unknown>): Promise<unknown> {
    try {
      return this.plain(await answer)
    } catch (error) {
      if (!(error instanceof EtcdError)) throw error
      const { message, code, reason, mayBeDone, transient } = error
      return { message, code, reason, mayBeDone, transient }
    }
  }

  plain(value: unknown, name = ''): unknown {
    if (typeof value === 'bigint') return /revision/i.test(name) && value > 0n ? `r${value - this.#begin}` : `${value}`
    if (Buffer.isBuffer(value)) return value.toString()
    if (Array.isArray(value)) return value.map((one) => this.plain(one, name))
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([its, one]) => [its, this.plain(one, its)]))
  }
}

type Ask = (party: Party) => Promise<unknown>

/** Asks both one after the other, and compares what they say. Returns that, so that a test can look whether it is what it should be about. */
async function alike(...asks: readonly Ask[]): Promise<unknown[]> {
  const folder = `test-${++tests}`
  const madeUp = new MadeUpClient(new MadeUpEtcd(systemClock(), { minTtlS: 1 }), 'made up')
  onTestFinished(() => madeUp.close())
  const heard: unknown[][] = []
  for (const client of [real, madeUp]) {
    const party = await Party.on(client, folder)
    const its: unknown[] = []
    for (const ask of asks) its.push(await party.heard(ask(party)))
    heard.push(its)
  }
  expect(heard[1]).toEqual(heard[0])
  return heard[0]!
}

const txn = (requestOf: (party: Party) => TxnRequest): Ask => (party) => party.client.txn(requestOf(party))
const success = (...ops: readonly ((party: Party) => RequestOp)[]): Ask => txn((party) => ({ success: ops.map((op) => op(party)) }))
const put = (name: string, more: object = {}) => (party: Party): RequestOp => ({ kind: 'put', key: party.key(name), value: 'v', ...more })
const read = (name: string) => (party: Party): RequestOp => ({ kind: 'range', key: party.key(name) })
const readAll = (beginning = '') => (party: Party): RequestOp => ({ kind: 'range', ...party.all(beginning) })
const remove = (name: string, more: object = {}) => (party: Party): RequestOp => ({ kind: 'delete', key: party.key(name), ...more })
const removeAll = (beginning = '') => (party: Party): RequestOp => ({ kind: 'delete', ...party.all(beginning), prevKv: true })
const see: Ask = (party) => party.client.range(party.all())
const grant = (id: bigint, ttlS = 60): Ask => ({ client }) => client.leaseGrant(ttlS, id)
const revoke = (id: bigint): Ask => ({ client }) => client.leaseRevoke(id)
/** Its keys are told in any order. */
const life = (id: bigint): Ask => async ({ client }) => {
  const { keys, ...rest } = await client.leaseTimeToLive(id, true)
  return { ...rest, keys: [...keys].sort((a, b) => a.compare(b)) }
}
const within = (requestOf: (party: Party) => TxnRequest) => (party: Party): RequestOp => ({ kind: 'txn', ...requestOf(party) })
const many = (count: number, name = 'k') => (party: Party): RequestOp[] => Array.from({ length: count }, (_, i) => put(`${name}${i}`)(party))
const isAbsent = (party: Party, name: string): Compare => ({ key: party.key(name), target: 'create', value: 0n })

/** Of all that was refused, the reasons. */
const reasons = (heard: readonly unknown[]) => heard.map((one) => (one as { reason?: string } | undefined)?.reason ?? 'done')

describe('keys', () => {
  it('are written, read and deleted', async () => {
    await alike(
      see, success(put('b')), success(put('a', { value: 'first' })), success(put('a', { value: '', prevKv: true })), see,
      (party) => party.client.range({ ...party.all(), limit: 1 }),
      (party) => party.client.range({ ...party.all(), limit: 2 }),
      (party) => party.client.range({ ...party.all(), keysOnly: true }),
      (party) => party.client.range({ ...party.all(), countOnly: true }),
      success(put('b', { value: undefined, ignoreValue: true, prevKv: true })), see,
      success(put('c', { value: undefined, ignoreValue: true })), success(put('b', { ignoreValue: true })),
      success(remove('a', { prevKv: true })), success(remove('a', { prevKv: true })), success(put('a')), see, success(removeAll()), see,
      (party) => party.client.range({ key: Buffer.alloc(0) }), success(() => ({ kind: 'put', key: '' })),
    )
  })

  it('have one revision for all that a transaction writes, and none if it writes nothing', async () => {
    const writes = [success(put('a'), put('b')), success(read('a'), remove('a'), readAll())]
    const heard = await alike(success(), success(read('a')), success(remove('a')), ...writes, see)
    expect(heard.map((one) => (one as { revision: string }).revision)).toEqual(['r0', 'r0', 'r0', 'r1', 'r2', 'r2'])
  })

  it('are read as they were written before in the same transaction', async () => {
    await alike(success(put('a')), success(readAll(), put('b'), readAll(), put('a', { value: 'new' }), read('a'), remove('c'), readAll()), see)
  })
})

describe('a transaction', () => {
  it('compares whatever there is to compare', async () => {
    const id = 1_001n
    const values = (party: Party) => ({ create: party.at(1n), mod: party.at(2n), version: 2n, lease: id }) as const
    const numbers = (['create', 'mod', 'version', 'lease'] as const).flatMap((target) =>
      (['equal', 'not-equal', 'less', 'greater'] as const).flatMap((result) =>
        [-1n, 0n, 1n].flatMap((off) =>
          ['a', 'none'].map((name) => txn((party) => ({ compare: [{ key: party.key(name), target, result, value: values(party)[target] + off }] }))))))
    const texts = (['equal', 'not-equal', 'less', 'greater'] as const).flatMap((result) =>
      ['', 'm', 'z'].flatMap((value) =>
        ['a', 'none'].map((name) => txn((party) => ({ compare: [{ key: party.key(name), target: 'value', result, value: Buffer.from(value) }] })))))
    await alike(grant(id), success(put('a')), success(put('a', { value: 'm', lease: id })), ...numbers, ...texts, revoke(id))
  })

  it('compares each key of a range, and 0 if there is none', async () => {
    const is = (beginning: string, compare: object) =>
      txn((party) => ({ compare: [{ ...party.all(beginning), target: 'create', value: 0n, ...compare } as Compare] }))
    const both = (beginning: string) => [is(beginning, {}), is(beginning, { result: 'greater' }), is(beginning, { result: 'not-equal' })]
    const [empty, ...heard] = await alike(
      is('x', {}), is('x', { result: 'greater' }), is('x', { target: 'value', value: Buffer.alloc(0) }),
      success(put('x/1')), success(put('y')), success(put('x/2')),
      ...both('x'), ...both('none'), (party) => party.client.txn({ compare: [{ ...party.all('x'), target: 'mod', result: 'less', value: party.at(3n) }] }),
    )
    expect([empty, heard[5]]).toMatchObject([{ succeeded: true }, { succeeded: false }])
  })

  it('does one thing or the other', async () => {
    const once = txn((party) => ({
      compare: [isAbsent(party, 'a'), isAbsent(party, 'b')], success: [put('a')(party)], failure: [read('a')(party), put('b')(party), readAll()(party)],
    }))
    await alike(once, once, once, see)
  })

  it('has others within it, which compare what was there before', async () => {
    const inner = (name: string, ...more: readonly ((party: Party) => RequestOp)[]) => within((party) => ({
      compare: [isAbsent(party, name)], success: [put(name)(party)], failure: [read(name)(party), ...more.map((op) => op(party))],
    }))
    const isStillAbsent = within((party) => ({ compare: [isAbsent(party, 'a')], success: [read('a')(party)] }))
    const [, , , deep] = await alike(
      success(put('z')), success(inner('z'), inner('y'), within(() => ({}))), success(put('a'), isStillAbsent, readAll()),
      success(inner('a', inner('b', read('z')), inner('z', remove('z'))), readAll()), success(remove('a'), isStillAbsent), see,
    )
    expect(deep).toMatchObject({ responses: [{ succeeded: false, responses: [{}, { succeeded: true }, { succeeded: false }] }, {}] })
  })

  it('writes no key twice', async () => {
    const way = (one: readonly ((party: Party) => RequestOp)[], other: readonly ((party: Party) => RequestOp)[] = []) =>
      within((party) => ({ compare: [isAbsent(party, 'none')], success: one.map((op) => op(party)), failure: other.map((op) => op(party)) }))
    const heard = await alike(
      success(put('a'), put('a')), success(put('a'), remove('a')), success(remove('a'), put('a')), success(put('a/1'), removeAll('a/')),
      success(way([put('a')]), way([put('a')])), success(way([put('a')]), put('a')), success(put('a'), way([remove('a')])),
      success(way([remove('a')]), way([put('a')])), success(remove('a'), way([put('a')])), success(way([put('a')]), remove('a')),
      success(way([put('a')]), way([], [put('a')])), success(way([], [put('a')]), way([], [put('a')])), success(way([], [remove('a')]), way([put('a')])),
      txn((party) => ({ compare: [isAbsent(party, 'none')], failure: [put('a')(party), put('a')(party)] })),
      // These may.
      success(remove('a'), remove('a'), removeAll('a')), success(way([put('a')], [put('a')])), success(way([put('a')]), way([remove('a')]), readAll()),
      success(way([remove('a')]), way([remove('a')], [put('b')])), success(way([way([put('a')], [put('b')])], [put('a'), put('b')])), see,
    )
    expect(reasons(heard)).toEqual([...Array<string>(14).fill('duplicate-key'), ...Array<string>(6).fill('done')])
  })

  it('has so many operations, and no more', async () => {
    const few = within((party) => ({ success: many(64)(party) }))
    const heard = await alike(
      txn((party) => ({ success: many(128)(party) })), txn((party) => ({ success: many(129)(party) })), txn((party) => ({ failure: many(129)(party) })),
      txn((party) => ({ compare: Array.from({ length: 129 }, () => isAbsent(party, 'a')) })),
      success(within((party) => ({ success: many(127)(party) }))), success(within((party) => ({ success: many(128)(party) }))),
      success(within((party) => ({ success: [within((its) => ({ success: many(126)(its) }))(party)] }))),
      success(within((party) => ({ success: [within((its) => ({ success: many(127)(its) }))(party)] }))),
      txn((party) => ({ success: [few(party), ...many(63, 'l')(party)] })), txn((party) => ({ success: [few(party), ...many(64, 'l')(party)] })),
      txn((party) => ({ success: [put('a')(party)], failure: [within((its) => ({ failure: many(128)(its) }))(party)] })),
    )
    const no = 'too-many-operations'
    expect(reasons(heard)).toEqual(['done', no, no, no, 'done', no, 'done', no, 'done', no, no])
  })
})

describe('leases', () => {
  it('have keys, of which each is on one', async () => {
    const [one, other] = [2_001n, 2_002n]
    await alike(
      grant(one), grant(other, 90), grant(one), success(put('b', { lease: one }), put('a', { lease: one }), put('c', { lease: other })), life(one), see,
      success(put('a', { value: 'new', ignoreLease: true })), success(put('b', { lease: other })), success(put('c')), life(one), life(other), see,
      success(remove('b')), life(other), success(put('b', { ignoreLease: true })), success(put('a', { ignoreLease: true, lease: other })),
      ({ client }) => client.keepAlive(other, 1_000), revoke(one), see, revoke(one), life(one), ({ client }) => client.keepAlive(one, 1_000), revoke(other), see,
    )
  })

  it('that are not there are found before anything is written', async () => {
    const nowhere = put('b', { lease: 4_711n })
    const heard = await alike(
      success(put('a'), nowhere), success(put('a'), within((party) => ({ success: [nowhere(party)] }))),
      // Only what would be done counts.
      success(put('a'), within((party) => ({ compare: [isAbsent(party, 'a')], success: [put('c')(party)], failure: [nowhere(party)] }))), see,
    )
    expect(reasons(heard)).toEqual(['lease-not-found', 'lease-not-found', 'done', 'done'])
    expect(heard.at(-1)).toMatchObject({ revision: 'r1', count: 2 })
  })

  it('last as long as the server likes at least, and then end by themselves', async () => {
    const id = 3_001n
    const gone: Ask = async (party) => {
      const watch = watching(party.client, party.all())
      await watch.hears('created')
      await party.client.txn({ success: [put('b', { lease: id })(party), put('a', { lease: id })(party), put('c')(party)] })
      await watch.hears(`delete ${party.key('b').toString()}`)
      watch.close()
      return watch.events
    }
    await alike(grant(id, 0), grant(id, 1), gone, life(id), see)
  })
})

describe('a watch', () => {
  /** What a watch hears of some requests, in order. */
  const told = (request: (party: Party) => Parameters<EtcdClient['watch']>[0], ...asks: readonly Ask[]): Ask => async (party) => {
    const watch = watching(party.client, request(party))
    await watch.hears('created')
    for (const ask of asks) await ask(party)
    await party.client.txn({ success: [put('a/last')(party)] })
    await watch.hears(`put ${party.key('a/last').toString()}`)
    watch.close()
    return { heard: watch.heard, batches: watch.batches, events: watch.events, revisions: watch.revisions }
  }

  it('tells what has come of each transaction, all at once', async () => {
    const id = 5_001n
    const asks = [
      success(put('a/1')), success(put('a/3', { lease: id }), put('b'), put('a/2', { lease: id })), success(read('a/1')), success(remove('a/none')),
      success(within((party) => ({ success: [put('a/4')(party)] })), within((party) => ({ success: [remove('a/4')(party)] }))),
      success(put('a/1', { value: 'new' }), remove('a/2'), put('a/2/1', { lease: id })), revoke(id), success(removeAll()),
    ]
    const [, heard] = await alike(success(put('a/0')), grant(id), told((party) => party.all('a/'), ...asks)).then((all) => all.slice(1))
    const { batches, events } = heard as { batches: number[]; events: WatchEvent[] }
    expect(batches).toEqual([1, 2, 2, 3, 2, 2, 1])
    expect(events.filter(({ type }) => type === 'delete')).toHaveLength(6)
  })

  it('of one key tells of nothing else, and what was there before if it is to', async () => {
    const asks = [success(put('b')), success(put('a/last/1')), success(put('a')), success(put('a')), success(remove('a'))]
    await alike(success(put('a/last', { value: 'old' })), told((party) => ({ key: party.key('a/last'), prevKv: true }), ...asks))
    await alike(success(put('b')), told((party) => ({ ...party.all('a'), prevKv: true }), ...asks))
  })
})
