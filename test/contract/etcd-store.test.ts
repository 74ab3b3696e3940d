/** What becomes of a commit in etcd whose answer, or which itself, gets lost; and that its keys are anybody's. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { writeValue, type ClaimValue } from '../../src/backends/etcd/claim-value.js'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { TxnRequest, TxnResponse } from '../../src/backends/etcd/client/messages.js'
import { EtcdVersionedStore } from '../../src/backends/etcd/versioned-store.js'
import type { Claim, Commit, Held } from '../../src/core/backend.js'
import { startEtcd, type EtcdServer } from '../support/etcd-server.js'
import { commitOf, put } from '../support/lost-commits.js'

let server: EtcdServer
let client: EtcdClient
beforeAll(async () => {
  server = await startEtcd()
  client = createEtcdClient({ endpoints: [server.url.replace(/^etcd:/, 'http:')] })
})
afterAll(async () => {
  await client.close()
  await server.stop()
})

const lost = new EtcdError('lost', { code: 14, reason: 'unreachable', mayBeDone: true, transient: true })

const value: ClaimValue = { id: 'ab'.repeat(16), owner: 'host', ttl: 60_000, at: 0, take: 1, limit: 1 }
const claim: Claim = { id: value.id, resource: 'lock', take: 1, limit: 1, ttlMs: 60_000 }
const LOCK = '/lock/1'

/** All claims are taken to hold, with one key. */
function storeOn(txns: Pick<EtcdClient, 'txn'>): EtcdVersionedStore {
  return new EtcdVersionedStore(txns, () => {}, () => ({ key: LOCK, value }))
}

/** The first request, or its answer, is lost; after which something else may happen. */
function losing(what: 'request' | 'answer', meanwhile: () => Promise<unknown> = async () => {}) {
  let sent = 0
  const txn = async (request: TxnRequest): Promise<TxnResponse> => {
    if (++sent > 1) return client.txn(request)
    if (what === 'answer') await client.txn(request)
    await meanwhile()
    throw lost
  }
  return { store: storeOn({ txn }), sent: () => sent }
}

const plain = () => storeOn(client)

async function write(...entries: [string, string][]): Promise<bigint> {
  const state = await plain().commit(commitOf({ puts: entries.map(([key, value]) => put(key, value)) }))
  return state.status === 'committed' ? state.revision : 0n
}

async function see(key: string): Promise<string | undefined> {
  const value = (await plain().read([key]))!.values[0]?.value
  return value && Buffer.from(value).toString()
}

let revision: bigint
let increment: Commit
beforeEach(async () => {
  revision = await write(['count', '1'], ['other', '1'])
  increment = commitOf({
    comparisons: [{ key: 'count', is: 'equal', revision }, { key: 'other', is: 'equal', revision }],
    puts: [put('count', '2')],
    reads: ['count', 'other'],
  })
})

describe('a commit that is lost', () => {
  it('is sent again, if it was not carried out', async () => {
    const { store, sent } = losing('request')
    expect((await store.commit(increment)).status).toBe('committed')
    expect([sent(), await see('count')]).toEqual([2, '2'])
  })

  it('is unknown, if it was, since another may have done the same', async () => {
    const { store, sent } = losing('answer')
    expect(await store.commit(increment)).toMatchObject({ status: 'unknown', error: { code: 'BACKEND' } })
    expect([sent(), await see('count')]).toEqual([2, '2'])
  })

  it('is a conflict, if it was not carried out and cannot be any more', async () => {
    const { store } = losing('request', () => write(['other', '2']))
    const state = await store.commit(increment)
    expect(state).toMatchObject({ status: 'conflict', values: [{ revision }, { value: Buffer.from('2') }] })
    expect(await see('count')).toBe('1')
  })

  it('is not sent again, if it could be carried out twice', async () => {
    const unguarded: Partial<Commit>[] = [
      {},
      { comparisons: [{ key: 'other', is: 'equal', revision }] },
      { comparisons: [{ key: 'count', is: 'at-most', revision }] },
      { comparisons: [{ key: 'new', is: 'equal', revision: 0n }], puts: [put('new', '1')] },
    ]
    for (const commit of unguarded) {
      const { store, sent } = losing('request')
      expect((await store.commit({ ...increment, comparisons: [], ...commit })).status).toBe('unknown')
      expect(sent()).toBe(1)
    }
  })

  it('is unknown, if the second is lost, too', async () => {
    const txn = () => Promise.reject(lost)
    expect((await storeOn({ txn }).commit(increment)).status).toBe('unknown')
  })

  it('fails, if it was refused', async () => {
    const txn = () => Promise.reject(new EtcdError('etcd: permission denied', { code: 7, reason: 'permission' }))
    await expect(storeOn({ txn }).commit(increment)).rejects.toMatchObject({ code: 'BACKEND', transient: false })
  })
})

