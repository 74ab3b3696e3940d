/** Commits that rest on claims: written only if these hold at that very moment. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Claim, Commit, CommitState, Held } from '../../core/backend.js'
import { ConfigurationError } from '../../core/errors.js'
import type { Suite } from '../conformance.js'
import { expectStatus, LONG_MS, type Process, type World } from '../harness.js'
import { ODD_KEYS } from './keys.js'
import { committed, keysOf, now, shown, storeOf, text } from './storing.js'

export function owning(suite: Suite): void {
  const { theme, test, traits } = suite
  if (!traits.transactions) return
  theme('commits that rest on claims', () => {
    if (!traits.ownership) {
      test('are refused where that cannot be had, and write nothing', async (world) => {
        const a = await world.open()
        const [x] = keysOf(world, 'x')
        const held = await hold(a, world.claim('key'))
        await assert.rejects(commit(a, { holds: [held], puts: [text(x, 'no')] }), ConfigurationError)
        assert.deepEqual((await now(storeOf(a), x)).values, [undefined])
        await committed(storeOf(a), { holds: [], puts: [text(x, 'yes')] })
      })
      return
    }
    holding(suite)
    notHolding(suite)
    several(suite)
    racing(suite)
  })
}

function holding({ test, traits }: Suite): void {
  test('are written while these hold', async (world) => {
    const [a, b] = await world.three()
    const [x] = keysOf(world, 'x')
    const held = await hold(a, world.claim('key'))
    await b.queue(world.claim('key'))
    const first = await committed(storeOf(a), { holds: [held], puts: [text(x, '1')] })
    const second = await committed(storeOf(a), { holds: [held], puts: [text(x, '2')] })
    assert.ok(second > first)
    assert.deepEqual(shown(await now(storeOf(b), x)), [['2', second]])
    await committed(storeOf(a), { holds: [held], deletes: [x] })
    assert.deepEqual((await now(storeOf(b), x)).values, [undefined])
  })

  test('are written by one that has waited, and by one that has taken over', async (world) => {
    const [a, b, c] = await world.three()
    const [x] = keysOf(world, 'x')
    const [first, next, taken] = [world.claim('key'), world.claim('key'), world.claim('key')]
    await a.hold(first)
    await b.queue(next)
    await a.release(first)
    await b.granted(next)
    // As whoever hears of a grant does: a store may have given it for a short while only.
    const { epoch } = await b.hold(next)
    await committed(storeOf(b), { holds: [{ claim: next, epoch }], puts: [text(x, 'b')] })
    assert.equal(await c.takeOver(taken, next, b), 'held')
    await committed(storeOf(c), { holds: [{ claim: taken, epoch }], puts: [text(x, 'c')] })
    expectStatus(await commit(b, { holds: [{ claim: next, epoch }], puts: [text(x, 'no')] }), 'not-held')
    assert.equal(await value(c, x), 'c')
  })

  test('are written while they are renewed, for longer or shorter', async (world) => {
    const a = await world.open()
    const [x] = keysOf(world, 'x')
    const held = await hold(a, world.claim('key'))
    for (const ttlMs of [30_000, 40_000, 20_000, 50_000]) {
      const [state, renewed] = await Promise.all([commit(a, { holds: [held], puts: [text(x, String(ttlMs))] }), a.renew(held.claim, ttlMs, true)])
      assert.deepEqual([state.status, renewed.status], ['committed', 'held'])
      await committed(storeOf(a), { holds: [held], puts: [text(x, 'after')] })
    }
  })

  test('rest on locks with odd keys', async (world) => {
    const a = await world.open()
    const [x] = keysOf(world, 'x')
    for (const key of ODD_KEYS) {
      const held = await hold(a, world.claim(key))
      expectStatus(await commit(a, { holds: [held], puts: [text(x, key)] }), 'committed')
      await a.release(held.claim)
      expectStatus(await commit(a, { holds: [held], puts: [text(x, 'no')] }), 'not-held')
    }
    assert.equal(await value(a, x), ODD_KEYS.at(-1))
  })

  test('compare as well, and say what is there only if these hold', async (world) => {
    const [a, b] = await world.three()
    const [x] = keysOf(world, 'x')
    const held = await hold(a, world.claim('key'))
    const one = await committed(storeOf(b), { puts: [text(x, '1')] })
    const at = (revision: bigint): Partial<Commit> => ({ holds: [held], comparisons: [{ key: x, is: 'equal', revision }], reads: [x] })
    const conflict = expectStatus(await commit(a, { ...at(0n), puts: [text(x, 'no')] }), 'conflict')
    assert.deepEqual(shown(conflict), [['1', one]])
    expectStatus(await commit(a, at(one)), 'committed')
    const two = await committed(storeOf(a), { ...at(one), puts: [text(x, '2')] })
    await a.release(held.claim)
    for (const revision of [one, two]) {
      expectStatus(await commit(a, { ...at(revision), puts: [text(x, 'no')] }), 'not-held')
      expectStatus(await commit(a, at(revision)), 'not-held')
    }
    assert.deepEqual(shown(await now(storeOf(b), x)), [['2', two]])
  })

  if (traits.counted) {
    test('rest on permits of a semaphore', async (world) => {
      const [a, b] = await world.three()
      const [x] = keysOf(world, 'x')
      const permit = (settings?: Partial<Claim>) => world.claim('key', { limit: 2, ...settings })
      const [one, two] = [await hold(a, permit()), await hold(b, permit())]
      const waiting = permit()
      const { place } = await a.queue(waiting)
      await committed(storeOf(a), { holds: [one], puts: [text(x, 'one')] })
      await committed(storeOf(b), { holds: [two], puts: [text(x, 'two')] })
      expectStatus(await commit(a, { holds: [{ claim: waiting, epoch: BigInt(place) }], puts: [text(x, 'no')] }), 'not-held')
      await world.letExpire(b, two.claim)
      expectStatus(await commit(b, { holds: [two], puts: [text(x, 'no')] }), 'not-held')
      await a.revoke('key', 'told')
      expectStatus(await commit(a, { holds: [one], puts: [text(x, 'no')] }), 'not-held')
      assert.equal(await value(a, x), 'two')
    })
  }
}

/** How a claim comes to hold no more, or not yet. */
const NOT_HELD: Record<string, (world: World, us: Process, other: Process) => Promise<Held | readonly Held[]>> = {
  'was never asked for': async (world) => ({ claim: world.claim('key'), epoch: 1n }),
  waits: async (world, us, other) => {
    const { epoch } = await other.hold(world.claim('key'))
    const claim = world.claim('key')
    const { place } = await us.queue(claim)
    return [epoch, BigInt(place), epoch + 1n].map((one) => ({ claim, epoch: one }))
  },
  'holds under another epoch': async (world, us) => {
    const { claim, epoch } = await hold(us, world.claim('key'))
    return [0n, epoch - 1n, epoch + 1n].map((one) => ({ claim, epoch: one }))
  },
  'was released': async (world, us) => {
    const held = await hold(us, world.claim('key'))
    await us.release(held.claim)
    return held
  },
  'has expired': async (world, us) => {
    const held = await hold(us, world.claim('key'))
    await world.letExpire(us, held.claim)
    return held
  },
  'has expired, and another holds': async (world, us, other) => {
    const held = await hold(us, world.claim('key'))
    await world.letExpire(us, held.claim)
    const { epoch } = await other.hold(world.claim('key'))
    return [held, { claim: held.claim, epoch }]
  },
  'was asked for again, under a new epoch': async (world, us) => {
    const held = await hold(us, world.claim('key'))
    await us.release(held.claim)
    await us.hold(held.claim)
    return held
  },
  'was revoked, and is to let go': async (world, us, other) => {
    const held = await hold(us, world.claim('key'))
    assert.equal(await other.revoke('key', 'told'), 'told')
    return held
  },
  'was revoked, and has let go': async (world, us, other) => {
    const held = await hold(us, world.claim('key'))
    await other.revoke('key', 'told')
    await us.release(held.claim)
    return held
  },
  'was revoked at once': async (world, us, other) => {
    const held = await hold(us, world.claim('key'))
    assert.equal(await other.revoke('key', 'now'), 'freed')
    return held
  },
  'was taken over by another': async (world, us, other) => {
    const held = await hold(us, world.claim('key'))
    assert.equal(await other.takeOver(world.claim('key'), held.claim, us), 'held')
    return held
  },
  'is another process’s': (world, _, other) => hold(other, world.claim('key')),
}

