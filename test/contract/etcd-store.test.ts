/** What becomes of a commit in etcd whose answer, or which itself, gets lost; and that its keys are anybody's. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { TxnRequest, TxnResponse } from '../../src/backends/etcd/client/messages.js'
import { EtcdVersionedStore } from '../../src/backends/etcd/versioned-store.js'
import type { Commit } from '../../src/core/backend.js'
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

/** The first request, or its answer, is lost; after which something else may happen. */
function losing(what: 'request' | 'answer', meanwhile: () => Promise<unknown> = async () => {}) {
  let sent = 0
  const txn = async (request: TxnRequest): Promise<TxnResponse> => {
    if (++sent > 1) return client.txn(request)
    if (what === 'answer') await client.txn(request)
    await meanwhile()
    throw lost
  }
  return { store: new EtcdVersionedStore({ txn }, () => {}), sent: () => sent }
}

const plain = () => new EtcdVersionedStore(client, () => {})

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
    expect((await new EtcdVersionedStore({ txn }, () => {}).commit(increment)).status).toBe('unknown')
  })

  it('fails, if it was refused', async () => {
    const txn = () => Promise.reject(new EtcdError('etcd: permission denied', { code: 7, reason: 'permission' }))
    await expect(new EtcdVersionedStore({ txn }, () => {}).commit(increment)).rejects.toMatchObject({ code: 'BACKEND', transient: false })
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
  expect(await new EtcdVersionedStore({ txn: () => Promise.reject(compacted) }, () => {}).read(['old'], before)).toBeUndefined()
})
