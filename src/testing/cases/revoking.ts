/** Taking a resource away: told (it blocks until the holder lets go, or expires) or now. */
import assert from 'node:assert/strict'
import type { Claim } from '../../core/backend.js'
import type { Suite } from '../conformance.js'
import { LONG_MS, type Process } from '../harness.js'

export function revoking({ traits, theme, test }: Suite): void {
  theme('revoking', () => {
    for (const when of ['told', 'now'] as const) {
      test(`says free where nobody holds (${when})`, async (world) => {
        const [a, b] = await world.three()
        assert.equal(await a.revoke('key', when), 'free')
        const claim = world.claim('key')
        await b.hold(claim)
        await b.release(claim)
        assert.equal(await a.revoke('key', when), 'free')
        await world.letExpire(b, await held(b, world.claim('key')))
        assert.equal(await a.revoke('key', when), 'free')
        await b.hold(world.claim('key'), 'leave')
      })
    }

    test('told: the holder hears of it, and cannot renew any more', async (world) => {
      const [a, b] = await world.three()
      const claim = await held(a, world.claim('key'))
      assert.equal(await b.revoke('key', 'told'), 'told')
      await a.revoked(claim)
      assert.equal((await a.renew(claim, LONG_MS)).status, 'revoked')
      assert.equal((await a.renew(claim, LONG_MS, true)).status, 'revoked')
    })

    test('told: it stays in the way until it is released', async (world) => {
      const [a, b, c] = await world.three()
      const claim = await held(a, world.claim('key'))
      const next = world.claim('key')
      await b.queue(next)
      assert.equal(await c.revoke('key', 'told'), 'told')
      await a.revoked(claim)
      await c.refused(world.claim('key'))
      await b.queue(next)
      await a.release(claim)
      await b.granted(next)
    })

    test('told: it stays in the way until it expires', async (world) => {
      const [a, b, c] = await world.three()
      const claim = world.claim('key', { ttlMs: world.shortMs })
      // On a machine that stalls it may be over before it is revoked; then it is claimed once more.
      for (let tries = 0; ; tries++) {
        await a.ask(claim, 'leave')
        if (await c.revoke('key', 'told') === 'told') break
        assert.ok(tries < 20, 'told is never said')
      }
      await world.pastExpiry()
      assert.equal((await a.renew(claim, LONG_MS)).status, 'lost')
      await b.hold(world.claim('key'), 'leave')
    })

    test('told: asked again it says so, stays in the way, and can be claimed anew once it is released', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      const first = await a.hold(claim)
      await b.revoke('key', 'told')
      for (const ifBusy of ['leave', 'queue'] as const) {
        assert.equal((await a.ask(claim, ifBusy)).status, 'revoked')
        assert.equal((await a.renew(claim, LONG_MS)).status, 'revoked')
      }
      await b.refused(world.claim('key'))
      await a.release(claim)
      const again = await a.hold(claim)
      assert.ok(again.epoch > first.epoch)
      assert.equal((await a.renew(claim, LONG_MS)).status, 'held')
    })

    test('told, but a listener hears of it by a wake-up', async (world) => {
      const [a, b] = await world.three()
      const claim = await held(a, world.claim('key'))
      const next = world.claim('key')
      await b.queue(next)
      await a.release(claim)
      await b.granted(next)
      await a.revoke('key', 'told')
      if (traits.wakes === 'push') await b.toldOf(next, 'revoked')
    })

    test('told: cannot be taken over; and whoever took a claim over before is told of it', async (world) => {
      const [a, b, c] = await world.three()
      const claim = await held(a, world.claim('key'))
      const taken = world.claim('key')
      assert.equal(await b.takeOver(taken, claim, a), 'held')
      await c.revoke('key', 'told')
      await b.revoked(taken)
      assert.equal(await c.takeOver(world.claim('key'), taken, b), 'revoked')
      assert.equal(a.told(claim, 'revoked').length, 0)
      await b.release(taken)
      await c.hold(world.claim('key'))
    })

    test('told twice, then now', async (world) => {
      const [a, b, c] = await world.three()
      const claim = await held(a, world.claim('key'))
      assert.equal(await b.revoke('key', 'told'), 'told')
      assert.equal(await c.revoke('key', 'told'), 'told')
      await c.refused(world.claim('key'))
      assert.equal(await b.revoke('key', 'now'), 'freed')
      assert.equal(await b.revoke('key', 'now'), 'free')
      assert.equal((await a.renew(claim, LONG_MS)).status, 'lost')
      await c.hold(world.claim('key'), 'leave')
    })

    test('told: does not touch those who wait, or come after', async (world) => {
      const [a, b] = await world.three()
      const claim = await held(a, world.claim('key'))
      const next = world.claim('key')
      await b.queue(next)
      await a.revoke('key', 'told')
      await a.release(claim)
      await b.granted(next)
      assert.equal((await b.renew(next, LONG_MS)).status, 'held')
      assert.equal((await b.hold(next)).waiting, 0)
      assert.equal(b.told(next, 'revoked').length, 0)
    })

    test('now: frees it, and the old holder has lost it', async (world) => {
      const [a, b] = await world.three()
      const claim = await held(a, world.claim('key'))
      assert.equal(await b.revoke('key', 'now'), 'freed')
      await a.revoked(claim)
      assert.equal((await a.renew(claim, LONG_MS)).status, 'lost')
      await b.hold(world.claim('key'), 'leave')
      assert.equal(await a.release(claim), 'not-held')
      await a.refused(world.claim('key'))
    })

    test('now: hands over to the first that waits, one revocation at a time', async (world) => {
      const [a, b, c] = await world.three()
      await held(a, world.claim('key'))
      const next = world.claim('key')
      const last = world.claim('key')
      await b.queue(next)
      await c.queue(last)
      assert.equal(await c.revoke('key', 'now'), 'freed')
      await b.granted(next)
      assert.equal(await a.revoke('key', 'now'), 'freed')
      await c.granted(last)
      assert.equal((await b.renew(next, LONG_MS)).status, 'lost')
    })

    test('revokes nothing else', async (world) => {
      const [a, b] = await world.three()
      const other = await held(a, world.claim('key2'))
      await held(a, world.claim('key'))
      assert.equal(await b.revoke('key', 'now'), 'freed')
      assert.equal((await a.renew(other, LONG_MS)).status, 'held')
    })
  })
}

async function held(process: Process, claim: Claim): Promise<Claim> {
  await process.hold(claim)
  return claim
}
