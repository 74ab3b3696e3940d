/** A hold that nobody renews ends by itself. */
import assert from 'node:assert/strict'
import type { Claim } from '../../core/backend.js'
import type { Suite } from '../conformance.js'
import { inTheWay, LONG_MS, type Process, type World } from '../harness.js'

export function expiring({ theme, test }: Suite): void {
  theme('expiring', () => {
    test('frees a claim after its TTL', async (world) => {
      const [a, b] = await world.three()
      await a.hold(world.claim('key', { ttlMs: world.shortMs }))
      await world.pastExpiry()
      await b.hold(world.claim('key'), 'leave')
    })

    test('lets the next one in when it asks', async (world) => {
      const [a, b] = await world.three()
      const held = world.claim('key')
      const next = world.claim('key')
      const { epoch } = await a.hold(held)
      await b.queue(next)
      await world.letExpire(a, held)
      assert.ok((await b.hold(next)).epoch > epoch)
    })

    const steps: Record<string, (world: World, state: Expired) => Promise<void>> = {
      'a waiter behind it asks': async (_, { c, last }) => void await c.queue(last),
      'somebody tries': async (world, { c }) => void await c.refused(world.claim('key')),
      'somebody releases what is not theirs': async (world, { c }) => void await c.release(world.claim('key')),
      'the late holder renews': async (_, { a, held }) => assert.equal((await a.renew(held, LONG_MS)).status, 'lost'),
      'the late holder releases': async (_, { a, held }) => assert.equal(await a.release(held), 'not-held'),
      'a waiter behind it withdraws': async (_, { c, last }) => void await c.release(last),
    }
    for (const [name, step] of Object.entries(steps)) {
      test(`hands over to the first that waits when ${name}`, async (world) => {
        const state = await expired(world)
        await step(world, state)
        const { b, next } = state
        await b.granted(next)
        assert.equal(await b.release(next), 'released')
      })
    }

    test('does not free the new holder when the old one comes late', async (world) => {
      const [a, b, c] = await world.three()
      const old = world.claim('key')
      const held = world.claim('key')
      await a.hold(old)
      await world.letExpire(a, old)
      await b.hold(held)
      assert.equal(await a.release(old), 'not-held')
      assert.equal((await a.renew(old, LONG_MS)).status, 'lost')
      assert.deepEqual(inTheWay(await c.refused(world.claim('key'))), { owner: b.owner, ahead: 0, waiting: 0 })
      assert.equal((await b.renew(held, LONG_MS)).status, 'held')
    })

    test('gives an expired holder that asks again a new hold, behind those who wait', async (world) => {
      const [a, b] = await world.three()
      const old = world.claim('key')
      const next = world.claim('key')
      const first = await a.hold(old)
      await b.queue(next)
      await world.letExpire(a, old)
      assert.deepEqual(inTheWay(await a.queue(old)), { owner: b.owner, ahead: 0, waiting: 0 })
      const second = await b.granted(next)
      await b.release(next)
      const third = await a.granted(old)
      assert.ok(first.epoch < second.epoch && second.epoch < third.epoch)
    })

    test('ends a grant that its waiter never took up', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      await a.hold(held)
      await b.queue(world.claim('key', { ttlMs: world.shortMs }))
      const last = world.claim('key')
      await c.queue(last)
      await a.release(held)
      await world.pastExpiry()
      await c.hold(last)
    })

    test('keeps waiters for longer than their own TTL', async (world) => {
      const [a, b] = await world.three()
      const held = world.claim('key')
      const waiting = world.claim('key', { ttlMs: world.shortMs })
      await a.hold(held)
      await b.queue(waiting)
      await world.pastExpiry()
      assert.deepEqual(inTheWay(await a.refused(world.claim('key'))), { owner: a.owner, ahead: 1, waiting: 1 })
      await a.release(held)
      await b.granted(waiting)
    })
  })
}

interface Expired {
  readonly a: Process
  readonly b: Process
  readonly c: Process
  readonly held: Claim
  readonly next: Claim
  readonly last: Claim
}

/** `a` held until just now; `b` and `c` wait, in that order, and nobody has noticed. */
async function expired(world: World): Promise<Expired> {
  const [a, b, c] = await world.three()
  const [held, next, last] = [world.claim('key'), world.claim('key'), world.claim('key')]
  await a.hold(held)
  await b.queue(next)
  await c.queue(last)
  await world.letExpire(a, held)
  return { a, b, c, held, next, last }
}
