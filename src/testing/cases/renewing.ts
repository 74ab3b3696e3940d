/** What is left of a hold can be raised, and lowered only on purpose. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Suite } from '../conformance.js'
import { assertBetween, expectStatus, LONG_MS } from '../harness.js'

export function renewing({ theme, test }: Suite): void {
  theme('renewing', () => {
    test('extends', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key', { ttlMs: 30_000 })
      await a.hold(claim)
      const from = performance.now()
      assert.deepEqual(await a.renew(claim, LONG_MS), { status: 'held', waiting: 0 })
      const { holder } = await b.refused(world.claim('key'))
      assertBetween(holder?.expiresInMs, LONG_MS - (performance.now() - from), LONG_MS)
    })

    test('keeps a claim beyond its first TTL', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key', { ttlMs: world.shortMs })
      // On a machine that stalls, the claim may be over before it is renewed; then this has shown nothing.
      for (let tries = 0; ; tries++) {
        const from = performance.now()
        await a.ask(claim, 'leave')
        const { status } = await a.renew(claim, LONG_MS)
        if (status === 'held') break
        assert.ok(performance.now() - from >= world.shortMs, `${status} before its TTL was over`)
        assert.ok(tries < 20, 'this machine is too slow for the test')
      }
      await world.pastExpiry()
      assert.equal((await b.refused(world.claim('key'))).holder?.owner, a.owner)
      assert.equal(await a.release(claim), 'released')
    })

    test('never shortens', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      await a.hold(claim)
      assert.equal((await a.renew(claim, world.shortMs)).status, 'held')
      assert.ok((await b.refused(world.claim('key'))).holder!.expiresInMs! > world.shortMs)
      await world.pastExpiry()
      await b.refused(world.claim('key'))
      assert.equal(await a.release(claim), 'released')
    })

    test('shortens if that is meant, and the claim ends at the new time', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      await a.hold(claim)
      assert.equal((await a.renew(claim, 20_000, true)).status, 'held')
      assertBetween((await b.refused(world.claim('key'))).holder?.expiresInMs, 1, 20_000)
      await world.letExpire(a, claim)
      await b.hold(world.claim('key'), 'leave')
    })

    test('says how many wait', async (world) => {
      const [a, b, c] = await world.three()
      const claim = world.claim('key')
      await a.hold(claim)
      await b.queue(world.claim('key'))
      await c.queue(world.claim('key'))
      assert.deepEqual(await a.renew(claim, LONG_MS), { status: 'held', waiting: 2 })
    })

    test('says lost of what is free, held by another or only waited for', async (world) => {
      const [a, b] = await world.three()
      const waiting = world.claim('key')
      assert.equal((await a.renew(waiting, LONG_MS)).status, 'lost')
      await b.hold(world.claim('key'))
      assert.equal((await a.renew(waiting, LONG_MS)).status, 'lost')
      const { place } = await a.queue(waiting)
      assert.equal((await a.renew(waiting, LONG_MS)).status, 'lost')
      const state = await a.queue(waiting)
      assert.deepEqual([state.place, state.ahead], [place, 0])
    })

    test('does not renew by another id, or an old one', async (world) => {
      const [a, b] = await world.three()
      const old = world.claim('key')
      await a.hold(old)
      await a.release(old)
      const held = world.claim('key', { ttlMs: 20_000 })
      await b.hold(held)
      for (const stale of [old, world.claim('key')]) assert.equal((await a.renew(stale, LONG_MS, true)).status, 'lost')
      assertBetween((await a.refused(world.claim('key'))).holder?.expiresInMs, 1, 20_000)
    })

    test('says lost after expiry, and does not bring the claim back', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      await a.hold(claim)
      await world.letExpire(a, claim)
      assert.equal((await a.renew(claim, LONG_MS)).status, 'lost')
      await b.hold(world.claim('key'), 'leave')
      assert.equal((await a.renew(claim, LONG_MS)).status, 'lost')
    })

    test('lets a claim be taken over, once, by whoever is first', async (world) => {
      const [a, b, c] = await world.three()
      const given = world.claim('key', { ttlMs: 20_000, type: 'a type', metadata: '{"a":1}' })
      const { epoch } = await a.hold(given)
      const taken = world.claim('key', { type: 'a type', metadata: '{"a":1}' })
      assert.equal(await b.takeOver(taken, given, a), 'held')
      const { holder } = await c.refused(world.claim('key'))
      assert.deepEqual([holder?.owner, holder?.epoch, holder?.type, holder?.metadata], [b.owner, epoch, 'a type', '{"a":1}'])
      assertBetween(holder?.expiresInMs, 20_001, LONG_MS)
      // A reply may have been lost on the way: the same one may ask again.
      assert.equal(await b.takeOver(taken, given, a), 'held')
      assert.equal(await c.takeOver(world.claim('key'), given, a), 'lost')
      assert.equal(await a.takeOver(world.claim('key'), given, a), 'lost')
      assert.equal((await b.renew(taken, LONG_MS)).status, 'held')
      const again = world.claim('key')
      assert.equal(await c.takeOver(again, taken, b), 'held')
      assert.equal((await c.refused(world.claim('key'))).holder?.owner, c.owner)
      assert.equal(await c.release(again), 'released')
    })

    test('lets even the one who gave it away take it, and then nobody else', async (world) => {
      const [a, b] = await world.three()
      const given = world.claim('key')
      await a.hold(given)
      const taken = world.claim('key')
      assert.equal(await a.takeOver(taken, given, a), 'held')
      assert.equal(await b.takeOver(world.claim('key'), given, a), 'lost')
      assert.equal((await a.renew(taken, LONG_MS)).status, 'held')
    })

    test('what its last owner still has on its way does not touch a claim that was taken over', async (world) => {
      const [a, b, c] = await world.three()
      const given = world.claim('key', { ttlMs: 20_000 })
      await a.hold(given)
      const taken = world.claim('key')
      await b.takeOver(taken, given, a, 20_000)
      assert.equal((await a.renew(given, LONG_MS, true)).status, 'lost')
      assert.equal(await a.release(given), 'not-held')
      await a.refused(given)
      const { holder } = await c.refused(world.claim('key'))
      assert.equal(holder?.owner, b.owner)
      assertBetween(holder?.expiresInMs, 1, 20_000)
    })

    test('nor does a release, also if that is the first that its last owner asks for', async (world) => {
      const [a, b, c] = await world.three()
      const given = world.claim('key')
      await a.hold(given)
      const taken = world.claim('key')
      assert.equal(await b.takeOver(taken, given, a), 'held')
      assert.equal(await a.release(given), 'not-held')
      assert.equal((await c.refused(world.claim('key'))).holder?.owner, b.owner)
      assert.equal((await b.renew(taken, LONG_MS)).status, 'held')
    })

    test('does not let another process renew without taking over, or take over what is not there', async (world) => {
      const [a, b, c] = await world.three()
      const given = world.claim('key', { ttlMs: 20_000 })
      const taken = world.claim('key')
      assert.equal(await b.takeOver(taken, given, a), 'lost')
      await a.hold(given)
      assert.equal((await b.renew(given, LONG_MS, true)).status, 'lost')
      assert.equal(await b.takeOver(taken, given, c), 'lost')
      assert.equal(await b.takeOver(taken, world.claim('key'), a), 'lost')
      const { holder } = await c.refused(world.claim('key'))
      assert.equal(holder?.owner, a.owner)
      assertBetween(holder?.expiresInMs, 1, 20_000)
      await world.letExpire(a, given)
      assert.equal(await b.takeOver(taken, given, a), 'lost')
    })

    test('keeps its epoch', async (world) => {
      const a = await world.open()
      const claim = world.claim('key')
      const { epoch } = await a.hold(claim)
      await a.renew(claim, LONG_MS)
      await sleep(5)
      await a.renew(claim, 30_000, true)
      assert.equal(expectStatus(await a.ask(claim, 'queue'), 'held').epoch, epoch)
    })
  })
}