describe('a commit that rests on a claim', () => {
  const release = () => client.txn({ success: [{ kind: 'delete', key: Buffer.from(LOCK) }] })
  const change = (changed: Partial<ClaimValue>) =>
    client.txn({ success: [{ kind: 'put', key: Buffer.from(LOCK), value: writeValue({ ...value, ...changed }) }] })
  const seesOld = async () => expect([await see('count'), await see('other')]).toEqual(['1', '1'])

  let holds: readonly Held[]
  let owned: Commit
  beforeEach(async () => {
    await release()
    holds = [{ claim, epoch: (await change({})).revision }]
    owned = { ...increment, holds }
  })

  it('is sent again if it was lost, and once more if the claim has gone to another lease meanwhile', async () => {
    const moved = losing('request', () => change({ ttl: 30_000 }))
    expect((await moved.store.commit(owned)).status).toBe('committed')
    expect([moved.sent(), await see('count')]).toEqual([3, '2'])
  })

  it('is sent again with the value that the claim has', async () => {
    await change({ ttl: 30_000 })
    expect((await plain().commit(owned)).status).toBe('committed')
  })

  it('is a conflict if it is refused although the claim holds, changed or not', async () => {
    await write(['other', '2'])
    expect((await plain().commit(owned)).status).toBe('conflict')
    await change({ ttl: 30_000 })
    expect(await plain().commit(owned)).toMatchObject({ status: 'conflict', values: [{ revision }, { value: Buffer.from('2') }] })
  })

  it('is not held if the claim is gone, revoked, taken over or another’s with the same key', async () => {
    const ends = [
      release,
      () => change({ revoked: true }),
      () => change({ id: 'cd'.repeat(16) }),
      () => release().then(() => change({})),
    ]
    for (const end of ends) {
      await end()
      expect(await plain().commit(owned)).toEqual({ status: 'not-held', claim })
      await seesOld()
      await release()
      owned = { ...owned, holds: [{ claim, epoch: (await change({})).revision }] }
    }
  })

  it('is not held if it was lost, and the claim is gone meanwhile', async () => {
    expect(await losing('request', release).store.commit(owned)).toEqual({ status: 'not-held', claim })
    await seesOld()
  })

  it('is unknown if it may have been carried out before the claim was gone, or may be yet', async () => {
    expect((await losing('answer', release).store.commit(owned)).status).toBe('unknown')
    expect(await see('count')).toBe('2')
  })

  it('is unknown if the claim was revoked meanwhile: its mark may be overwritten', async () => {
    expect((await losing('request', () => change({ revoked: true })).store.commit(owned)).status).toBe('unknown')
    await seesOld()
  })

  it('is not sent again for the claim’s sake alone: that would be as true the second time', async () => {
    const { store, sent } = losing('request')
    expect((await store.commit(commitOf({ holds, puts: [put('count', '2')] }))).status).toBe('unknown')
    expect(sent()).toBe(1)
  })

  it('fails if it was lost and writes nothing', async () => {
    const reading = commitOf({ holds, comparisons: increment.comparisons })
    await expect(losing('answer').store.commit(reading)).rejects.toMatchObject({ code: 'BACKEND', transient: true })
  })

  it('is not held, and not asked for, if this process does not know the claim', async () => {
    const txn = () => Promise.reject(new Error('asked for'))
    const store = new EtcdVersionedStore({ txn }, () => {}, () => undefined)
    expect(await store.commit(owned)).toEqual({ status: 'not-held', claim })
  })
})

it('takes keys as they are, so that others share them', async () => {
  await write(['/accounts/a b%2F', '1'])
  const { kvs } = await client.range({ key: Buffer.from('/accounts/a b%2F') })
  expect(kvs.map(({ value }) => value.toString())).toEqual(['1'])
})

it('cannot tell what was there before a compaction, nor fails for it', async () => {
  const before = await write(['old', '1'])
  await write(['old', '2'])
  expect((await plain().read(['old'], before))?.values[0]?.value.toString()).toBe('1')
  const compacted = new EtcdError('etcd: mvcc: required revision has been compacted', { code: 11, reason: 'compacted' })
  expect(await storeOn({ txn: () => Promise.reject(compacted) }).read(['old'], before)).toBeUndefined()
})
