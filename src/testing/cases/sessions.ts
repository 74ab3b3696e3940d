/** Sessions: what lives and ends with one, and how another process takes it up. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { BackendError, ConfigurationError, InvalidTtlError, LockedError, ManagerClosedError, SessionExpiredError } from '../../core/errors.js'
import { Mutex } from '../../primitives/mutex.js'
import type { Session, SessionOptions } from '../../primitives/session.js'
import type { Suite } from '../conformance.js'
import { LONG_MS } from '../harness.js'
import { dyingSession, eventually, nameIn, rejection, sessionOf, stillWaits, within } from '../managers.js'

/** One that is there for as long as it is renewed, and no longer. */
const KEPT_MS = 2_000

export function sessions({ theme, test, traits }: Suite): void {
  theme('sessions', () => {
    test('have a lease each, and are alive', async (world) => {
      const locks = await world.locks()
      const [a, b] = [await locks.session(), await locks.session({ ttlMs: LONG_MS })]
      for (const session of [a, b]) {
        assert.equal(typeof session.lease, 'bigint')
        assert.ok(session.lease > 0n)
        assert.equal(session.signal.aborted, false)
        await stillWaits('its end', session.done)
      }
      assert.notEqual(a.lease, b.lease)
    })

    // On etcd that is the lease's: see test/process/etcd-sessions.test.ts.
    if (traits.tellsExpiry) {
      test('last for their TTL, and for a minute if that is not positive', async (world) => {
        const locks = await world.locks()
        const leftOf = async (ttlMs: number) => {
          const { lease } = await locks.session({ ttlMs })
          for await (const { holders } of locks.inspect(`session/${lease.toString(16)}`)) return holders[0]?.expiresInMs
          return undefined
        }
        for (const [ttlMs, most] of [[90_000, 90_000], [0, 60_000], [-1, 60_000]] as const) {
          const left = await leftOf(ttlMs)
          assert.ok(left !== undefined && left > most - 20_000 && left <= most, `${left} of ${most} ms`)
        }
      })
    }

    test('are kept alive past their TTL', async (world) => {
      const ttlMs = Math.max(traits.minTtlMs, KEPT_MS)
      const [session, other] = [await sessionOf(world, ttlMs), await sessionOf(world)]
      const mutex = new Mutex(session, nameIn(world, 'kept'))
      await mutex.lock()
      await sleep(ttlMs * 1.5)
      assert.equal(session.signal.aborted, false)
      assert.equal(mutex.signal.aborted, false)
      await assert.rejects(new Mutex(other, mutex.prefix).tryLock(), LockedError)
    })

    test('end when they are closed, however often, and what they held is free at once', async (world) => {
      const [session, other] = [await sessionOf(world), await sessionOf(world)]
      const mutexes = ['a', 'b'].map((name) => new Mutex(session, nameIn(world, name)))
      for (const mutex of mutexes) await mutex.lock()
      const waiting = new Mutex(other, nameIn(world, 'a')).lock()
      await Promise.all([session.close(), session.close()])
      await session.done
      await session.close()
      await session.orphan()
      assertEnded(session)
      for (const mutex of mutexes) assert.ok(mutex.signal.reason instanceof SessionExpiredError)
      await within('its turn', waiting)
      await new Mutex(other, nameIn(world, 'b')).tryLock()
      await assert.rejects(mutexes[0]!.lock(), SessionExpiredError)
      await assert.rejects(mutexes[0]!.tryLock(), SessionExpiredError)
      assert.equal(await mutexes[1]!.isOwner().check(), false)
    })

    test('end when nothing more is heard of their store', async (world) => {
      let isCut = false
      const cut = async () => {
        throw new BackendError('There is no connection.', { transient: true })
      }
      const locks = await world.locks({}, (backend) => ({
        renew: (renewals) => (isCut ? cut() : backend.renew(renewals)),
        release: (claims) => (isCut ? cut() : backend.release(claims)),
      }))
      const other = await sessionOf(world)
      const mutex = await dyingSession(world, (session) => lockedBy(session, nameIn(world, 'cut')), Promise.resolve(locks))
      const { signal, session } = mutex
      const next = new Mutex(other, mutex.prefix).lock()
      isCut = true
      await within('its end', session.done)
      assertEnded(session)
      assert.ok(signal.aborted)
      isCut = false
      await within('the next', next)
    })

    test('are left to expire when they are orphaned, and are over at once', async (world) => {
      const [long, other] = [await sessionOf(world), await sessionOf(world)]
      const kept = await lockedBy(long, nameIn(world, 'kept'))
      const dying = await dyingSession(world, (session) => lockedBy(session, nameIn(world, 'dying')))
      const short = dying.session
      await within('its end', Promise.all([long.orphan(), short.orphan()]), 1_000)
      await long.orphan()
      await long.close()
      for (const session of [long, short]) assertEnded(session)
      assert.ok(kept.signal.aborted)
      await assert.rejects(new Mutex(other, kept.prefix).tryLock(), LockedError)
      await within('the next', new Mutex(other, dying.prefix).lock())
    })

    test('tell at once who waits in them that they have ended, and how', async (world) => {
      const holder = new Mutex(await sessionOf(world), nameIn(world, 'held'))
      await holder.lock()
      for (const end of ['close', 'orphan'] as const) {
        const session = await sessionOf(world)
        const waiting = rejection(new Mutex(session, holder.prefix).lock())
        const other = rejection(new Mutex(session, holder.prefix).lock())
        await stillWaits(end, waiting)
        const ended = session[end]()
        assert.ok((await within('the end of the wait', waiting, 1_000)) instanceof SessionExpiredError)
        assert.ok((await other) instanceof SessionExpiredError)
        await ended
      }
      // Nobody is left in line.
      await holder.unlock()
      await within('the last', new Mutex(await sessionOf(world), holder.prefix).lock())
    })

    test('are the same in one process, however often they are taken up', async (world) => {
      const locks = await world.locks()
      const session = await locks.session({ ttlMs: LONG_MS })
      const taken = await Promise.all([locks.session({ lease: session.lease }), locks.session({ lease: session.lease })])
      for (const one of taken) assert.equal(one.lease, session.lease)
      const [mutex, again] = [new Mutex(session, nameIn(world, 'own')), new Mutex(taken[1], nameIn(world, 'own'))]
      await mutex.lock()
      await within('the same session', again.lock())
      assert.equal(again.rev, mutex.rev)
    })

    test('are taken up by another process, with all that they hold, over those who wait', async (world) => {
      const [a, b] = [await world.locks(), await world.locks()]
      const old = await a.session({ ttlMs: LONG_MS })
      const before = new Mutex(old, nameIn(world, 'moved'))
      await before.lock()
      const { rev, fence, key } = before
      const waiting = new Mutex(await sessionOf(world), before.prefix).lock()
      await old.orphan()
      const session = await b.session({ lease: old.lease })
      assert.equal(session.lease, old.lease)
      assert.equal(session.signal.aborted, false)
      const mutex = new Mutex(session, before.prefix)
      await within('what it had', mutex.lock())
      assert.deepEqual([mutex.rev, mutex.fence, mutex.key], [rev, fence, key])
      assert.equal(await mutex.isOwner().check(), true)
      await stillWaits('the other', waiting)
      await mutex.unlock()
      await within('the other', waiting)
    })

    test('are taken up by two of one process at once as one', async (world) => {
      const [a, b] = [await world.locks(), await world.locks()]
      const old = await a.session({ ttlMs: LONG_MS })
      await old.orphan()
      const taken = await Promise.all([b.session({ lease: old.lease }), b.session({ lease: old.lease })])
      for (const session of taken) assert.equal(session.signal.aborted, false)
      await Promise.all(taken.map((session) => session.close()))
      assertEnded(await b.session({ lease: old.lease }))
    })

    // With etcd's own leases both have it: it is one session in two processes.
    if (traits.tellsExpiry) {
      test('end in the process that they were taken from', async (world) => {
        const [a, b] = [await world.locks(), await world.locks()]
        const old = await a.session({ ttlMs: Math.max(traits.minTtlMs, KEPT_MS) })
        const before = new Mutex(old, nameIn(world, 'taken'))
        await before.lock()
        const { signal } = before
        const session = await b.session({ lease: old.lease })
        const mutex = new Mutex(session, before.prefix)
        await within('what it had', mutex.lock())
        await within('the end of the old one', old.done)
        assertEnded(old)
        assert.ok(signal.aborted)
        // What is over there must not take anything along.
        await a.close()
        assert.equal(await mutex.isOwner().check(), true)
      })
    }

    test('are taken up again and again in one process after they were orphaned', async (world) => {
      const locks = await world.locks()
      const waiting = async (prefix: string) => new Mutex(await sessionOf(world), prefix).lock()
      let session = await locks.session({ ttlMs: LONG_MS })
      const { lease } = session
      const first = new Mutex(session, nameIn(world, 'again'))
      await first.lock()
      const { rev } = first
      const other = waiting(first.prefix)
      for (let i = 0; i < 2; i++) {
        await session.orphan()
        session = await locks.session({ lease })
        assert.equal(session.signal.aborted, false)
        const mutex = new Mutex(session, first.prefix)
        await within('what it had', mutex.lock())
        assert.equal(mutex.rev, rev)
      }
      await stillWaits('the other', other)
      await session.close()
      await within('the other', other)
    })

    test('have ended if their lease is gone, which is no error', async (world) => {
      const [a, b] = [await world.locks(), await world.locks()]
      const closed = await a.session({ ttlMs: LONG_MS })
      await closed.close()
      for (const [locks, lease] of [[a, closed.lease], [b, closed.lease], [b, 0x1234567890abcdefn]] as const) {
        const session = await locks.session({ lease })
        await within('its end', session.done)
        assertEnded(session)
        assert.equal(session.lease, lease)
        await assert.rejects(new Mutex(session, nameIn(world, 'gone')).lock(), SessionExpiredError)
        await session.orphan()
        await session.close()
      }
    })

    test('close with their signal', async (world) => {
      const locks = await world.locks()
      const controller = new AbortController()
      const session = await locks.session({ ttlMs: LONG_MS, signal: controller.signal })
      const mutex = new Mutex(session, nameIn(world, 'signal'))
      await mutex.lock()
      controller.abort()
      await within('its end', session.done)
      assertEnded(session)
      await within('the next', new Mutex(await sessionOf(world), mutex.prefix).lock())
      const reason = new Error('no more')
      await assert.rejects(locks.session({ signal: AbortSignal.abort(reason) }), reason)
    })

    test('close at the end of their block', async (world) => {
      const locks = await world.locks()
      let ended: Promise<void>
      {
        await using session = await locks.session({ ttlMs: LONG_MS })
        ended = session.done
      }
      await ended
    })

    test('end with their manager, and there is none after it', async (world) => {
      const locks = await world.locks()
      const session = await locks.session({ ttlMs: LONG_MS })
      const mutex = new Mutex(session, nameIn(world, 'closed'))
      await mutex.lock()
      const holder = new Mutex(await sessionOf(world), nameIn(world, 'held'))
      await holder.lock()
      const waiting = rejection(new Mutex(session, holder.prefix).lock())
      await stillWaits('it', waiting)
      await locks.close()
      assert.ok(await waiting)
      await within('its end', session.done)
      assert.ok(session.signal.aborted)
      await session.close()
      await assert.rejects(locks.session(), ManagerClosedError)
      await assert.rejects(locks.session({ lease: session.lease }), ManagerClosedError)
      await within('the next', new Mutex(await sessionOf(world), mutex.prefix).lock())
    })

    test('say what is wrong with their options', async (world) => {
      const locks = await world.locks()
      const wrong = (options: object) => locks.session(options as SessionOptions)
      for (const options of [{ ttl: 5 }, { lease: 5 }, { lease: 0n }, { lease: -1n }, { lease: 2n ** 63n }, { signal: {} }]) {
        await assert.rejects(wrong(options), ConfigurationError)
      }
      for (const ttlMs of [5, 1.5, '60', Number.NaN, Infinity]) await assert.rejects(wrong({ ttlMs }), InvalidTtlError)
    })

    test('come and go many at a time', async (world) => {
      const locks = await world.locks()
      const all = await Promise.all(Array.from({ length: 20 }, () => locks.session({ ttlMs: LONG_MS })))
      assert.equal(new Set(all.map(({ lease }) => lease)).size, 20)
      await Promise.all(all.map((session, i) => new Mutex(session, nameIn(world, `many-${i}`)).lock()))
      await Promise.all(all.map((session) => session.close()))
      const other = await sessionOf(world)
      await Promise.all(all.map((_, i) => new Mutex(other, nameIn(world, `many-${i}`)).tryLock()))
      await eventually('nothing to be left', async () => {
        for await (const { key } of locks.inspect()) if (all.some(({ lease }) => key === `session/${lease.toString(16)}`)) return false
        return true
      })
    })
  })
}

async function lockedBy(session: Session, prefix: string): Promise<Mutex> {
  const mutex = new Mutex(session, prefix)
  await mutex.lock()
  return mutex
}

function assertEnded({ signal }: Session): void {
  assert.ok(signal.aborted, 'it has ended')
  assert.ok(signal.reason instanceof SessionExpiredError, String(signal.reason))
}