function notHolding({ test }: Suite): void {
  for (const [name, end] of Object.entries(NOT_HELD)) {
    test(`write nothing if a claim ${name}`, async (world) => {
      const [us, other] = await world.three()
      const [x, y] = keysOf(world, 'x', 'y')
      const before = await committed(storeOf(us), { puts: [text(x, '1')] })
      const ended = await end(world, us, other)
      for (const held of [ended].flat()) {
        for (const puts of [[text(x, 'no'), text(y, 'no')], []]) {
          const { claim } = expectStatus(await commit(us, { holds: [held], puts, reads: [x] }), 'not-held')
          assert.equal(claim.id, held.claim.id)
        }
        expectStatus(await commit(us, { holds: [held], deletes: [x] }), 'not-held')
      }
      assert.deepEqual(shown(await now(storeOf(us), x, y)), [['1', before], undefined])
    })
  }
}

function several({ test }: Suite): void {
  test('rest on several claims, and name one that does not hold', async (world) => {
    const [a, b] = await world.three()
    const [x] = keysOf(world, 'x')
    const holds: Held[] = []
    for (const key of ['m', 'z', 'a', 'é']) holds.push(await hold(a, world.claim(key)))
    await committed(storeOf(a), { holds, puts: [text(x, '1')] })
    await committed(storeOf(a), { holds: holds.slice(0, 2), puts: [text(x, '2')] })
    for (const ended of holds) {
      await b.revoke(ended.claim.resource, 'now')
      const { claim } = expectStatus(await commit(a, { holds, puts: [text(x, 'no')] }), 'not-held')
      assert.equal(claim.id, ended.claim.id)
      // And what is left does.
      holds[holds.indexOf(ended)] = await hold(a, world.claim(ended.claim.resource))
      await committed(storeOf(a), { holds, puts: [text(x, 'again')] })
    }
  })

  test('are not in each other’s way, nor in that of those who claim and renew, in whatever order', async (world) => {
    const [a, b, c] = await world.three()
    const [x] = keysOf(world, 'x')
    const resources = ['m', 'z', 'a', 'k']
    const holds = await Promise.all(resources.map((key) => hold(a, world.claim(key))))
    const work = async (i: number) => {
      const some = i % 2 === 0 ? holds : holds.toReversed()
      await committed(storeOf(a), { holds: some, puts: [text(x, String(i))] })
      const states = await a.backend.renew(some.map(({ claim }) => ({ claim, ttlMs: LONG_MS, exact: false })))
      assert.ok(states.every(({ status }) => status === 'held'))
      const busy = await (i % 3 === 0 ? b : c).backend.claim(resources.toReversed().map((key) => world.claim(key)), 'leave')
      assert.ok(busy.every(({ status }) => status === 'refused'))
    }
    await Promise.all(Array.from({ length: 12 }, (_, i) => work(i)))
  })
}

