/** Work that is done by whoever leads: elections that manage their sessions by themselves. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { BackendError, ConfigurationError, InvalidTtlError, NoLeaderError, SessionExpiredError } from '../../core/errors.js'
import type { LockManager } from '../../lock-manager.js'
import type { ElectionOptions, LeaderElection, Leadership } from '../../primitives/leadership.js'
import type { Suite } from '../conformance.js'
import { LONG_MS, type World } from '../harness.js'
import { dyingMs, eventually, Observer, rejection, stillWaits, within } from '../managers.js'

/** While it is told to end, and has not. */
const DRAINING_MS = 80

export function leaderships({ theme, test, traits }: Suite): void {
  theme('work of a leader', () => {
    test('is done by one process at a time, which has what it returned', async (world) => {
      const all = await Promise.all([electionIn(world), electionIn(world), electionIn(world)])
      let working = 0
      let last = 0n
      const results = await within('all of them', Promise.all(all.map((election, i) => election.onElected(async ({ fence, rev, signal }) => {
        assert.equal(++working, 1, 'one at a time')
        assert.ok(fence > last && rev > 0n)
        assert.equal(signal.aborted, false)
        last = fence
        await sleep(2)
        working--
        return i
      }))))
      assert.deepEqual(results, [0, 1, 2])
      await assert.rejects(all[0]!.leader(), NoLeaderError)
    })

    test('is done in turn if one process is a candidate twice', async (world) => {
      const election = await electionIn(world)
      let working = 0
      const work = async () => {
        assert.equal(++working, 1, 'one at a time')
        await sleep(5)
        working--
      }
      await within('both', Promise.all([election.onElected(work), election.onElected(work)]))
    })

    test('is announced, with the owner or another value', async (world) => {
      const locks = await world.locks()
      const election = locks.election('said', { ttlMs: LONG_MS })
      const watcher = new Observer(election)
      await election.onElected(async () => void (await watcher.sees(locks.owner)))
      await election.onElected(async (leadership) => {
        await watcher.sees('first')
        if (!traits.ownership) return
        await leadership.proclaim('second')
        await watcher.sees('second')
        assert.equal((await election.leader()).value, 'second')
      }, { value: 'first' })
      await watcher.stop()
    })

    test('passes its error on, and leadership with it', async (world) => {
      const [a, b] = [await electionIn(world), await electionIn(world)]
      const error = new Error('no good')
      await assert.rejects(a.onElected(() => {
        throw error
      }), error)
      assert.equal(await within('the next', b.onElected(() => 'done')), 'done')
    })

    // kubernetes#62120: there the next may begin before the last has ended.
    test('has ended when leadership is given up, also if it was told to end', async (world) => {
      for (const end of ['signal', 'close', 'dispose'] as const) {
        const [a, b] = [await electionIn(world, end), await electionIn(world, end)]
        const controller = new AbortController()
        const [began, hasBegun] = opened()
        let isOver = false
        const first = a.onElected(async ({ signal }) => {
          began()
          await aborted(signal)
          // It drains.
          await sleep(DRAINING_MS)
          isOver = true
          return 'drained'
        }, { signal: controller.signal })
        await within('it leads', hasBegun)
        const second = b.onElected(() => assert.ok(isOver, `${end}: the first is at work`))
        await stillWaits('the other', second)
        const ended = end === 'signal' ? controller.abort() : end === 'close' ? a.close() : a[Symbol.asyncDispose]()
        assert.equal(await within('its end', first), 'drained')
        await ended
        await within('the next', second)
      }
    })

    test('is told when leadership is lost, and is done again when it is won again', async (world) => {
      let isCut = false
      const cut = async () => {
        throw new BackendError('There is no connection.', { transient: true })
      }
      const locks = await world.locks({}, (backend) => ({ renew: (renewals) => (isCut ? cut() : backend.renew(renewals)) }))
      const election = locks.election('lost', { ttlMs: dyingMs(world) })
      const terms: Leadership[] = []
      const result = election.onElected(async (leadership) => {
        terms.push(leadership)
        if (terms.length > 1) return 'again'
        isCut = true
        await aborted(leadership.signal)
        assert.ok(leadership.signal.reason instanceof Error)
        isCut = false
        leadership.signal.throwIfAborted()
        return 'never'
      })
      assert.equal(await within('the second term', result), 'again')
      assert.ok(terms[1]!.fence > terms[0]!.fence)
      assert.ok(terms[1]!.rev > terms[0]!.rev)
    })

    // On etcd nobody can take away by its name what is not below the manager's prefix.
    if (traits.tellsExpiry) {
      test('that does not listen is done again, too, for it may not have been alone', async (world) => {
        const [a, b] = [await world.locks(), await world.locks()]
        let times = 0
        const election = a.election('deaf', { ttlMs: dyingMs(world) })
        const result = within('the second term', election.onElected(async ({ signal }) => {
          if (++times > 1) return times
          await freeNow(b, 'deaf')
          await aborted(signal)
          return 0
        }))
        assert.equal(await result, 2)
      })
    }

    test('is not begun if its candidate has left before', async (world) => {
      const [a, b] = [await electionIn(world), await electionIn(world)]
      const [end, hasEnded] = opened()
      const first = a.onElected(() => hasEnded)
      await eventually('it to lead', async () => (await a.leader().catch(() => undefined)) !== undefined)
      const controller = new AbortController()
      const reason = new Error('enough')
      const second = rejection(b.onElected(() => assert.fail('it does not lead'), { signal: controller.signal }))
      await stillWaits('the other', second)
      controller.abort(reason)
      assert.equal(await second, reason)
      await assert.rejects(b.onElected(() => assert.fail('it does not lead'), { signal: AbortSignal.abort(reason) }), reason)
      end()
      await first
      await assert.rejects(b.leader(), NoLeaderError)
    })

    test('is not begun any more when the election is closed, and who waits is told', async (world) => {
      const [a, b] = [await electionIn(world), await electionIn(world)]
      await a.campaign('a')
      const waiting = rejection(b.onElected(() => assert.fail('it does not lead')))
      await stillWaits('it', waiting)
      await b.close()
      assert.ok((await waiting) instanceof SessionExpiredError)
      await assert.rejects(b.onElected(() => assert.fail('it is closed')), SessionExpiredError)
      await b.close()
      await a.close()
      await assert.rejects(a.leader(), NoLeaderError)
    })

    test('ends with its manager', async (world) => {
      const locks = await world.locks()
      const [began, hasBegun] = opened()
      const result = locks.election('plain', { ttlMs: LONG_MS }).onElected(async ({ signal }) => {
        began()
        await aborted(signal)
        return 'told'
      })
      await within('it leads', hasBegun)
      await locks.close()
      assert.equal(await within('its end', result), 'told')
      assert.equal(await within('the next', (await electionIn(world)).onElected(() => 'next')), 'next')
    })

    test('is for those who campaign by themselves to begin and end', async (world) => {
      const [a, b] = [await electionIn(world), await electionIn(world)]
      await a.resign()
      const { signal, proclaim } = await a.campaign('a')
      assert.equal((await b.leader()).value, 'a')
      const waiting = b.campaign()
      await stillWaits('the other', waiting)
      if (traits.ownership) {
        await proclaim('more')
        assert.equal((await b.leader()).value, 'more')
      }
      await a.resign()
      await within('the other', waiting)
      assert.equal(signal.aborted, false)
      await b.close()
      await assert.rejects(a.leader(), NoLeaderError)
      await within('again', a.campaign('a'))
    })

    test('needs to be a function, and its options to be right', async (world) => {
      const locks = await world.locks()
      const election = locks.election('wrong')
      const wrong = (...args: readonly unknown[]) => election.onElected(...(args as Parameters<LeaderElection['onElected']>))
      await assert.rejects(wrong(), ConfigurationError)
      await assert.rejects(wrong(() => {}, { ttlMs: 5 }), ConfigurationError)
      await assert.rejects(wrong(() => {}, { value: 5 }), ConfigurationError)
      await assert.rejects(wrong(() => {}, { signal: {} }), ConfigurationError)
      assert.throws(() => locks.election('x', { ttl: 5 } as ElectionOptions), ConfigurationError)
      assert.throws(() => locks.election('x', { ttlMs: 5 }), InvalidTtlError)
      assert.throws(() => locks.election(''))
    })
  })
}

/** In a process of its own. */
async function electionIn(world: World, name = 'plain'): Promise<LeaderElection> {
  return (await world.locks()).election(name, { ttlMs: LONG_MS })
}

/** What opens a door, and who waits at it. */
function opened(): [open: () => void, isOpen: Promise<void>] {
  let open!: () => void
  const isOpen = new Promise<void>((resolve) => (open = resolve))
  return [open, isOpen]
}

function aborted(signal: AbortSignal): Promise<void> {
  return within('the signal', new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  }))
}

/** Takes it from whoever leads. */
async function freeNow(locks: LockManager, name: string): Promise<void> {
  const held: string[] = []
  for await (const { key, holders } of locks.inspect()) if (key.includes(`election/${name}`) && holders.length > 0) held.push(key)
  for (const key of held) await locks.forceRelease(key, { now: true })
  assert.equal(held.length, 1)
}
