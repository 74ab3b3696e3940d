/** What sessions and elections got wrong when somebody looked for it. */
import { describe, expect, it } from 'vitest'
import { memoryBackend } from '../../src/backends/memory/index.js'
import type { Backend, BackendFactory, Commit, CommitState } from '../../src/core/backend.js'
import { BackendError } from '../../src/core/errors.js'
import { createLocks, Election, Mutex } from '../../src/index.js'
import { Session } from '../../src/primitives/session.js'
import { Observer } from '../../src/testing/managers.js'
import { outage } from '../support/faulty-backend.js'
import { settle } from '../support/manual-clock.js'
import { manualWorld, watch, type ManualWorld } from '../support/manual-world.js'

/** A store on whose commits something else happens, too. */
function committing(through: (commit: () => Promise<CommitState>) => Promise<CommitState>): BackendFactory {
  const memory = memoryBackend()
  return (scope) => {
    const backend: Backend = memory(scope)
    const store = backend.store!
    const disturbed = { read: store.read.bind(store), commit: (commit: Commit) => through(() => store.commit(commit)) }
    return new Proxy(backend, {
      get: (target, name) => {
        if (name === 'store') return disturbed
        const value: unknown = Reflect.get(target, name, target)
        return typeof value === 'function' ? (value.bind(target) as unknown) : value
      },
    })
  }
}

describe('a session', () => {
  it('can be taken up by turns, as often as one likes', async () => {
    const backend = memoryBackend()
    const [a, b] = [createLocks(backend), createLocks(backend)]
    let session = await a.session({ ttlMs: 5_000 })
    const mutex = new Mutex(session, 'x')
    await mutex.lock()
    const { rev } = mutex
    for (const next of [b, a, b, a]) {
      await session.orphan()
      session = await next.session({ lease: session.lease })
      expect(session.signal.aborted).toBe(false)
      const again = new Mutex(session, 'x')
      await again.tryLock()
      expect(again.rev).toBe(rev)
    }
    await Promise.all([a.close(), b.close()])
  })

  it('that was just orphaned can be taken up at once, by the same manager', async () => {
    const locks = createLocks(memoryBackend())
    const session = await locks.session({ ttlMs: 5_000 })
    void session.orphan()
    const again = await locks.session({ lease: session.lease })
    expect(again.signal.aborted).toBe(false)
    await locks.close()
  })

  it('aborts the signal of a mutex that was read before it was locked', async () => {
    const locks = createLocks(memoryBackend())
    const session = await locks.session({ ttlMs: 5_000 })
    const mutex = new Mutex(session, 'x')
    const { signal } = mutex
    await mutex.lock()
    await session.close()
    expect(signal.aborted).toBe(true)
    await locks.close()
  })
})

describe('an election', () => {
  it('is observed also after the store has forgotten what was said', async () => {
    const backend = memoryBackend()
    const [a, b] = [createLocks(backend), createLocks(backend)]
    const first = new Election(await a.session(), 'x')
    for (const value of ['1', '2', '3', '4']) await first.campaign(value)
    const observer = new Observer(first)
    await observer.sees('4')
    await first.resign()
    await a.stm((tx) => tx.del('\0leaders/x/'))
    const second = new Election(await b.session(), 'x')
    await second.campaign('5')
    await observer.sees('5')
    await observer.stop()
    await Promise.all([a.close(), b.close()])
  })

  it('says again what it said before something of which nobody knows whether it was said', async () => {
    let isLost = false
    const locks = createLocks(committing(async (commit) => {
      const state = await commit()
      if (!isLost) return state
      isLost = false
      return { status: 'unknown', error: new BackendError('The answer was lost.', { transient: true }) }
    }))
    const election = new Election(await locks.session(), 'x')
    await election.campaign('a')
    isLost = true
    await expect(election.proclaim('b')).rejects.toThrow('The answer was lost.')
    await election.proclaim('a')
    expect((await election.leader()).value).toBe('a')
    await locks.close()
  })

  it('has nobody work who is told to end at the moment of being elected', async () => {
    const controller = new AbortController()
    const locks = createLocks(committing(async (commit) => {
      const state = await commit()
      controller.abort(new Error('no more'))
      return state
    }))
    let runs = 0
    await expect(locks.election('x').onElected(() => runs++, { signal: controller.signal })).rejects.toThrow('no more')
    expect(runs).toBe(0)
    await expect(locks.election('x').leader()).rejects.toThrow('Nobody leads')
    await locks.close()
  })
})

