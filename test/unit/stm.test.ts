/** Transactions, on memory, with requests that the test counts, changes and holds back. */
import { setImmediate as turnOfTheLoop } from 'node:timers/promises'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { BackendFactory, Commit, CommitState, Snapshot, VersionedStore } from '../../src/core/backend.js'
import { systemClock, type Clock } from '../../src/core/clock.js'
import {
  BackendError, ConfigurationError, ConflictError, InvalidKeyError, jsonKey, ManagerClosedError, type StmOptions, type Transaction,
} from '../../src/index.js'
import { LockManager } from '../../src/lock-manager.js'
import { ManualClock } from '../support/manual-clock.js'

type Send = (commit: Commit) => Promise<CommitState>
type Read = (keys: readonly string[], at?: bigint) => Promise<Snapshot | undefined>

function open(clock: Clock = systemClock()) {
  const memory = memoryBackend()
  const reads: { keys: readonly string[]; at: bigint | undefined }[] = []
  const commits: Commit[] = []
  let inner!: VersionedStore
  const faults: { read?: (inner: Read) => Read; commit?: (inner: Send) => Send } = {}
  const factory: BackendFactory = (scope) => {
    const backend = memory(scope)
    inner = backend.store!
    const read: Read = (keys, at) => {
      reads.push({ keys, at })
      const plain: Read = (some, then) => inner.read(some, then)
      return (faults.read?.(plain) ?? plain)(keys, at)
    }
    const commit: Send = (asked) => {
      commits.push(asked)
      const plain: Send = (one) => inner.commit(one)
      return (faults.commit?.(plain) ?? plain)(asked)
    }
    Object.assign(backend, { store: { read, commit } })
    return backend
  }
  const locks = new LockManager(factory, {}, clock)
  onTestFinished(() => locks.close())
  /** What another process writes. */
  const write = async (entries: Record<string, string | null>) => {
    const all = Object.entries(entries)
    await inner.commit({
      comparisons: [],
      puts: all.flatMap(([key, value]) => (value === null ? [] : { key, value: Buffer.from(value) })),
      deletes: all.flatMap(([key, value]) => (value === null ? key : [])),
      reads: [],
    })
  }
  const see = async (key: string) => {
    const value = (await inner.read([key]))!.values[0]?.value
    return value && Buffer.from(value).toString()
  }
  return { locks, reads, commits, faults, write, see, inner }
}

const increment = async (tx: Transaction) => {
  const count = Number(await tx.get('count')) + 1
  tx.put('count', String(count))
  return count
}

function failureOf(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(() => expect.fail('it should have failed'), (error: unknown) => error)
}

