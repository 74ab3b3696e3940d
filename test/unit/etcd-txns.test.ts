/** What becomes of steps that travel together if the server refuses them as a whole, or does not answer. */
import { describe, expect, it } from 'vitest'
import { CODE, EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { Compare, RequestOp, TxnRequest, TxnResponse } from '../../src/backends/etcd/client/messages.js'
import { Directory } from '../../src/backends/etcd/directories.js'
import { Txns, type Outcome, type Step } from '../../src/backends/etcd/txns.js'

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

describe('steps that fail for want of space', () => {
  const NO_SPACE = new EtcdError('database space exceeded', { code: CODE.unknown, reason: 'no-space', mayBeDone: true })

  it('are not sent again if they take some, since they may be done; what takes none is, and says that it may be', async () => {
    const { requests, txns } = server((names) => (names.includes('a') ? Promise.reject(NO_SPACE) : Promise.resolve(done(names))))
    const [a, x] = [txns.run(claim('a')), txns.run(release('x'))]
    await expect(a).rejects.toBe(NO_SPACE)
    expect(await x).toMatchObject({ succeeded: true, isRepeated: true })
    expect(requests).toEqual([['x', 'a'], ['x']])
  })

  it('are sent again if they have a condition of their own, by which they are carried out once', async () => {
    const { requests, txns } = server((names) => (names.includes('a') ? Promise.reject(NO_SPACE) : Promise.resolve(done(names))))
    const compare: Compare[] = [{ key: 'k', target: 'mod', value: 3n }]
    const [a, k] = [txns.run(claim('a')), txns.run({ ...claim('k'), compare, isLikely: false })]
    await expect(a).rejects.toBe(NO_SPACE)
    await k
    expect(requests).toEqual([['a', '?'], ['?']])
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

describe('claims that hope to be alone', () => {
  /** A directory of which it is known who is in it, or not known. */
  function hopeful(name: string): Step {
    const directory = new Directory(`${name}/`)
    const isEmpty: Compare = { key: directory.name, rangeEnd: directory.end, target: 'create', value: 0n }
    const read: RequestOp = { kind: 'range', key: directory.name, rangeEnd: directory.end }
    const its = claim(name, directory)
    const isNew: Compare = { key: name, target: 'create', value: 0n }
    const otherwise = (): Step => ({ ...its, compare: [isNew], success: [read, ...its.success], failure: [read], isCertain: true })
    return { ...its, compare: [isEmpty], otherwise }
  }

  /**
   * Each request as text: `a/? b/? : +a +b` has the conditions that nobody is in two directories, and puts two. `a?` is the condition that
   * the key is new, `a/=` reads. `isTaken` tells of what the condition is not true.
   */
  function telling(isTaken: (name: string) => boolean) {
    const requests: string[] = []
    const txn = ({ compare = [], success = [] }: TxnRequest): Promise<TxnResponse> => {
      const conditions = compare.map(({ key }) => String(key))
      const ops = success.map((op) => (op.kind === 'range' ? `${String(op.key)}=` : op.kind === 'txn' ? 'txn' : `+${String(op.key)}`))
      requests.push([...conditions.map((name) => `${name}?`), ':', ...ops].join(' '))
      const succeeded = !conditions.some(isTaken)
      const responses = success.map(({ kind }) => ({ kind }) as never)
      return Promise.resolve({ kind: 'txn', succeeded, responses: succeeded ? responses : [], revision: 7n })
    }
    return { requests, txns: new Txns({ txn }, { tidy: () => {} }) }
  }

  const kindsOf = async (outcomes: readonly Promise<Outcome>[]) =>
    (await Promise.all(outcomes)).map(({ responses }) => responses.map(({ kind }) => kind).join(' '))

  it('have their conditions joined, since that costs a server less than to read each directory', async () => {
    const { requests, txns } = telling(() => false)
    expect(await kindsOf(['a', 'b'].map((name) => txns.run(hopeful(name))))).toEqual(['put', 'put'])
    expect(requests).toEqual(['a/? b/? : +a +b'])
  })

  it('are on no such condition when alone: whoever is in the way is told by the same request', async () => {
    const { requests, txns } = telling((name) => name === 'a/')
    expect(await kindsOf([txns.run(hopeful('a'))])).toEqual(['range put'])
    expect(requests).toEqual(['a? : a/= +a'])
  })

  it('are each sent with what is its own, if one of them is there already', async () => {
    const { requests, txns } = telling((name) => name === 'a' || name === 'a/')
    await Promise.all([txns.run(hopeful('a')), txns.run(hopeful('b'))])
    expect(requests).toEqual(['a/? b/? : +a +b', 'a? b? : a/= +a b/= +b', ': txn txn'])
  })

  it('are asked for once more if somebody is there, each with who that is; and so is what comes next, for a while', async () => {
    const { requests, txns } = telling((name) => name === 'b/')
    const outcomes = [release('x'), hopeful('a'), hopeful('b')].map((step) => txns.run(step))
    expect(await kindsOf(outcomes)).toEqual(['delete', 'range put', 'range put'])
    expect(requests).toEqual(['a/? b/? : +x +a +b', 'a? b? : +x a/= +a b/= +b'])
    const joined: boolean[] = []
    for (let i = 0; i < 12; i++) {
      await Promise.all([txns.run(hopeful('c')), txns.run(hopeful('d'))])
      joined.push(requests.at(-1)!.startsWith('c/? d/?'))
    }
    expect(joined.indexOf(true)).toBe(10)
    expect(joined.lastIndexOf(false)).toBe(9)
  })

  it('are divided when they have to be asked for with reads, and are too many for that', async () => {
    const { requests, txns } = telling((name) => name === '5/')
    await Promise.all(Array.from({ length: 128 }, (_, i) => txns.run(hopeful(String(i)))))
    expect(requests.map((request) => request.split('+').length - 1)).toEqual([128, 64, 64])
  })
})

describe('a step with a condition of its own', () => {
  it('learns in one request that it is not true', async () => {
    const sent: TxnRequest[] = []
    const txn = (request: TxnRequest): Promise<TxnResponse> => {
      sent.push(request)
      const its: TxnResponse = { kind: 'txn', succeeded: false, responses: [], revision: 0n }
      return Promise.resolve({ kind: 'txn', succeeded: true, responses: [its], revision: 7n })
    }
    const txns = new Txns({ txn }, { tidy: () => {} })
    const compare: Compare[] = [{ key: 'k', target: 'create', value: 3n }]
    expect(await txns.run({ ...release('k'), compare })).toMatchObject({ succeeded: false, responses: [], revision: 7n })
    expect(sent).toEqual([{ compare: [], success: [expect.objectContaining({ kind: 'txn', compare })] }])
  })
})
