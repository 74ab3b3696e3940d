/** Elections among sessions: what etcd's client for Go promises of them, and what it does not. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Backend } from '../../core/backend.js'
import { BackendError, ConfigurationError, LockedError, NoLeaderError, NotLeaderError, SessionExpiredError } from '../../core/errors.js'
import type { LockManager } from '../../lock-manager.js'
import { Election } from '../../primitives/election.js'
import { Mutex } from '../../primitives/mutex.js'
import type { Session } from '../../primitives/session.js'
import type { Suite } from '../conformance.js'
import { LONG_MS, type World } from '../harness.js'
import { dyingSession, eventually, nameIn, Observer, queued, rejection, sessionOf, sessionsOf, stillWaits, within } from '../managers.js'

const ODD_VALUES = ['', ' ', 'ключ 🔑', `"quotes", 'and' \\`, 'a\0b', '{"v":1}', 'line\nline', 'x'.repeat(2_900)]

export function elections({ theme, test, traits }: Suite): void {
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

    test('are observed by three, who see each of three leaders in turn', async (world) => {
      const prefix = nameIn(world, 'seen')
      const watchers = electionsOf(await sessionsOf(world, 3), prefix).map((election) => new Observer(election))
      const leaders = electionsOf(await sessionsOf(world, 3), prefix)
      for (const [i, election] of leaders.entries()) {
        await election.campaign(`leader ${i}`)
        const { rev, key } = election
        for (const watcher of watchers) assert.deepEqual(shown(await watcher.sees(`leader ${i}`)), [`leader ${i}`, key, rev])
        await election.resign()
      }
      for (const watcher of watchers) {
        await watcher.stop()
        assert.deepEqual(watcher.values, ['leader 0', 'leader 1', 'leader 2'])
        watcher.assertInOrder()
      }
    })

    // Where there is nothing but the claim of the leader, it says so only for as long as it leads.
    if (traits.ownership) {
      test('are observed without missing a leader, or what it says', async (world) => {
        const prefix = nameIn(world, 'every')
        const [first, second] = electionsOf(await sessionsOf(world, 2), prefix)
        await first.campaign('begin')
        const watcher = new Observer(new Election(await sessionOf(world), prefix))
        await watcher.sees('begin')
        await first.resign()
        const said = ['begin']
        for (let i = 0; i < 6; i++) {
          const election = i % 2 === 0 ? second : first
          await election.campaign(`c${i}`)
          await election.proclaim(`p${i}`)
          await election.resign()
          said.push(`c${i}`, `p${i}`)
        }
        await watcher.sees('p5')
        await watcher.stop()
        assert.deepEqual(watcher.values, said)
        watcher.assertInOrder()
      })

      test('whose leader says something else are seen to, in the order in which it was said', async (world) => {
        const [a, b] = electionsOf(await sessionsOf(world, 2), nameIn(world, 'says'))
        const watcher = new Observer(b)
        await a.campaign('a')
        const { rev } = a
        await watcher.sees('a')
        for (const value of ['b', 'c', 'c', 'd']) {
          await a.proclaim(value)
          assert.equal((await b.leader()).value, value)
        }
        assert.equal((await watcher.sees('d')).rev, rev)
        await watcher.stop()
        assert.deepEqual(watcher.values, ['a', 'b', 'c', 'd'])
        watcher.assertInOrder()
        await a.resign()
        await assert.rejects(a.proclaim('e'), NotLeaderError)
      })

      test('whose leader says several things at once end with one of them', async (world) => {
        const [a, b] = electionsOf(await sessionsOf(world, 2), nameIn(world, 'at once'))
        await a.campaign('a')
        const watcher = new Observer(b)
        await watcher.sees('a')
        await Promise.all(['b', 'c', 'd'].map((value) => a.proclaim(value)))
        const { value } = await b.leader()
        await watcher.sees(value)
        await a.proclaim('last')
        await watcher.sees('last')
        await watcher.stop()
        watcher.assertInOrder()
        assert.deepEqual(new Set(watcher.values), new Set(['a', 'b', 'c', 'd', 'last']))
        assert.equal(watcher.values.length, 5)
      })

      test('carry every value as it is', async (world) => {
        const [a, b] = electionsOf(await sessionsOf(world, 2), nameIn(world, 'odd'))
        for (const [i, value] of ODD_VALUES.entries()) {
          if (i % 2 === 0) await a.campaign(value)
          else await a.proclaim(value)
          assert.equal((await b.leader()).value, value)
        }
      })

      // Until stores look at `holds`, a leader that was deposed while it spoke has the last word.
      test('whose leader was deposed while it spoke do not hear it any more', async (world) => {
        const other = await world.locks()
        const next = new Election(await other.session({ ttlMs: LONG_MS }), nameIn(world, 'deposed'))
        let depose: (() => Promise<unknown>) | undefined
        const late = async () => {
          const now = depose
          depose = undefined
          await now?.()
        }
        const locks = await world.locks({}, (backend) => beforeItSpeaks(backend, late))
        const old = new Election(await locks.session({ ttlMs: LONG_MS }), next.prefix)
        await old.campaign('old')
        const watcher = new Observer(next)
        await watcher.sees('old')
        depose = async () => {
          await freeNow(world, other, 'deposed')
          await within('the next', next.campaign('new'))
        }
        assert.ok((await rejection(old.proclaim('too late'))) instanceof NotLeaderError)
        assert.ok(old.signal.aborted)
        await next.proclaim('newer')
        await watcher.sees('newer')
        await watcher.stop()
        assert.deepEqual(watcher.values, ['old', 'new', 'newer'])
        watcher.assertInOrder()
      })
    } else {
      test('cannot say anything else, and say so', async (world) => {
        const a = new Election(await sessionOf(world), nameIn(world, 'silent'))
        await a.campaign('a')
        await assert.rejects(a.proclaim('b'), ConfigurationError)
        assert.equal((await a.leader()).value, 'a')
        assert.equal(a.signal.aborted, false)
      })
    }

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

    test('are observed until the signal aborts, or the manager closes', async (world) => {
      const locks = await world.locks()
      const election = new Election(await locks.session({ ttlMs: LONG_MS }), nameIn(world, 'until'))
      const nobody = new Observer(election)
      await sleep(20)
      await nobody.stop()
      assert.deepEqual(nobody.values, [])
      await election.campaign('a')
      const watcher = new Observer(election)
      const idle = new Observer(new Election(election.session, nameIn(world, 'idle')))
      await watcher.sees('a')
      await watcher.stop()
      for await (const leader of election.observe({ signal: AbortSignal.abort() })) assert.fail(`it has ended, and sees ${leader.value}`)
      const last = new Observer(election)
      await last.sees('a')
      await locks.close()
      await within('the end of it', Promise.all([last.ended, idle.ended]))
    })

    test('are observed no more by who has left the loop', async (world) => {
      let asked = 0
      const locks = await world.locks({}, (backend) => backend.board ? {} : {
        inspect: (prefix) => (asked++, backend.inspect(prefix)),
        ...(backend.store && {
          store: {
            read: (keys, at) => (asked++, backend.store!.read(keys, at)),
            commit: (commit) => backend.store!.commit(commit),
          },
        }),
      })
      const election = new Election(await locks.session({ ttlMs: LONG_MS }), nameIn(world, 'break'))
      await election.campaign('a')
      const seen: string[] = []
      for await (const { value } of election.observe()) {
        seen.push(value)
        break
      }
      assert.deepEqual(seen, ['a'])
      const before = asked
      await sleep(250)
      assert.equal(asked, before, 'nobody looks any more')
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

    test('are observed from the end to the end, while leaders come and go: stress', async (world) => {
      const prefix = nameIn(world, 'stress')
      const candidates = electionsOf(await sessionsOf(world, 3), prefix)
      const watchers = electionsOf(await sessionsOf(world, 2), prefix).map((election) => new Observer(election))
      const revs: bigint[] = []
      await within('all of them', Promise.all(candidates.map(async (election, i) => {
        for (let round = 0; round < 8; round++) {
          await election.campaign(`${i} ${round}`)
          revs.push(election.rev)
          await election.resign()
        }
      })))
      const [last] = candidates
      await last.campaign('last')
      for (const watcher of watchers) {
        await watcher.sees('last')
        await watcher.stop()
        watcher.assertInOrder()
      }
      assert.deepEqual(revs, [...revs].sort((x, y) => (x < y ? -1 : 1)))
      assert.equal(new Set(revs).size, 24)
      await eventually('nobody to be left in line', async () => (await last.leader()).value === 'last')
    })
  })
}

function electionsOf(sessions: readonly Session[], prefix: string, count = sessions.length): [Election, Election, Election, ...Election[]] {
  const all = Array.from({ length: count }, (_, i) => new Election(sessions[i % sessions.length]!, prefix))
  return all as [Election, Election, Election, ...Election[]]
}

function shown({ value, key, rev }: { readonly value: string; readonly key: string; readonly rev: bigint }): unknown[] {
  return [value, key, rev]
}

/** Something that happens before what a leader says reaches the store. */
function beforeItSpeaks({ board, store }: Backend, happens: () => Promise<void>): Partial<Backend> {
  if (board) {
    return {
      board: {
        announce: async (...args) => (await happens(), board.announce(...args)),
        proclaim: async (...args) => (await happens(), board.proclaim(...args)),
        leader: (resource) => board.leader(resource),
        observe: (resource, signal) => board.observe(resource, signal),
      },
    }
  }
  return { store: { read: (keys, at) => store!.read(keys, at), commit: async (commit) => (await happens(), store!.commit(commit)) } }
}

/** Takes it from whoever has it, who may not know. (etcd's own lines have no `/` at their end.) */
async function freeNow(world: World, locks: LockManager, name: string): Promise<void> {
  const freed = [await locks.forceRelease(name, { now: true }), await locks.forceRelease(`${nameIn(world, name)}/`, { now: true })]
  assert.equal(freed.filter(Boolean).length, 1)
}
