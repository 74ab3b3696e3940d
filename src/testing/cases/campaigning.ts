/** Elections among sessions: what etcd's client for Go promises of those who campaign, and what it does not. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { BackendError, ConfigurationError, LockedError, NoLeaderError, NotLeaderError, SessionExpiredError } from '../../core/errors.js'
import { Election } from '../../primitives/election.js'
import { Mutex } from '../../primitives/mutex.js'
import type { Session } from '../../primitives/session.js'
import type { Suite } from '../conformance.js'
import { LONG_MS } from '../harness.js'
import {
  beforeItSpeaks, dyingSession, electionsOf, eventually, nameIn, Observer, queued, rejection, sessionOf, sessionsOf, shown, stillWaits, within,
} from '../managers.js'

export function campaigning({ theme, test, traits }: Suite): void {
  theme('elections', () => {
    test('are won by campaigning, until the leader resigns', async (world) => {
      const [a, b] = electionsOf(await sessionsOf(world, 2), nameIn(world, 'plain'))
      assert.deepEqual([a.rev, a.fence, a.header.revision], [0n, 0n, 0n])
      await a.campaign('a')
      const { rev, fence } = a
      assert.ok(rev > 0n && fence > 0n && a.header.revision >= rev)
      assert.equal(a.signal.aborted, false)
      const waiting = b.campaign('b')
      await stillWaits('the other', waiting)
      await a.resign()
      await a.resign()
      await within('the other', waiting)
      assert.equal(a.rev, 0n)
      assert.ok(b.rev > rev && b.fence > fence)
      // Who does not lead cannot end it.
      await a.resign()
      assert.equal((await b.leader()).value, 'b')
      await b.resign()
      await assert.rejects(b.leader(), NoLeaderError)
    })

    test('tell who leads, and who waits does not', async (world) => {
      const [a, b, c] = electionsOf(await sessionsOf(world, 3), nameIn(world, 'who'))
      await assert.rejects(c.leader(), NoLeaderError)
      await a.campaign('a')
      const waiting = b.campaign('b')
      await queued(world, await world.locks(), 'who', 1)
      for (const one of [a, b, c]) {
        const { value, key, rev, header } = await one.leader()
        assert.deepEqual([value, key, rev], ['a', a.key, a.rev])
        assert.ok(header.revision > 0n)
      }
      await assert.rejects(b.proclaim('b'), NotLeaderError)
      await b.resign()
      await a.resign()
      await within('the other', waiting)
      assert.equal((await c.leader()).value, 'b')
      assert.equal(a.key, `${a.prefix}/${a.session.lease.toString(16)}`)
    })

    test('of three have one leader at a time, and another when that one goes', async (world) => {
      const all = electionsOf(await sessionsOf(world, 3), nameIn(world, 'three'))
      let leading = 0
      let last = 0n
      await within('all of them', Promise.all(all.map(async (election, i) => {
        for (let round = 0; round < 3; round++) {
          await election.campaign(`${i}`)
          assert.equal(++leading, 1, 'one leader at a time')
          assert.ok(election.rev > last)
          last = election.rev
          await sleep(1)
          leading--
          await election.resign()
        }
      })))
    })

    test('go to the next when the session of the leader closes, which is observed', async (world) => {
      const [a, b] = electionsOf(await sessionsOf(world, 2), nameIn(world, 'closes'))
      const watcher = new Observer(b)
      await a.campaign('a')
      const { signal } = a
      await watcher.sees('a')
      const next = b.campaign('b')
      await a.session.close()
      await within('the next', next)
      await watcher.sees('b')
      assert.ok(signal.reason instanceof SessionExpiredError)
      await watcher.stop()
      await assert.rejects(a.campaign('a'), SessionExpiredError)
      await assert.rejects(a.proclaim('a'), NotLeaderError)
    })

    test('go to the next when the session of the leader has expired: failover', async (world) => {
      const next = new Election(await sessionOf(world), nameIn(world, 'dies'))
      const dying = await dyingSession(world, async (session) => {
        const election = new Election(session, next.prefix)
        await election.campaign('dying')
        return election
      })
      const { signal, fence } = dying
      const watcher = new Observer(next)
      const waiting = next.campaign('next')
      await dying.session.orphan()
      await within('the next', waiting)
      assert.ok(signal.aborted)
      assert.ok(next.fence > fence)
      assert.equal((await watcher.sees('next')).rev, next.rev)
      await watcher.stop()
      watcher.assertInOrder()
      // What is left of the first is not its own any more.
      await dying.resign()
      assert.equal((await next.leader()).value, 'next')
    })

    test('are campaigned for again by who leads: it says something else', async (world) => {
      const [a, b] = electionsOf([await sessionOf(world)], nameIn(world, 'again'), 2)
      const watcher = new Observer(new Election(await sessionOf(world), a.prefix))
      await a.campaign('one')
      await watcher.sees('one')
      const { rev } = a
      await within('no deadlock', a.campaign('one'))
      if (traits.ownership) {
        await within('no deadlock', b.campaign('two'))
        await watcher.sees('two')
        assert.equal(b.rev, rev)
        await within('no deadlock', a.campaign('three'))
        await watcher.sees('three')
      }
      await watcher.stop()
      await a.resign()
      await assert.rejects(b.leader(), NoLeaderError)
    })

    test('are campaigned for again by who has resigned right before, and at once', async (world) => {
      const [a, b] = electionsOf([await sessionOf(world)], nameIn(world, 'quick'), 2)
      const other = new Election(await sessionOf(world), a.prefix)
      await a.campaign('a')
      for (let round = 0; round < 5; round++) {
        const resigned = a.resign()
        await within('it leads', Promise.all([resigned, b.campaign(`b${round}`)]))
        assert.deepEqual(shown(await other.leader()), [`b${round}`, b.key, b.rev])
        await within('it leads', Promise.all([b.resign(), a.campaign(`a${round}`)]))
        assert.deepEqual(shown(await other.leader()), [`a${round}`, a.key, a.rev])
      }
      // The same words in another term are news.
      const watcher = new Observer(other)
      for (let round = 0; round < 2; round++) {
        await a.resign()
        await a.campaign('same')
        const { rev } = a
        await eventually('the new term to be seen', () => watcher.leaders.at(-1)?.rev === rev)
      }
      await watcher.stop()
    })

    test('whose name begins with that of another do not disturb it', async (world) => {
      const [one, two] = await sessionsOf(world, 2)
      const names = ['test', 'testa', 'test/a', 'test/', 'tes']
      for (const name of names.slice(1)) await new Election(two!, nameIn(world, name)).campaign(name)
      const election = new Election(one!, nameIn(world, 'test'))
      await assert.rejects(election.leader(), NoLeaderError)
      const watcher = new Observer(new Election(two!, election.prefix))
      await within('it leads', election.campaign('own'))
      await watcher.sees('own')
      for (const name of names.slice(1)) await new Election(two!, nameIn(world, name)).resign()
      await sleep(20)
      assert.equal((await election.leader()).value, 'own')
      await watcher.stop()
      assert.deepEqual(watcher.values, ['own'])
    })

    test('are kept over who waits by a process that is started again on the old lease', async (world) => {
      const [a, b] = [await world.locks(), await world.locks()]
      const session = await a.session({ ttlMs: LONG_MS })
      const before = new Election(session, nameIn(world, 'restart'))
      await before.campaign('before')
      const { rev } = before
      const other = new Election(await sessionOf(world), before.prefix)
      const waiting = other.campaign('other')
      await session.orphan()
      const after = new Election(await b.session({ lease: session.lease }), before.prefix)
      await within('it leads', after.campaign(traits.ownership ? 'after' : 'before'))
      assert.equal(after.rev, rev)
      assert.equal((await other.leader()).value, traits.ownership ? 'after' : 'before')
      await stillWaits('the other', waiting)
      await after.resign()
      await within('the other', waiting)
    })

    test('are resumed by key and revision, and nothing else is disturbed by what is written beside', async (world) => {
      const [a, b] = [await world.locks(), await world.locks()]
      const session = await a.session({ ttlMs: LONG_MS })
      const first = new Election(session, nameIn(world, 'resumed'))
      await first.campaign('first')
      const { key, rev, prefix } = first
      const same = await Election.resume(session, prefix, key, rev)
      assert.deepEqual([same.rev, same.key], [rev, key])
      await session.orphan()
      const taken = await b.session({ lease: session.lease })
      const watcher = new Observer(first)
      await watcher.sees('first')
      const resumed = await Election.resume(taken, prefix, key, rev)
      assert.deepEqual([resumed.rev, resumed.key], [rev, key])
      if (traits.ownership) {
        await b.stm((tx) => tx.put(nameIn(world, 'unrelated'), 'x'))
        await resumed.proclaim('second')
        await watcher.sees('second')
      }
      const other = new Election(await sessionOf(world), prefix)
      const waiting = other.campaign('other')
      await resumed.resign()
      await within('another', waiting)
      await watcher.sees('other')
      await watcher.stop()
      assert.deepEqual(watcher.values, traits.ownership ? ['first', 'second', 'other'] : ['first', 'other'])
      // That leadership is over.
      await assert.rejects(Election.resume(taken, prefix, key, rev), NotLeaderError)
      await other.resign()
      await assert.rejects(Election.resume(taken, prefix, key, rev), NotLeaderError)
      await assert.rejects(Election.resume(other.session, prefix, key, rev), NotLeaderError)
      await assert.rejects(other.leader(), NoLeaderError)
    })

    test('that are cancelled, or end with their session, leave nobody in line', async (world) => {
      const locks = await world.locks()
      const [a, b, c] = electionsOf(await sessionsOf(world, 3), nameIn(world, 'cancelled'))
      await a.campaign('a')
      const controller = new AbortController()
      const reason = new Error('enough')
      const cancelled = rejection(b.campaign('b', { signal: controller.signal }))
      await queued(world, locks, 'cancelled', 1)
      controller.abort(reason)
      assert.equal(await within('the end of the wait', cancelled, 1_000), reason)
      const ended = rejection(c.campaign('c'))
      await queued(world, locks, 'cancelled', 1)
      await c.session.close()
      assert.ok((await within('the end of the wait', ended, 1_000)) instanceof SessionExpiredError)
      await queued(world, locks, 'cancelled', 0)
      await a.resign()
      await assert.rejects(a.leader(), NoLeaderError)
    })

    // etcd#21128: there a candidate whose campaign has failed leads all the same.
    if (traits.ownership) {
      test('in which a campaign fails have no leader that does not know it', async (world) => {
        let failures = 1
        const fail = async () => {
          if (failures-- > 0) throw new BackendError('The connection broke.', { transient: true })
        }
        const locks = await world.locks({}, (backend) => beforeItSpeaks(backend, fail))
        const election = new Election(await locks.session({ ttlMs: LONG_MS }), nameIn(world, 'fails'))
        await assert.rejects(election.campaign('a'), BackendError)
        assert.equal(election.rev, 0n)
        await assert.rejects(election.leader(), NoLeaderError)
        const other = new Election(await sessionOf(world), election.prefix)
        await within('another', other.campaign('b'))
        await other.resign()
        await within('it leads', election.campaign('c'))
        assert.equal((await other.leader()).value, 'c')
      })
    }

    // etcd#22123: there the leader forgets that it leads, and its key stays.
    test('whose leader could not resign are resigned from again', async (world) => {
      let failures = 1
      const locks = await world.locks({}, (backend) => ({
        release: async (claims) => {
          if (failures-- > 0) throw new BackendError('The connection broke.', { transient: true })
          return backend.release(claims)
        },
      }))
      const [a, b] = electionsOf([await locks.session({ ttlMs: LONG_MS }), await sessionOf(world)], nameIn(world, 'resign'))
      await a.campaign('a')
      const waiting = b.campaign('b')
      await assert.rejects(a.resign(), BackendError)
      await stillWaits('the other', waiting)
      await a.resign()
      await within('the other', waiting)
    })

    test('share what a session has with its mutexes', async (world) => {
      const [a, b] = await sessionsOf(world, 2)
      const election = new Election(a!, nameIn(world, 'shared'))
      await election.campaign('a')
      await assert.rejects(new Mutex(b!, election.prefix).tryLock(), LockedError)
      await within('the same session', new Mutex(a!, election.prefix).lock())
    })

    test('say what is wrong with what they are made of', async (world) => {
      const session = await sessionOf(world)
      const wrong = (...args: readonly unknown[]) => new Election(...(args as [Session, string]))
      assert.throws(() => wrong({}, 'x'), ConfigurationError)
      const election = wrong(session, nameIn(world, 'wrong'))
      await assert.rejects(election.campaign(5 as unknown as string), ConfigurationError)
      await assert.rejects(election.campaign('x'.repeat(3_000)), ConfigurationError)
      await assert.rejects(election.proclaim('x'), NotLeaderError)
      await assert.rejects(election.campaign('x', { wait: 5 } as object), ConfigurationError)
      await assert.rejects(Election.resume(session, election.prefix, 'elsewhere', 1n), ConfigurationError)
      await assert.rejects(Election.resume(session, election.prefix, election.key, 1 as unknown as bigint), ConfigurationError)
      await assert.rejects(election.leader(), NoLeaderError)
    })
  })
}
