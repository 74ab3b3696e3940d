/** Transactions that require a lock, on memory, with commits that the test sees, answers and holds back. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { BackendFactory, Commit, CommitState } from '../../src/core/backend.js'
import { Ownership } from '../../src/core/ownership.js'
import {
  BackendError, ConfigurationError, ConflictError, createLocks, LockNotHeldError, OwnershipLostError, type DistributedLock,
  type Transaction,
} from '../../src/index.js'
import { LockHandle } from '../../src/primitives/lock.js'

type Send = (commit: Commit) => Promise<CommitState>

function open(memory = memoryBackend()) {
  const commits: Commit[] = []
  const faults: { commit?: (commit: Commit, send: Send) => Promise<CommitState> } = {}
  let reads = 0
  const factory: BackendFactory = (scope) => {
    const backend = memory(scope)
    const inner = backend.store!
    const commit: Send = (asked) => {
      commits.push(asked)
      const send: Send = (one) => inner.commit(one)
      return faults.commit ? faults.commit(asked, send) : send(asked)
    }
    const read: typeof inner.read = (keys, at) => {
      reads++
      return inner.read(keys, at)
    }
    Object.assign(backend, { store: { read, commit } })
    return backend
  }
  const locks = createLocks(factory)
  onTestFinished(() => locks.close())
  const see = (key: string) => locks.stm((tx) => tx.get(key))
  return { locks, memory, commits, faults, see, reads: () => reads }
}

const holdOf = (lock: DistributedLock) => LockHandle.heldBy(lock as LockHandle).hold
const ownershipOf = (lock: DistributedLock) => new Ownership(holdOf(lock))
const denied = async ({ holds }: Commit): Promise<CommitState> => ({ status: 'not-held', claim: holds![0]!.claim })

function failureOf(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(() => expect.fail('it should have failed'), (error: unknown) => error)
}

describe('a transaction that requires a lock', () => {
  it('is written while it is held', async () => {
    const { locks, commits, see } = open()
    const lock = await locks.lock('job')
    const result = await locks.stm((tx) => {
      tx.requires(ownershipOf(lock))
      tx.requires(ownershipOf(lock))
      tx.put('k', 'v')
      return 'done'
    })
    const { claim, epoch } = holdOf(lock)
    expect(commits[0]!.holds).toEqual([{ claim, epoch }])
    expect([result, await see('k')]).toEqual(['done', 'v'])
  })

  it('asks for no more than before without one', async () => {
    const { locks, commits } = open()
    await locks.stm((tx) => tx.put('k', 'v'))
    expect(commits[0]).not.toHaveProperty('holds')
  })

  it('asks the store even if it only reads', async () => {
    const { locks, commits } = open()
    const lock = await locks.lock('job')
    const told: unknown[] = []
    const read = (tx: Transaction) => {
      tx.requires(ownershipOf(lock))
      return tx.get('k')
    }
    expect(await locks.stm(read, { onCommit: (commit) => told.push(commit) })).toBe('')
    expect(commits).toHaveLength(1)
    expect(told).toEqual([{ revision: 0n, tries: 1 }])
    await locks.stm((tx) => tx.requires(ownershipOf(lock)), { prefetch: ['k'] })
    expect(commits).toHaveLength(2)
  })

  it('loses the lock if the store says so, writes nothing and is not applied again', async () => {
    const { locks, memory, faults, see } = open()
    const lock = await locks.lock('job')
    faults.commit = denied
    let applied = 0
    const error = await failureOf(locks.stm((tx) => {
      applied++
      tx.requires(ownershipOf(lock))
      tx.put('k', 'v')
    }))
    expect(error).toBeInstanceOf(OwnershipLostError)
    expect((error as Error).message).toContain('the store said so')
    expect([applied, lock.signal.aborted, lock.signal.reason, lock.remainingMs]).toEqual([1, true, error, 0])
    delete faults.commit
    expect(await see('k')).toBe('')
    // What the store may still count as ours was let go of.
    await using _ = await open(memory).locks.lock('job', { waitMs: 1_000 })
  })

  it('loses only the one of several that the store has named', async () => {
    const { locks, faults } = open()
    const [one, other] = [await locks.lock('one'), await locks.lock('other')]
    faults.commit = async ({ holds }) => ({ status: 'not-held', claim: holds![1]!.claim })
    const error = await failureOf(locks.stm((tx) => {
      tx.requires(ownershipOf(one))
      tx.requires(ownershipOf(other))
    }))
    expect(error).toMatchObject({ name: 'OwnershipLostError', key: 'other' })
    one.assertHeld()
    expect(() => other.assertHeld()).toThrow(error as Error)
  })

  it('asks nothing if it is known to be over before it is applied, whatever becomes of that', async () => {
    const { locks, commits } = open()
    const lock = await locks.lock('job')
    const ownership = ownershipOf(lock)
    await lock.release()
    const error = await failureOf(locks.stm((tx) => tx.requires(ownership)))
    expect(error).toBeInstanceOf(LockNotHeldError)
    const swallowed = locks.stm((tx) => {
      try {
        tx.requires(ownership)
      } catch {
        // It is required all the same.
      }
      tx.put('k', 'v')
    })
    expect(await failureOf(swallowed)).toBeInstanceOf(LockNotHeldError)
    expect(commits).toHaveLength(0)
  })

  it('asks nothing if it is lost or let go of while it is applied', async () => {
    const { locks, commits, reads } = open()
    const [released, lost, given] = [await locks.lock('released'), await locks.lock('lost'), await locks.lock('given')]
    const ending = (lock: DistributedLock, end: () => unknown) => failureOf(locks.stm(async (tx) => {
      tx.requires(ownershipOf(lock))
      tx.put('k', 'v')
      await end()
    }))
    expect(await ending(released, () => released.release())).toBeInstanceOf(LockNotHeldError)
    expect(await ending(lost, () => holdOf(lost).lose('of a test'))).toBeInstanceOf(OwnershipLostError)
    expect(await ending(given, () => given.transfer())).toMatchObject({ name: 'LockNotHeldError', message: expect.stringContaining('transferred') })
    expect([commits.length, reads()]).toEqual([0, 0])
  })

  it('says that it was released, if that has overtaken the commit', async () => {
    const { locks, faults } = open()
    const lock = await locks.lock('job')
    faults.commit = async (commit, send) => {
      await lock.release()
      return send(commit)
    }
    const error = await failureOf(locks.stm((tx) => tx.requires(ownershipOf(lock))))
    expect(error).toBeInstanceOf(LockNotHeldError)
  })

  it('requires it anew in each try', async () => {
    const { locks, commits, faults } = open()
    const lock = await locks.lock('job')
    faults.commit = async (commit, send) => (commits.length === 1 ? { status: 'conflict', revision: 0n, values: [] } : send(commit))
    let applied = 0
    await locks.stm((tx) => {
      if (++applied === 1) tx.requires(ownershipOf(lock))
      tx.put('k', 'v')
    })
    expect(commits.map(({ holds }) => holds?.length)).toEqual([1, undefined])
  })

  it('is not read again either, if what it read has changed and it is over', async () => {
    const { locks, reads } = open()
    const lock = await locks.lock('job')
    await locks.stm((tx) => tx.put('b', '0'))
    const error = await failureOf(locks.stm(async (tx) => {
      tx.requires(ownershipOf(lock))
      await tx.get('a')
      await locks.stm((other) => other.put('b', '1'))
      await lock.release()
      await tx.get('b').catch((caught: unknown) => expect(caught).toBeInstanceOf(ConflictError))
    }))
    expect(error).toBeInstanceOf(LockNotHeldError)
    expect(reads()).toBe(2)
  })

  it('refuses what is none, or another manager’s, and comes too late when it is over', async () => {
    const { locks, memory, commits } = open()
    const other = await open(memory).locks.lock('theirs')
    for (const nothing of [undefined, null, {}, 'job', await locks.lock('job')]) {
      expect(await failureOf(locks.stm((tx) => tx.requires(nothing as unknown as Ownership)))).toBeInstanceOf(ConfigurationError)
    }
    expect(await failureOf(locks.stm((tx) => tx.requires(ownershipOf(other))))).toMatchObject({
      name: 'ConfigurationError', message: expect.stringContaining('another manager'),
    })
    other.assertHeld()
    expect(commits).toHaveLength(0)
    const own = ownershipOf(await locks.lock('own'))
    const tx = await locks.stm((one) => one)
    expect(() => tx.requires(own)).toThrow(ConfigurationError)
  })
})

describe('a lock that a commit under way requires', () => {
  /** Somebody of the same process waits for it, and the commit is on its way. */
  async function underWay() {
    const the = open()
    const { locks, faults } = the
    const lock = await locks.lock('job')
    const next = locks.lock('job')
    let answer!: (state: CommitState) => void
    let fail!: (error: Error) => void
    const sent = new Promise<void>((resolve) => {
      faults.commit = () => {
        resolve()
        return new Promise((resolveCommit, reject) => {
          answer = resolveCommit
          fail = reject
        })
      }
    })
    const done = locks.stm((tx) => tx.requires(ownershipOf(lock)))
    done.catch(() => {})
    await sent
    return { ...the, lock, next, done, answer, fail }
  }

  const isSameClaim = (one: DistributedLock, other: DistributedLock) => holdOf(one).claim === holdOf(other).claim

  it('is not handed over in memory: the store could not tell the next from it', async () => {
    const { lock, next, done, answer } = await underWay()
    await lock.release()
    expect(isSameClaim(lock, await next)).toBe(false)
    answer({ status: 'committed', revision: 1n })
    await done
  })

  it('is handed over again once that is answered, or has failed', async () => {
    for (const end of ['answer', 'fail'] as const) {
      const { lock, next, done, answer, fail } = await underWay()
      if (end === 'answer') answer({ status: 'committed', revision: 1n })
      else fail(new BackendError('refused', { transient: false }))
      await done.catch(() => {})
      await lock.release()
      expect(isSameClaim(lock, await next)).toBe(true)
    }
  })

  it('is not while nobody knows whether it was, or will be, carried out', async () => {
    const { lock, next, done, answer } = await underWay()
    answer({ status: 'unknown', error: new BackendError('lost', { transient: true }) })
    await done.catch(() => {})
    await lock.release()
    expect(isSameClaim(lock, await next)).toBe(false)
  })
})
