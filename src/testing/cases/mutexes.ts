/** Mutexes of sessions: what etcd's client for Go promises of them, and what it does not. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  BackendError, ConfigurationError, InvalidKeyError, LockedError, LockNotHeldError, LockReleasedError, SessionExpiredError,
} from '../../core/errors.js'
import type { Ownership } from '../../core/ownership.js'
import { Mutex } from '../../primitives/mutex.js'
import type { Session } from '../../primitives/session.js'
import type { Suite } from '../conformance.js'
import { LONG_MS } from '../harness.js'
import { dyingMs, dyingSession, eventually, nameIn, queued, rejection, sessionOf, sessionsOf, stillWaits, within } from '../managers.js'

export function mutexes({ theme, test, traits }: Suite): void {
  theme('mutexes', () => {
    test('lock and unlock, with fences and revisions that grow', async (world) => {
      const [a, b] = mutexesOf(await sessionsOf(world, 2), nameIn(world, 'plain'))
      assert.deepEqual([a.rev, a.fence, a.header.revision], [0n, 0n, 0n])
      await a.lock()
      const { rev, fence } = a
      assert.ok(rev > 0n && fence > 0n && a.header.revision === rev)
      assert.equal(a.key, `${a.prefix}/${a.session.lease.toString(16)}`)
      assert.equal(await a.isOwner().check(), true)
      assert.equal(a.signal.aborted, false)
      await a.unlock()
      assert.equal(a.rev, 0n)
      await b.lock()
      assert.ok(b.rev > rev && b.fence > fence)
      await b.unlock()
    })

    test('say that they are released if they were not locked, or no more', async (world) => {
      const [a, b] = mutexesOf([await sessionOf(world)], nameIn(world, 'twice'), 2)
      await assert.rejects(a.unlock(), LockReleasedError)
      assert.throws(() => a.isOwner(), LockReleasedError)
      await a.lock()
      const [first, second] = await Promise.allSettled([a.unlock(), a.unlock()])
      assert.deepEqual([first.status, second.status], ['fulfilled', 'rejected'])
      await assert.rejects(a.unlock(), LockReleasedError)
      await assert.rejects(b.unlock(), LockReleasedError)
    })

    test('are a condition of a transaction for as long as their session holds them', async (world) => {
      const [locks, others] = [await world.locks(), await world.locks()]
      const [prefix, key] = [nameIn(world, 'condition'), nameIn(world, 'guarded')]
      const [ours, theirs] = [new Mutex(await locks.session(), prefix), new Mutex(await others.session(), prefix)]
      const write = (manager: typeof locks, ownership: Ownership, value: string) => manager.stm((tx) => {
        tx.requires(ownership)
        tx.put(key, value)
      })
      await ours.lock()
      const ownership = ours.isOwner()
      if (!traits.ownership) return assert.rejects(write(locks, ownership, 'no'), ConfigurationError)
      await write(locks, ownership, 'ours')
      await ours.unlock()
      await theirs.lock()
      await assert.rejects(write(locks, ownership, 'late'), LockNotHeldError)
      assert.equal(await others.stm((tx) => {
        tx.requires(theirs.isOwner())
        return tx.get(key)
      }), 'ours')
      await write(others, theirs.isOwner(), 'theirs')
      assert.equal(await locks.stm((tx) => tx.get(key)), 'theirs')
      assert.equal(await theirs.isOwner().check(), true)
    })

    test('of five processes are held by one at a time, and by all in the end', async (world) => {
      const all = mutexesOf(await sessionsOf(world, 5), nameIn(world, 'five'))
      await inTurn(all.map((mutex) => async (work) => {
        await mutex.lock()
        await work(mutex.fence)
        await mutex.unlock()
      }))
    })

    test('of three processes that contend for it are held by one at a time: stress', async (world) => {
      const owners = await sessionsOf(world, 3)
      const rounds = owners.flatMap((session) => Array.from({ length: 10 }, () => async (work: (fence: bigint) => Promise<void>) => {
        const mutex = new Mutex(session, nameIn(world, 'stress'))
        await mutex.lock()
        const { fence } = mutex
        await work(fence)
        await mutex.unlock()
      }))
      // One of a session after the other: at once they would all hold what the session holds.
      const inRow = async (of: typeof rounds, work: (fence: bigint) => Promise<void>) => {
        for (const round of of) await round(work)
      }
      await inTurn(owners.map((_, i) => (work) => inRow(rounds.slice(i * 10, i * 10 + 10), work)), 30)
    })

    test('that five try are held by exactly one, and the others are told who is in the way', async (world) => {
      const all = mutexesOf(await sessionsOf(world, 5), nameIn(world, 'try'))
      const tried = await Promise.allSettled(all.map((mutex) => mutex.tryLock()))
      const lost = tried.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []))
      assert.equal(lost.length, 4)
      for (const error of lost) assert.ok(error instanceof LockedError && error.key === all[0]!.prefix, String(error))
      const winner = all[tried.findIndex(({ status }) => status === 'fulfilled')]!
      await winner.unlock()
      await within('the next', all[(all.indexOf(winner) + 1) % 5]!.lock())
    })

    test('that are tried while others wait leave nothing behind', async (world) => {
      const [a, b, c] = mutexesOf(await sessionsOf(world, 3), nameIn(world, 'tried'))
      await a.lock()
      const waiting = b.lock()
      for (let i = 0; i < 3; i++) await assert.rejects(c.tryLock(), LockedError)
      await a.unlock()
      await within('its turn', waiting)
      await b.unlock()
      await c.tryLock()
    })

    test('are free when the session that held them has expired: a holder that dies hands over', async (world) => {
      const [next, last] = mutexesOf(await sessionsOf(world, 2), nameIn(world, 'dies'))
      const dying = await dyingSession(world, async (session) => {
        const mutex = new Mutex(session, next.prefix)
        await mutex.lock()
        return mutex
      })
      const { signal, fence } = dying
      const waiting = next.lock()
      await dying.session.orphan()
      await within('the next', waiting)
      assert.ok(signal.aborted)
      assert.ok(next.fence > fence)
      assert.equal(await dying.isOwner().check(), false)
      // It is not its any more.
      await assert.rejects(dying.unlock(), LockReleasedError)
      await assert.rejects(last.tryLock(), LockedError)
    })

    test('that are waited for leave no trace when the wait is cancelled', async (world) => {
      const locks = await world.locks()
      const [a, b, c] = mutexesOf(await sessionsOf(world, 3), nameIn(world, 'cancelled'))
      await a.lock()
      const controller = new AbortController()
      const reason = new Error('enough')
      const waiting = rejection(b.lock({ signal: controller.signal }))
      await queued(world, locks, 'cancelled', 1)
      controller.abort(reason)
      assert.equal(await within('the end of the wait', waiting, 1_000), reason)
      assert.equal(b.rev, 0n)
      await queued(world, locks, 'cancelled', 0)
      await a.unlock()
      await c.tryLock()
      await assert.rejects(b.lock({ signal: AbortSignal.abort(reason) }), reason)
      await assert.rejects(b.tryLock({ signal: AbortSignal.abort(reason) }), reason)
    })

    test('whose request is cancelled on its way leave no trace', async (world) => {
      const other = new Mutex(await sessionOf(world), nameIn(world, 'way'))
      for (let round = 0; round < 12; round++) {
        const mutex = new Mutex(await sessionOf(world), other.prefix)
        const controller = new AbortController()
        const { signal } = controller
        const asked = round % 2 === 0 ? mutex.lock({ signal }) : mutex.tryLock({ signal })
        const settled = asked.then(() => true, () => false)
        if (round > 1) await sleep(round / 4)
        controller.abort()
        if (await settled) await mutex.unlock()
        await eventually('nobody to be in the way', async () => isFree(other))
        await mutex.session.close()
      }
    })

    test('that are cancelled and locked again at once are held by their session, and nobody else', async (world) => {
      const [a, b] = mutexesOf(await sessionsOf(world, 2), nameIn(world, 'again'))
      for (let round = 0; round < 12; round++) {
        const controller = new AbortController()
        const cancelled = a.lock({ signal: controller.signal }).then(() => {}, () => {})
        if (round > 1) await sleep(round / 4)
        controller.abort()
        await within('another lock', a.lock())
        await cancelled
        // What is late of the first must not end the second.
        await sleep(10)
        await assert.rejects(b.tryLock(), LockedError)
        assert.equal(await a.isOwner().check(), true)
        await a.unlock()
      }
      await b.tryLock()
    })

    test('that are waited for, cancelled and waited for again at once get their turn', async (world) => {
      const [a, b, c] = mutexesOf(await sessionsOf(world, 3), nameIn(world, 'rejoin'))
      await a.lock()
      let controller = new AbortController()
      let waiting = b.lock({ signal: controller.signal })
      for (let round = 0; round < 5; round++) {
        const left = rejection(waiting)
        if (round > 1) await sleep(round * 2)
        controller.abort()
        controller = new AbortController()
        waiting = b.lock({ signal: controller.signal })
        await left
      }
      await stillWaits('it', waiting)
      await a.unlock()
      await within('its turn', waiting)
      await sleep(10)
      await assert.rejects(c.tryLock(), LockedError)
      assert.equal(await b.isOwner().check(), true)
    })

    test('tell who waits when its session ends, though the holder unlocks right then', async (world) => {
      const [a, b, c] = mutexesOf(await sessionsOf(world, 3), nameIn(world, 'ends'))
      await a.lock()
      const waiting = rejection(b.lock())
      await stillWaits('it', waiting)
      const closed = b.session.close()
      await a.unlock()
      assert.ok((await waiting) instanceof SessionExpiredError)
      await closed
      await within('another', c.lock())
    })

    // etcd#19597: etcd's own client goes on waiting.
    test('tell who waits at once when its session has expired', async (world) => {
      let isCut = false
      const cut = async () => {
        throw new BackendError('There is no connection.', { transient: true })
      }
      const locks = await world.locks({}, (backend) => ({ renew: (renewals) => (isCut ? cut() : backend.renew(renewals)) }))
      const a = new Mutex(await sessionOf(world), nameIn(world, 'expires'))
      await a.lock()
      const b = new Mutex(await locks.session({ ttlMs: dyingMs(world) }), a.prefix)
      const waiting = rejection(b.lock())
      isCut = true
      await within('its end', b.session.done)
      assert.ok((await within('the end of the wait', waiting, 1_000)) instanceof SessionExpiredError)
    })

    test('are held by the session: who locks again has it, and one unlock releases it', async (world) => {
      const [a, b] = mutexesOf([await sessionOf(world)], nameIn(world, 'same'), 2)
      const other = new Mutex(await sessionOf(world), a.prefix)
      await a.lock()
      await within('the same session', Promise.all([b.lock(), a.lock(), a.tryLock(), b.tryLock()]))
      assert.deepEqual([b.rev, b.fence, b.key], [a.rev, a.fence, a.key])
      await b.unlock()
      await other.tryLock()
      await assert.rejects(a.unlock(), LockReleasedError)
      assert.equal(await rejection(b.tryLock()) instanceof LockedError, true)
    })

    // etcd#22082: there it deletes the key, whosever it is by then.
    test('of one session: a stale unlock leaves what was locked since alone', async (world) => {
      const [a, b] = mutexesOf([await sessionOf(world)], nameIn(world, 'stale'), 2)
      const other = new Mutex(await sessionOf(world), a.prefix)
      await a.lock()
      await b.lock()
      await a.unlock()
      await a.lock()
      await assert.rejects(b.unlock(), LockReleasedError)
      await assert.rejects(other.tryLock(), LockedError)
      assert.equal(await a.isOwner().check(), true)
      await a.unlock()
    })

    test('are locked again while they are being unlocked, by whoever comes first', async (world) => {
      const [a, b] = mutexesOf([await sessionOf(world)], nameIn(world, 'quick'), 2)
      const other = new Mutex(await sessionOf(world), a.prefix)
      await a.lock()
      for (let round = 0; round < 5; round++) {
        const [one, two] = round % 2 === 0 ? [a, b] : [b, a]
        const unlocked = one.unlock()
        await within('the lock', Promise.all([unlocked, round > 2 ? two.tryLock() : two.lock()]))
        await assert.rejects(other.tryLock(), LockedError)
        assert.equal(await two.isOwner().check(), true)
      }
    })

    test('of one session that wait at once wait for themselves: one can go', async (world) => {
      const locks = await world.locks()
      const [one, two, three] = mutexesOf([await sessionOf(world)], nameIn(world, 'both'), 3)
      const holder = new Mutex(await sessionOf(world), one.prefix)
      await holder.lock()
      const controller = new AbortController()
      const gone = rejection(one.lock({ signal: controller.signal }))
      const stays = two.lock()
      await queued(world, locks, 'both', 1)
      assert.ok((await rejection(three.tryLock())) instanceof LockedError)
      controller.abort()
      await gone
      await stillWaits('the other', stays)
      await queued(world, locks, 'both', 1)
      await holder.unlock()
      await within('its turn', stays)
      assert.equal(one.rev, 0n)
      await assert.rejects(one.unlock(), LockReleasedError)
    })

    test('wait on when somebody before them is gone', async (world) => {
      const locks = await world.locks()
      const [holder, victim, newcomer] = mutexesOf(await sessionsOf(world, 3), nameIn(world, 'victim'))
      await holder.lock()
      const lost = rejection(victim.lock())
      await queued(world, locks, 'victim', 1)
      const waiting = newcomer.lock()
      await queued(world, locks, 'victim', 2)
      await victim.session.close()
      assert.ok((await lost) instanceof SessionExpiredError)
      await stillWaits('the newcomer', waiting)
      await holder.unlock()
      await within('the newcomer', waiting, 1_000)
    })

    test('are served in order', async (world) => {
      const locks = await world.locks()
      const [holder, ...others] = mutexesOf(await sessionsOf(world, 4), nameIn(world, 'order'))
      await holder.lock()
      const served: number[] = []
      const done: Promise<void>[] = []
      for (const [i, mutex] of others.entries()) {
        done.push(mutex.lock().then(() => (served.push(i), mutex.unlock())))
        await queued(world, locks, 'order', i + 1)
      }
      await holder.unlock()
      await within('all of them', Promise.all(done))
      assert.deepEqual(served, [0, 1, 2])
    })

    test('whose unlock fails can be unlocked again, and are not locked before that', async (world) => {
      let failures = 2
      const faulty = await world.locks({}, (backend) => ({
        release: async (claims) => {
          if (failures-- > 0) throw new BackendError('The connection broke.', { transient: true })
          return backend.release(claims)
        },
      }))
      const [mutex, other] = mutexesOf([await faulty.session({ ttlMs: LONG_MS }), await sessionOf(world)], nameIn(world, 'retry'))
      await mutex.lock()
      await assert.rejects(mutex.unlock(), BackendError)
      await assert.rejects(other.tryLock(), LockedError)
      // It has to be released first, or it would be in its own way.
      assert.ok((await rejection(mutex.lock())) instanceof BackendError)
      await mutex.unlock()
      await other.tryLock()
    })

    test('whose name begins with that of another do not disturb it', async (world) => {
      const owners = await sessionsOf(world, 2)
      const names = ['a', 'a/b', 'a/b/c', 'a/', 'test', 'testa', 'tes', 'a%2Fb', 'ключ', 'with "quotes" and \\', "'", 'x\0y']
      const held = names.map((name) => new Mutex(owners[0]!, nameIn(world, name)))
      for (const [i, mutex] of held.entries()) {
        await within(names[i]!, mutex.tryLock())
        await assert.rejects(new Mutex(owners[1]!, mutex.prefix).tryLock(), LockedError)
      }
      for (const [i, mutex] of held.entries()) {
        await mutex.unlock()
        const other = new Mutex(owners[1]!, mutex.prefix)
        await within(names[i]!, other.lock())
        for (const rest of held.slice(i + 1)) assert.equal(rest.signal.aborted, false)
        await other.unlock()
      }
    })

    test('unlock at the end of their block, and never reject there', async (world) => {
      const [a, b] = mutexesOf(await sessionsOf(world, 2), nameIn(world, 'block'))
      {
        await using mutex = a
        await mutex.lock()
      }
      await b.tryLock()
      await b.session.close()
      await b[Symbol.asyncDispose]()
      await a[Symbol.asyncDispose]()
    })

    test('say what is wrong with what they are made of', async (world) => {
      const session = await sessionOf(world)
      const wrong = (...args: readonly unknown[]) => new Mutex(...(args as [Session, string]))
      assert.throws(() => wrong({}, 'x'), ConfigurationError)
      assert.throws(() => wrong(session, ''), InvalidKeyError)
      assert.throws(() => wrong(session, 5), InvalidKeyError)
      await assert.rejects(wrong(session, 'x').lock({ waitMs: 5 } as object), ConfigurationError)
      await assert.rejects(wrong(session, 'x').lock({ signal: {} } as object), ConfigurationError)
    })
  })
}

/** One of each session, or several of one. */
function mutexesOf(sessions: readonly Session[], prefix: string, count = sessions.length): [Mutex, Mutex, Mutex, ...Mutex[]] {
  const all = Array.from({ length: count }, (_, i) => new Mutex(sessions[i % sessions.length]!, prefix))
  return all as [Mutex, Mutex, Mutex, ...Mutex[]]
}

async function isFree(mutex: Mutex): Promise<boolean> {
  try {
    await mutex.tryLock()
  } catch (error) {
    if (error instanceof LockedError) return false
    throw error
  }
  await mutex.unlock()
  return true
}

/** All of them at once, and each finds itself alone, with a higher fence than all before. */
async function inTurn(all: readonly ((work: (fence: bigint) => Promise<void>) => Promise<void>)[], times = all.length): Promise<void> {
  let inside = 0
  let last = 0n
  let served = 0
  await within('all of them', Promise.all(all.map((one) => one(async (fence) => {
    assert.equal(++inside, 1, 'one at a time')
    assert.ok(fence > last, `${fence} after ${last}`)
    last = fence
    await sleep(1)
    inside--
    served++
  }))))
  assert.equal(served, times)
}