function racing({ test }: Suite): void {
  /**
   * One after the other, each on the strength of the one before, until it does not hold any more. Only who holds writes: so none is ever
   * in conflict, unless one of the last holder's has come after the next had it.
   */
  const write = async (process: Process, key: string, held: Held, pauseMs: number): Promise<number> => {
    let { revision } = (await now(storeOf(process), key)).values[0] ?? { revision: 0n }
    for (let writes = 0; ; writes++) {
      const comparisons = [{ key, is: 'equal', revision } as const]
      const state = await commit(process, { holds: [held], comparisons, puts: [text(key, String(held.epoch))] })
      if (state.status === 'not-held') return writes
      ;({ revision } = expectStatus(state, 'committed'))
      await sleep(pauseMs)
    }
  }

  test('are alone with what they write until they are robbed', async (world) => {
    const processes = await world.three()
    const thief = await world.open()
    const [x] = keysOf(world, 'x')
    let isOver = false
    const robbing = async () => {
      while (!isOver) {
        await sleep(Math.random() * 10)
        await thief.revoke('key', 'now')
      }
    }
    const contend = async (process: Process) => {
      for (let round = 0; round < 4; round++) await write(process, x, await hold(process, world.claim('key'), 20_000), 0)
    }
    const over = Promise.all(processes.map(contend)).finally(() => (isOver = true))
    await Promise.all([robbing(), over])
  })

  test('are alone with what they write until they expire', async (world) => {
    const processes = await world.three()
    const [x] = keysOf(world, 'x')
    const contend = async (process: Process) => {
      // On a machine that stalls it may be over before anything is written; then it is claimed once more.
      let writes: number
      do {
        writes = await write(process, x, await hold(process, world.claim('key', { ttlMs: world.shortMs }), 20_000), 1)
      } while (writes === 0)
    }
    await Promise.all(processes.map(contend))
  })
}

async function hold(process: Process, claim: Claim, patienceMs?: number): Promise<Held> {
  const { epoch } = patienceMs === undefined ? await process.hold(claim) : await process.heldByAsking(claim, patienceMs)
  return { claim, epoch }
}

function commit(process: Process, asked: Partial<Commit>): Promise<CommitState> {
  return storeOf(process).commit({ comparisons: [], puts: [], deletes: [], reads: [], ...asked })
}

async function value(process: Process, key: string): Promise<string | undefined> {
  return shown(await now(storeOf(process), key))[0]?.[0]
}