describe('a transaction', () => {
  it('gives what its function returns, and tells of its commit', async () => {
    const { locks, see, write } = open()
    await write({ count: '41' })
    const told: unknown[] = []
    expect(await locks.stm(increment, { onCommit: (commit) => told.push(commit) })).toBe(42)
    expect(told).toEqual([{ revision: 2n, tries: 1 }])
    expect(await see('count')).toBe('42')
  })

  it('takes a function that is not asynchronous', async () => {
    const { locks, see } = open()
    expect(await locks.stm((tx) => void tx.put('k', 'v'))).toBeUndefined()
    expect(await see('k')).toBe('v')
  })

  it('is one request for each read and one for the commit', async () => {
    const { locks, reads, commits } = open()
    await locks.stm(increment)
    expect([reads.length, commits.length]).toEqual([1, 1])
  })

  it('reads a key once, and what is asked for in one turn together', async () => {
    const { locks, reads } = open()
    await locks.stm(async (tx) => {
      await Promise.all([tx.get('a'), tx.get('b'), tx.rev('c')])
      await tx.get('b')
      await tx.getBytes('a', 'd')
      tx.put('e', 'x')
    })
    expect(reads).toEqual([{ keys: ['a', 'b', 'c'], at: undefined }])
  })

  it('answers for several keys with the first that it wrote, else the first that it read, else the first of all', async () => {
    const { locks, write } = open()
    await write({ a: 'a', b: 'b', c: 'c' })
    await locks.stm(async (tx) => {
      expect(await tx.get('a', 'b')).toBe('a')
      expect(await tx.get('c', 'b', 'a')).toBe('b')
      tx.put('c', 'mine')
      expect(await tx.get('a', 'c')).toBe('mine')
      tx.del('c')
      expect(await tx.get('a', 'c')).toBe('')
      expect(await tx.getBytes('c')).toBeUndefined()
    })
  })

  it('needs no commit if it only reads, as of one moment', async () => {
    const { locks, commits, write } = open()
    await write({ a: '1', b: '1' })
    await locks.stm(async (tx) => [await tx.get('a'), await tx.get('b')])
    await locks.stm((tx) => tx.get('a'), { isolation: 'repeatable-reads' })
    expect(commits).toEqual([])
    await locks.stm(async (tx) => {
      await tx.get('a')
      await write({ c: '1' })
      await tx.get('b')
    }, { isolation: 'repeatable-reads' })
    expect(commits.length).toBe(1)
  })

  it('begins with what is prefetched, in one request', async () => {
    const { locks, reads, write } = open()
    await write({ a: '1', b: '2' })
    const sum = await locks.stm(async (tx) => {
      const result = Number(await tx.get('a')) + Number(await tx.get('b'))
      tx.put('c', String(result))
      return result
    }, { prefetch: ['a', 'b', 'a'] })
    expect(sum).toBe(3)
    expect(reads).toEqual([{ keys: ['a', 'b'], at: undefined }])
  })

  it('has copies of bytes', async () => {
    const { locks } = open()
    const bytes = Uint8Array.of(1, 2, 3)
    const seen = await locks.stm(async (tx) => {
      tx.put('k', bytes)
      bytes[0] = 9
      const own = (await tx.getBytes('k'))!
      own[1] = 9
      return tx.getBytes('k')
    })
    expect([...seen!]).toEqual([1, 2, 3])
    // Of text, too: what a Buffer calls a slice is none.
    expect(await locks.stm(async (tx) => {
      tx.put('t', 'text')
      ;(await tx.getBytes('t'))![0] = 0
      return tx.get('t')
    })).toBe('text')
    await locks.stm(async (tx) => void ((await tx.getBytes('t'))![0] = 0))
    expect(await locks.stm((tx) => tx.get('t'))).toBe('text')
    expect([...(await locks.stm((tx) => tx.getBytes('k')))!]).toEqual([1, 2, 3])
  })
})

describe('a conflict', () => {
  it('applies it again with the values that the answer brought, and no other request', async () => {
    const { locks, reads, commits, write, see } = open()
    let tries = 0
    const result = await locks.stm(async (tx) => {
      const before = await tx.get('a')
      if (++tries === 1) await write({ a: 'theirs' })
      tx.put('b', 'ours')
      return before
    })
    expect(result).toBe('theirs')
    expect([reads.length, commits.length, await see('b')]).toEqual([1, 2, 'ours'])
  })

  it('uses the tries up', async () => {
    const { locks, write, see } = open()
    let tries = 0
    const failure = failureOf(locks.stm(async (tx) => {
      await tx.get('a')
      await write({ a: String(++tries) })
      tx.put('b', 'ours')
    }, { maxTries: 3 }))
    expect(await failure).toBeInstanceOf(ConflictError)
    expect([tries, await see('b')]).toEqual([3, undefined])
  })

  it('is followed by another try at once, and then by pauses of some tries, but not for long, and by what is read after them', async () => {
    const clock = new ManualClock()
    const { locks, reads, commits, write } = open(clock)
    onTestFinished(() => void vi.restoreAllMocks())
    // As long as it can be.
    vi.spyOn(Math, 'random').mockReturnValue(1)
    const triedAt: number[] = []
    const readsBefore: number[] = []
    const takesMs = () => (triedAt.length < 7 ? 10 : 20)
    const failure = failureOf(locks.stm(async (tx) => {
      triedAt.push(clock.now())
      await tx.get('a')
      readsBefore.push(reads.length)
      await write({ a: String(commits.length) })
      await new Promise<void>((done) => void clock.timer(takesMs(), done, 'awaited'))
      tx.put('b', 'ours')
    }, { maxTries: 8 }))
    for (let ms = 0; ms < 600; ms++) await clock.advance(1)
    expect(await failure).toBeInstanceOf(ConflictError)
    expect(triedAt.map((at) => at - triedAt[0]!)).toEqual([0, 10, 30, 60, 110, 200, 290, 410])
    expect(readsBefore).toEqual([1, 1, 2, 3, 4, 5, 6, 7])
  })

  it('in the middle, where the past cannot be read, applies it again, whatever it makes of that', async () => {
    const { locks, reads, write } = open()
    await write({ a: '1', b: '1' })
    let tries = 0
    const result = await locks.stm(async (tx) => {
      const a = await tx.get('a')
      if (++tries === 1) await write({ a: '2', b: '2' })
      return `${a}${await tx.get('b').catch(() => 'caught')}`
    })
    expect([result, tries]).toEqual(['22', 2])
    expect(reads.map(({ at }) => at)).toEqual([undefined, 1n, undefined])
  })
})