describe('what a session was taken up with', () => {
  /** A session that holds "x" is taken up by another process, where a mutex is made of it. */
  async function takenUp({ manager }: ManualWorld): Promise<{ mutex: Mutex; others: Mutex; given: bigint }> {
    const [a, b] = [manager(), manager()]
    const old = await a.session({ ttlMs: 60_000 })
    const before = new Mutex(old, 'x')
    await before.lock()
    const given = before.fence
    await old.orphan()
    return { mutex: new Mutex(await b.session({ lease: old.lease }), 'x'), others: new Mutex(await a.session(), 'x'), given }
  }

  it('is not released under who asks again, after a wait that was given up while it was looked for', async () => {
    const world = manualWorld()
    const { mutex, others } = await takenUp(world)
    const controller = new AbortController()
    const left = watch(mutex.lock({ signal: controller.signal }))
    controller.abort(new Error('no more'))
    const again = watch(mutex.lock())
    await settle()
    expect([left.error?.message, again.state]).toEqual(['no more', 'resolved'])
    await expect(others.tryLock()).rejects.toThrow('Lock not acquired')
    expect(await mutex.isOwner().check()).toBe(true)
  })

  it('is not taken up once more while it is being let go of', async () => {
    const world = manualWorld()
    const { mutex, given } = await takenUp(world)
    await mutex.lock()
    expect(mutex.fence).toBe(given)
    world.store.fail('release', outage(), { times: 2 })
    await mutex[Symbol.asyncDispose]()
    const again = watch(mutex.lock())
    await world.clock.advance(1_000)
    expect(again.state).toBe('resolved')
    expect(mutex.fence).toBeGreaterThan(given)
    expect(await mutex.isOwner().check()).toBe(true)
  })

  it('is there also for who had it before, and lost it to another who took it up', async () => {
    const { manager, clock } = manualWorld()
    const [a, b] = [manager(), manager()]
    const first = await a.session({ ttlMs: 3_000 })
    await new Mutex(first, 'x').lock()
    const second = await b.session({ lease: first.lease })
    await new Mutex(second, 'x').tryLock()
    while (!first.signal.aborted) await clock.advance(100)
    await second.orphan()
    const third = await a.session({ lease: first.lease })
    expect(third.signal.aborted).toBe(false)
    await new Mutex(third, 'x').tryLock()
  })

  it('is left alone if the session is orphaned while it is looked for', async () => {
    const backend = memoryBackend()
    for (let ticks = 0; ticks < 12; ticks++) {
      const [a, b, c] = [createLocks(backend), createLocks(backend), createLocks(backend)]
      const first = await a.session({ ttlMs: 5_000 })
      const before = new Mutex(first, 'x')
      await before.lock()
      const { rev } = before
      await first.orphan()
      const second = await b.session({ lease: first.lease })
      new Mutex(second, 'x').lock().catch(() => {})
      for (let i = 0; i < ticks; i++) await new Promise<void>((resume) => process.nextTick(resume))
      await second.orphan()
      await new Promise((resume) => setTimeout(resume, 5))
      const again = new Mutex(await c.session({ lease: first.lease }), 'x')
      await again.lock()
      expect(again.rev, `${ticks}`).toBe(rev)
      await Promise.all([a.close(), b.close(), c.close()])
    }
  })

  it('is not withdrawn when the answer to a former attempt comes at last', async () => {
    const world = manualWorld()
    const { clock, store, manager } = world
    const [a, b, c] = [manager(), manager(), manager()]
    const old = await a.session({ ttlMs: 60_000 })
    await old.orphan()
    const mutex = new Mutex(await b.session({ lease: old.lease }), 'x')
    store.intercept('claim', async (send) => {
      const after = (ms: number) => new Promise<void>((resume) => clock.timer(ms, resume, 'background'))
      await after(6_000)
      const answer = await send()
      await after(500)
      return answer
    })
    const controller = new AbortController()
    mutex.lock({ signal: controller.signal }).catch(() => {})
    await clock.advance(100)
    controller.abort()
    await clock.advance(6_000)
    const again = watch(mutex.lock())
    await clock.advance(2_000)
    expect(again.state).toBe('resolved')
    const theirs = watch(new Mutex(await c.session(), 'x').lock())
    await clock.advance(5_000)
    expect([mutex.signal.aborted, theirs.state]).toEqual([false, 'pending'])
  })

  it('is forgotten by who has it no more', async () => {
    const { manager } = manualWorld()
    const session = await manager().session()
    const before = Session.member(session, 'x/')
    const mutex = new Mutex(session, 'x')
    const controller = new AbortController()
    const left = watch(mutex.lock({ signal: controller.signal }))
    controller.abort()
    await settle()
    expect(left.state).toBe('rejected')
    expect(Session.member(session, 'x/')).not.toBe(before)
  })
})

describe('a wait of a mutex', () => {
  it('ends at once when it is aborted, also while what was held before is being released', async () => {
    const { manager, store } = manualWorld()
    const mutex = new Mutex(await manager().session(), 'x')
    await mutex.lock()
    const release = store.hold('release')
    const unlock = watch(mutex.unlock())
    const controller = new AbortController()
    const lock = watch(mutex.lock({ signal: controller.signal }))
    await settle()
    controller.abort(new Error('no more'))
    await settle()
    expect([unlock.state, lock.error?.message]).toEqual(['pending', 'no more'])
    release.release()
    await settle()
    expect(unlock.state).toBe('resolved')
  })
})
