/** The resource goes to the next in line, and is told so. */
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Suite } from '../conformance.js'
import { assertBetween, inTheWay, LONG_MS } from '../harness.js'

export function handingOver({ traits, theme, test }: Suite): void {
  theme('handing over', () => {
    if (traits.fair) {
      test('serves first come, first served, over several processes', async (world) => {
        const processes = await world.three()
        const holder = await world.open()
        const held = world.claim('key')
        await holder.hold(held)
        const line = [0, 1, 2, 1, 0, 2, 2, 0].map((i) => ({ process: processes[i]!, claim: world.claim('key') }))
        for (const [ahead, { process, claim }] of line.entries()) {
          assert.deepEqual(inTheWay(await process.queue(claim)), { owner: holder.owner, ahead, waiting: ahead })
        }
        await holder.release(held)
        for (const [i, { process, claim }] of line.entries()) {
          const { waiting } = await process.granted(claim)
          assert.equal(waiting, line.length - i - 1)
          for (const behind of line.slice(i + 1)) {
            assert.equal(behind.process.told(behind.claim, 'granted').length, 0, 'told out of turn')
          }
          assert.equal(await process.release(claim), 'released')
        }
      })
    } else {
      test('serves everybody who waits in the end', async (world) => {
        const [a, b, c] = await world.three()
        const held = world.claim('key')
        await a.hold(held)
        const line = [b, c, a, b].map((process) => ({ process, claim: world.claim('key') }))
        for (const { process, claim } of line) await process.queue(claim)
        await a.release(held)
        await Promise.all(line.map(async ({ process, claim }) => {
          await process.granted(claim)
          await process.release(claim)
        }))
      })
    }

    if (traits.wakes === 'push') {
      test('tells the holder when somebody comes to be the first who waits', async (world) => {
        const [a, b, c] = await world.three()
        // Whoever has waited once is listening.
        const before = world.claim('key')
        const held = world.claim('key')
        await b.hold(before)
        await a.queue(held)
        await b.release(before)
        await a.granted(held)
        assert.equal(a.told(held, 'contended').length, 0, 'told before anybody waits')
        const [first, second] = [world.claim('key'), world.claim('key')]
        await b.queue(first)
        await a.toldOf(held, 'contended')
        await c.queue(second)
        await b.release(first)
        assert.equal(a.told(held, 'contended').length, 1, 'told by one who is not the first')
        await c.queue(second)
        await a.toldOf(held, 'contended')
        assert.equal((await a.renew(held, LONG_MS)).status, 'held')
      })
    }

    test('says which claim holds, by which epoch, since when and how many wait behind it', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const next = world.claim('key')
      const { epoch } = await a.hold(held)
      await b.queue(next)
      await c.queue(world.claim('key'))
      await a.release(held)
      const released = b.clock.now()
      const grant = await b.granted(next)
      assert.equal(grant.resource, 'key')
      assert.equal(grant.claimId, next.id)
      assert.ok(grant.epoch > epoch, `epoch ${grant.epoch} after ${epoch}`)
      assert.equal(grant.waiting, 1)
      // The store had begun to count before it answered the release.
      assert.ok(grant.since === undefined || grant.since <= released, `since ${grant.since}, released at ${released}`)
      for (const ifBusy of ['queue', 'leave'] as const) {
        const state = await b.hold(next, ifBusy)
        assert.deepEqual([state.epoch, state.waiting], [grant.epoch, 1])
      }
      assert.equal(await b.release(next), 'released')
    })

    test('tells nobody else', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const next = world.claim('key')
      const last = world.claim('key')
      await a.hold(held)
      await b.queue(next)
      await c.queue(last)
      await a.release(held)
      await b.granted(next)
      assert.deepEqual(inTheWay(await c.queue(last)), { owner: b.owner, ahead: 0, waiting: 0 })
      assert.equal(c.told(last, 'granted').length, 0)
      assert.equal(a.told(held, 'granted').length, 0)
    })

    test('gives a granted waiter its whole TTL, counted from the grant', async (world) => {
      const [a, b, c] = await world.three()
      const ttlMs = 30_000
      const held = world.claim('key')
      const next = world.claim('key', { ttlMs })
      await a.hold(held)
      await b.queue(next)
      await sleep(60)
      await a.release(held)
      const { since, forMs } = await b.granted(next)
      const isWhole = since !== undefined && forMs === undefined
      const from = isWhole ? since : b.clock.now()
      // The time of the grant is not known, or it was not for the whole of it: the contract is to ask.
      if (!isWhole) await b.hold(next)
      const { holder } = await c.refused(world.claim('key'))
      assert.equal(holder?.owner, b.owner)
      assertBetween(holder?.expiresInMs, ttlMs - (b.clock.now() - from), ttlMs)
    })

    test('lets one that waits behind others of its own process hold too', async (world) => {
      const [a, b] = await world.three()
      const claims = [1, 2, 3].map(() => world.claim('key'))
      await b.hold(claims[0]!)
      await b.queue(claims[1]!)
      await b.queue(claims[2]!)
      assert.equal((await a.refused(world.claim('key'))).waiting, 2)
      for (const [i, claim] of claims.entries()) {
        if (i > 0) await b.granted(claim)
        assert.equal(await b.release(claim), 'released')
      }
      await a.hold(world.claim('key'))
    })

    if (traits.keepsPlaces) {
      test('gives one that missed its grant its old place back', async (world) => {
        const [a, b, c] = await world.three()
        const held = world.claim('key')
        const slow = world.claim('key', { ttlMs: world.shortMs })
        const next = world.claim('key')
        const last = world.claim('key')
        await a.hold(held)
        await b.queue(slow)
        await c.queue(next)
        await a.release(held)
        await world.pastExpiry()
        await c.heldByAsking(next)
        await a.queue(last)
        // It was granted and expired, so the store knows it no more; but it was there before `last`.
        assert.deepEqual(inTheWay(await b.queue(slow)), { owner: c.owner, ahead: 0, waiting: 1 })
        assert.deepEqual(inTheWay(await a.queue(last)), { owner: c.owner, ahead: 1, waiting: 1 })
        await c.release(next)
        await b.granted(slow)
      })
    }

    if (traits.heartbeatMs < Number.POSITIVE_INFINITY) {
      test('passes over a process that has gone silent, and gives it its place back when it returns', async (world) => {
        const [a, b, c] = await world.three()
        const held = world.claim('key')
        const silent = world.claim('key')
        const next = world.claim('key')
        const last = world.claim('key')
        await a.hold(held)
        await b.queue(silent)
        await c.queue(next)
        for (let waited = 0; waited < 4 * traits.heartbeatMs; waited += traits.heartbeatMs / 2) {
          await sleep(traits.heartbeatMs / 2)
          await c.queue(next)
        }
        await a.release(held)
        await c.granted(next)
        await a.queue(last)
        assert.equal((await b.queue(silent)).ahead, 0)
        assert.equal((await a.queue(last)).ahead, 1)
        await c.release(next)
        await b.granted(silent)
      })
    }
  })
}