describe('what goes wrong', () => {
  it('in the function: nothing is written', async () => {
    const { locks, commits } = open()
    const error = new Error('no')
    expect(await failureOf(locks.stm((tx) => {
      tx.put('k', 'v')
      throw error
    }))).toBe(error)
    expect(commits).toEqual([])
  })

  it('with a read: nothing is written, even if the function goes on', async () => {
    const { locks, commits, faults } = open()
    const outage = new BackendError('out', { transient: true })
    faults.read = () => () => Promise.reject(outage)
    expect(await failureOf(locks.stm(async (tx) => {
      tx.put('k', await tx.get('other').catch(() => 'default'))
    }))).toBe(outage)
    expect(await failureOf(locks.stm(async (tx) => {
      void tx.get('other')
      await new Promise((resolve) => setTimeout(resolve, 5))
      tx.put('k', 'v')
    }))).toBe(outage)
    expect(commits).toEqual([])
  })

  it('with a commit that was not carried out: so it says', async () => {
    const { locks, faults } = open()
    const outage = new BackendError('out', { transient: true })
    faults.commit = () => () => Promise.reject(outage)
    expect(await failureOf(locks.stm(increment))).toBe(outage)
  })

  it('with a commit of which nothing is known: it is not applied again', async () => {
    const { locks, faults, commits, see } = open()
    const error = new BackendError('cut off', { transient: true })
    faults.commit = (inner) => async (asked): Promise<CommitState> => {
      await inner(asked)
      return { status: 'unknown', error }
    }
    const failure = (await failureOf(locks.stm(increment))) as BackendError
    expect(failure).toBeInstanceOf(BackendError)
    expect(failure.message).toContain('unknown')
    expect([failure.transient, failure.cause]).toEqual([false, error])
    expect([commits.length, await see('count')]).toEqual([1, '1'])
  })

  it('with a commit that hangs: unknown, too', async () => {
    const clock = new ManualClock()
    const { locks, faults } = open(clock)
    faults.commit = () => () => new Promise(() => {})
    const failure = failureOf(locks.stm((tx) => tx.put('k', 'v')))
    await clock.advance(5_000)
    expect(((await failure) as Error).message).toMatch(/unknown.*No answer from memory within 5000 ms/)
  })

  it('with a read that hangs', async () => {
    const clock = new ManualClock()
    const { locks, faults } = open(clock)
    faults.read = () => () => new Promise(() => {})
    const failure = failureOf(locks.stm(increment))
    await clock.advance(5_000)
    expect(await failure).toMatchObject({ code: 'BACKEND', transient: true })
  })
})

