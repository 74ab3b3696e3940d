/** One step: held, queued, refused, and asked again. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { ConfigurationError } from '../../core/errors.js'
import type { Suite } from '../conformance.js'
import { assertBetween, expectStatus, inTheWay, LONG_MS } from '../harness.js'

export function claiming({ traits, theme, test }: Suite): void {
  theme('claiming', () => {
    test('declares the traits that are expected of it', async (world) => {
      const { backend } = await world.open()
      assert.deepEqual({ ...backend.traits }, { ...traits })
      assert.ok(backend.name.length > 0)
    })

    for (const ifBusy of ['queue', 'leave'] as const) {
      test(`grants what is free (${ifBusy})`, async (world) => {
        const a = await world.open()
        const state = await a.hold(world.claim('key'), ifBusy)
        assert.equal(typeof state.epoch, 'bigint')
        assert.ok(state.epoch > 0n)
        assert.equal(state.waiting, 0)
      })
    }

    test('refuses what is held, and says by whom, for how long and how many wait', async (world) => {
      const [a, b, c] = await world.three()
      const ttlMs = 30_000
      const asked = performance.now()
      const { epoch } = await a.hold(world.claim('key', { ttlMs }))
      const answered = performance.now()
      assert.deepEqual(inTheWay(await b.refused(world.claim('key'))), { owner: a.owner, ahead: 0, waiting: 0 })

      await b.queue(world.claim('key'))
      await sleep(60)
      const from = performance.now()
      const state = await c.refused(world.claim('key'))
      const to = performance.now()
      assert.deepEqual(inTheWay(state), { owner: a.owner, ahead: 1, waiting: 1 })
      assert.equal(state.holder?.epoch, epoch)
      // The grant was somewhere between `asked` and `answered`, and the look at it between `from` and `to`.
      assertBetween(state.holder?.heldForMs, from - answered, to - asked)
      assertBetween(state.holder?.expiresInMs, ttlMs - (to - asked), traits.tellsExpiry ? ttlMs - (from - answered) : ttlMs)
    })

    test('queues behind a holder, and says who, how many are ahead and in all', async (world) => {
      const [a, b, c] = await world.three()
      await a.hold(world.claim('key'))
      const first = world.claim('key')
      const second = world.claim('key')
      const state = await b.queue(first)
      assert.deepEqual(inTheWay(state), { owner: a.owner, ahead: 0, waiting: 0 })
      assert.ok(state.place.length > 0)
      assertBetween(state.holder?.expiresInMs, 1, LONG_MS)
      assert.deepEqual(inTheWay(await c.queue(second)), { owner: a.owner, ahead: 1, waiting: 1 })
      assert.deepEqual(inTheWay(await b.queue(first)), { owner: a.owner, ahead: 0, waiting: 1 })
    })

    test('leaves no trace of a claim that would not wait', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      await a.hold(held)
      await b.refused(world.claim('key'))
      assert.deepEqual(inTheWay(await c.refused(world.claim('key'))), { owner: a.owner, ahead: 0, waiting: 0 })
      assert.equal(await a.release(held), 'released')
      await c.hold(world.claim('key'), 'leave')
    })

    test('leaves no trace of one that waited and then would not any more', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const impatient = world.claim('key')
      const patient = world.claim('key')
      await a.hold(held)
      await b.queue(impatient)
      await c.queue(patient)
      await b.refused(impatient)
      assert.deepEqual(inTheWay(await c.queue(patient)), { owner: a.owner, ahead: 0, waiting: 0 })
      await a.release(held)
      await c.granted(patient)
    })

    test('does not let a claim that would not wait jump the queue', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const waiting = world.claim('key')
      await a.hold(held)
      await b.queue(waiting)
      await a.release(held)
      assert.equal((await c.refused(world.claim('key'))).holder?.owner, b.owner)
      await b.granted(waiting)
    })

    test('answers the same when a holder asks again', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      const { epoch } = await a.hold(claim)
      for (const ifBusy of ['queue', 'leave', 'queue'] as const) assert.equal((await a.hold(claim, ifBusy)).epoch, epoch)
      assert.deepEqual(inTheWay(await b.refused(world.claim('key'))), { owner: a.owner, ahead: 0, waiting: 0 })
      assert.equal(await a.release(claim), 'released')
      await b.hold(world.claim('key'))
    })

    test('answers the same when a waiter asks again, which keeps its place', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const first = world.claim('key')
      await a.hold(held)
      const { place } = await b.queue(first)
      await c.queue(world.claim('key'))
      for (let i = 0; i < 3; i++) {
        const state = await b.queue(first)
        assert.equal(state.place, place)
        assert.deepEqual(inTheWay(state), { owner: a.owner, ahead: 0, waiting: 1 })
      }
      // A reply that was lost on the way: asked again without knowing the place.
      const { place: _, ...forgetful } = first
      assert.equal((await b.queue(forgetful)).place, place)
      assert.equal((await a.hold(held)).waiting, 2)
    })

    test('gives a holder its full TTL again when it asks again', async (world) => {
      const [a, b] = await world.three()
      const ttlMs = 30_000
      const claim = world.claim('key', { ttlMs })
      await a.hold(claim)
      await a.renew(claim, 5_000, true)
      const asked = performance.now()
      await a.hold(claim)
      const { holder } = await b.refused(world.claim('key'))
      assertBetween(holder?.expiresInMs, ttlMs - (performance.now() - asked), ttlMs)
    })

    test('fails a claim of more than there is, and nothing else', async (world) => {
      const a = await world.open()
      const { error } = expectStatus(await a.ask(world.claim('key', { take: 2 }), 'queue'), 'failed')
      assert.ok(error instanceof ConfigurationError, `not a ConfigurationError: ${error}`)
      await a.hold(world.claim('key'))
    })

    test('never lets two hold at once, however many race', async (world) => {
      const processes = await world.three()
      let inside = 0
      let last = 0n
      await Promise.all(processes.flatMap((one) => [1, 2, 3].map(async () => {
        for (let i = 0; i < 5; i++) {
          const claim = world.claim('key')
          const state = await one.ask(claim, 'queue')
          const { epoch } = state.status === 'held' ? state : await one.granted(claim)
          inside += 1
          assert.equal(inside, 1, 'two hold at once')
          assert.ok(epoch > last, `epoch ${epoch} after ${last}`)
          last = epoch
          await sleep(0)
          inside -= 1
          assert.equal(await one.release(claim), 'released')
        }
      })))
    })
  })
}
