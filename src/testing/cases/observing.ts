/** What leaders say, and those who observe them: each leader in turn, and nothing is taken back. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { ConfigurationError, NotLeaderError } from '../../core/errors.js'
import type { LockManager } from '../../lock-manager.js'
import { Election } from '../../primitives/election.js'
import type { Suite } from '../conformance.js'
import { LONG_MS, type World } from '../harness.js'
import { beforeItSpeaks, electionsOf, eventually, nameIn, Observer, rejection, sessionOf, sessionsOf, shown, within } from '../managers.js'

const ODD_VALUES = ['', ' ', 'ключ 🔑', `"quotes", 'and' \\`, 'a\0b', '{"v":1}', 'line\nline', 'x'.repeat(2_900)]

export function observing({ theme, test, traits }: Suite): void {
  theme('observed elections', () => {
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

/** Takes it from whoever has it, who may not know. (etcd's own lines have no `/` at their end.) */
async function freeNow(world: World, locks: LockManager, name: string): Promise<void> {
  const freed = [await locks.forceRelease(name, { now: true }), await locks.forceRelease(`${nameIn(world, name)}/`, { now: true })]
  assert.equal(freed.filter(Boolean).length, 1)
}