describe('an abort', () => {
  const reason = new Error('enough')

  it('before anything: no request', async () => {
    const { locks, reads } = open()
    expect(await failureOf(locks.stm(increment, { signal: AbortSignal.abort(reason) }))).toBe(reason)
    expect(reads).toEqual([])
  })

  it('in the function: at once, and nothing is read or written after it', async () => {
    const { locks, reads, commits } = open()
    const controller = new AbortController()
    let goOn!: () => void
    const waiting = new Promise<void>((resolve) => (goOn = resolve))
    let late: Promise<unknown> | undefined
    const failure = failureOf(locks.stm(async (tx) => {
      await tx.get('a')
      await waiting
      tx.put('a', 'no')
      late = failureOf(tx.get('b'))
      await late
    }, { signal: controller.signal }))
    await new Promise((resolve) => setTimeout(resolve, 5))
    controller.abort(reason)
    expect(await failure).toBe(reason)
    goOn()
    await new Promise((resolve) => setTimeout(resolve, 5))
    expect(await late).toBe(reason)
    expect([reads.length, commits.length]).toEqual([1, 0])
  })

  it('while it pauses, or while an answer is on its way: at once', async () => {
    const clock = new ManualClock()
    const { locks, faults, write } = open(clock)
    for (const stage of ['pause', 'commit']) {
      const controller = new AbortController()
      if (stage === 'commit') faults.commit = () => () => new Promise(() => {})
      const failure = failureOf(locks.stm(async (tx) => {
        await tx.get('a')
        await write({ a: stage })
        tx.put('b', 'no')
      }, { signal: controller.signal }))
      await clock.advance(0)
      controller.abort(reason)
      expect(await failure).toBe(reason)
      expect(clock.pending('awaited')).toBe(0)
    }
  })

  it('while a commit is on its way that meets a conflict: it is not applied again', async () => {
    const { locks, faults, write } = open()
    const controller = new AbortController()
    let tries = 0
    faults.commit = (inner) => async (commit) => {
      const state = await inner(commit)
      controller.abort(reason)
      return state
    }
    const failure = failureOf(locks.stm(async (tx) => {
      await tx.get('a')
      if (++tries === 1) await write({ a: 'theirs' })
      tx.put('b', 'no')
    }, { signal: controller.signal }))
    expect(await failure).toBe(reason)
    await turnOfTheLoop()
    expect(tries).toBe(1)
  })

  it('while it is read again after a conflict: it is not applied again', async () => {
    const { locks, faults, write } = open(systemClock())
    const controller = new AbortController()
    let tries = 0
    faults.read = (inner) => async (keys, at) => {
      const snapshot = await inner(keys, at)
      if (tries === 2) controller.abort(reason)
      return snapshot
    }
    const failure = failureOf(locks.stm(async (tx) => {
      // What has been brought by the first conflict is not read.
      await tx.get('a')
      if (++tries <= 2) await write({ a: `theirs ${tries}` })
      tx.put('b', 'no')
    }, { signal: controller.signal }))
    expect(await failure).toBe(reason)
    await turnOfTheLoop()
    expect(tries).toBe(2)
  })

  it('while it is read what it needs: it is not applied', async () => {
    const { locks, faults } = open()
    const controller = new AbortController()
    let tries = 0
    faults.read = (inner) => async (keys, at) => {
      const snapshot = await inner(keys, at)
      controller.abort(reason)
      return snapshot
    }
    const failure = failureOf(locks.stm(() => void tries++, { signal: controller.signal, prefetch: ['a'] }))
    expect(await failure).toBe(reason)
    await turnOfTheLoop()
    expect(tries).toBe(0)
  })

  it('by closing the manager', async () => {
    const { locks, faults } = open()
    faults.commit = () => () => new Promise(() => {})
    const failure = failureOf(locks.stm((tx) => tx.put('k', 'v')))
    await locks.close()
    expect(await failure).toBeInstanceOf(ManagerClosedError)
    expect(await failureOf(locks.stm(increment))).toBeInstanceOf(ManagerClosedError)
  })
})

