/** What becomes of steps that travel together if the server refuses them as a whole, or does not answer. */
import { describe, expect, it } from 'vitest'
import { CODE, EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { TxnRequest, TxnResponse } from '../../src/backends/etcd/client/messages.js'
import { Directory } from '../../src/backends/etcd/directories.js'
import { Txns, type Step } from '../../src/backends/etcd/txns.js'

const LEASE_GONE = new EtcdError('requested lease not found', { code: CODE.unknown, reason: 'lease-not-found' })
const turn = () => new Promise((resolve) => setImmediate(resolve))

/** Of each request, what it puts and deletes. */
function server(answer: (names: readonly string[]) => Promise<TxnResponse>) {
  const requests: string[][] = []
  const txn = ({ success = [] }: TxnRequest) => {
    const names = success.map((op) => ('key' in op ? op.key.toString() : '?'))
    requests.push(names)
    return answer(names)
  }
  return { requests, txns: new Txns({ txn }, { tidy: () => {} }) }
}

function claim(name: string, directory = new Directory(`${name}/`), lease = 1n): Step {
  return { kind: 'claim', directory, lease, success: [{ kind: 'put', key: Buffer.from(name), lease }], isLikely: true }
}

function release(name: string): Step {
  return { kind: 'release', success: [{ kind: 'delete', key: Buffer.from(name) }], isLikely: true }
}

const done = (names: readonly string[]): TxnResponse => ({ kind: 'txn', succeeded: true, responses: names.map(() => ({}) as never), revision: 7n })

describe('steps that are refused together', () => {
  it('are all sent by themselves at once: none waits for another that is not answered', async () => {
    const { requests, txns } = server((names) => (names.length > 1 ? Promise.reject(LEASE_GONE) : new Promise(() => {})))
    for (const name of ['a', 'b', 'c']) void txns.run(claim(name))
    await turn()
    expect(requests).toEqual([['a', 'b', 'c'], ['a'], ['b'], ['c']])
  })

  it('are sent after the releases among them', async () => {
    let answerReleases!: () => void
    const { requests, txns } = server((names) => {
      if (names.length > 2) return Promise.reject(LEASE_GONE)
      return new Promise((resolve) => (answerReleases = () => resolve(done(names))))
    })
    const outcomes = [claim('a'), release('x'), release('y'), claim('b')].map((step) => txns.run(step))
    await turn()
    expect(requests).toEqual([['x', 'y', 'a', 'b'], ['x', 'y']])
    answerReleases()
    await turn()
    expect(requests.slice(2)).toEqual([['a', 'b']])
    answerReleases()
    expect((await Promise.all(outcomes)).map(({ revision }) => revision)).toEqual([7n, 7n, 7n, 7n])
  })

  it('and one of a resource goes when the one before it is answered, whatever the answer was', async () => {
    const { requests, txns } = server((names) => (names[0] === 'a1' ? Promise.reject(LEASE_GONE) : Promise.resolve(done(names))))
    const directory = new Directory('a/')
    const [first, second] = ['a1', 'a2'].map((name) => txns.run(claim(name, directory)))
    await expect(first).rejects.toBe(LEASE_GONE)
    expect((await second!).succeeded).toBe(true)
    expect(requests).toEqual([['a1'], ['a2']])
    expect(directory.isAsked).toBe(false)
  })
})

describe('what is asked for in one turn', () => {
  async function sent(count: number): Promise<number[]> {
    const { requests, txns } = server((all) => Promise.resolve(done(all)))
    await Promise.all(Array.from({ length: count }, (_, i) => txns.run(release(`k${i}`))))
    return requests.map(({ length }) => length)
  }

  it('is one request: what a transaction costs by itself is as much as twenty locks', async () => {
    expect(await sent(64)).toEqual([64])
  })

  it('is as few as the server takes, if that is too much for one', async () => {
    expect(await sent(300)).toEqual([128, 128, 44])
  })
})