describe('what is refused', () => {
  it.each<[string, unknown, RegExp]>([
    ['a level that there is not', { isolation: 'serialisable' }, /isolation is one of serializable-snapshot, serializable, /],
    ['one that every object has', { isolation: 'toString' }, /isolation is one of/],
    ['an option that there is not', { retries: 3 }, /no stm option "retries"/],
    ['no tries', { maxTries: 0 }, /maxTries/],
    ['half a try', { maxTries: 1.5 }, /maxTries/],
    ['a signal that is none', { signal: {} }, /signal must be an AbortSignal/],
    ['a key for a list', { prefetch: 'a' }, /prefetch is a list/],
    ['an onCommit that cannot be called', { onCommit: 1 }, /onCommit/],
  ])('%s', async (_, options, message) => {
    const { locks, reads } = open()
    const error = await failureOf(locks.stm(increment, options as StmOptions))
    expect(error).toBeInstanceOf(ConfigurationError)
    expect((error as Error).message).toMatch(message)
    expect(reads).toEqual([])
  })

  it('no function, bad keys and bad values', async () => {
    const { locks } = open()
    expect(await failureOf(locks.stm(undefined as never))).toBeInstanceOf(ConfigurationError)
    expect(await failureOf(locks.stm(increment, { prefetch: [''] }))).toBeInstanceOf(InvalidKeyError)
    expect(await failureOf(locks.stm((tx) => tx.get('')))).toBeInstanceOf(InvalidKeyError)
    expect(await failureOf(locks.stm((tx) => (tx.get as () => Promise<string>)()))).toBeInstanceOf(ConfigurationError)
    for (const value of [1, null, undefined, {}, 'a\ud800']) {
      expect(await failureOf(locks.stm((tx) => tx.put('k', value as string)))).toBeInstanceOf(ConfigurationError)
    }
  })

  it('a transaction that is over', async () => {
    const { locks } = open()
    let kept!: Transaction
    await locks.stm((tx) => void (kept = tx))
    expect(() => kept.put('k', 'v')).toThrow(ConfigurationError)
    expect(await failureOf(kept.get('k'))).toBeInstanceOf(ConfigurationError)
  })

  it('a backend that has none', async () => {
    const memory = memoryBackend()
    const locks = new LockManager((scope) => Object.assign(memory(scope), { store: undefined }), {})
    onTestFinished(() => locks.close())
    expect(((await failureOf(locks.stm(increment))) as Error).message).toBe('The memory backend has no transactions yet.')
  })
})

describe('a key of JSON', () => {
  const account = jsonKey<{ cents: number }>('account')

  it('has values of its type', async () => {
    const { locks, see } = open()
    expect(await locks.stm((tx) => account.get(tx))).toBeUndefined()
    await locks.stm(async (tx) => account.put(tx, { cents: ((await account.get(tx))?.cents ?? 100) - 1 }))
    expect(await see('account')).toBe('{"cents":99}')
    expect(await locks.stm((tx) => account.get(tx))).toEqual({ cents: 99 })
    await locks.stm((tx) => account.del(tx))
    expect(await see('account')).toBeUndefined()
  })

  it('takes JSON only', async () => {
    const { locks } = open()
    expect(await failureOf(locks.stm((tx) => jsonKey<unknown>('k').put(tx, undefined)))).toBeInstanceOf(ConfigurationError)
    expect(() => jsonKey('')).toThrow(InvalidKeyError)
  })
})

it('keeps each prefix to itself', async () => {
  const memory = memoryBackend()
  const [a, b] = ['a', 'b'].map((prefix) => new LockManager(memory, { prefix }))
  onTestFinished(() => Promise.all([a!.close(), b!.close()]).then(() => {}))
  await a!.stm((tx) => tx.put('k', 'v'))
  expect(await b!.stm((tx) => tx.get('k'))).toBe('')
  expect(await a!.stm((tx) => tx.get('k'))).toBe('v')
})
