/** Release, withdrawal, and everything that must not release. */
import assert from 'node:assert/strict'
import type { Suite } from '../conformance.js'
import { inTheWay } from '../harness.js'

export function releasing({ theme, test }: Suite): void {
  theme('releasing', () => {
    test('releases once', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      await a.hold(claim)
      assert.equal(await a.release(claim), 'released')
      assert.equal(await a.release(claim), 'not-held')
      await b.hold(world.claim('key'), 'leave')
    })

    test('a claim that has waited, held and let go is a new one when it is asked for again', async (world) => {
      const [a, b, c] = await world.three()
      const first = world.claim('key')
      const claim = world.claim('key')
      await a.hold(first)
      await b.queue(claim)
      await a.release(first)
      const { epoch } = await b.heldByAsking(claim)
      assert.equal(await b.release(claim), 'released')
      assert.ok((await b.hold(claim)).epoch > epoch)
      assert.equal((await c.refused(world.claim('key'))).holder?.owner, b.owner)
      assert.equal(await b.release(claim), 'released')
      await c.hold(world.claim('key'), 'leave')
    })

    test('says not-held of a claim that never was', async (world) => {
      const a = await world.open()
      assert.equal(await a.release(world.claim('key')), 'not-held')
      await a.hold(world.claim('key'))
    })

    test('does nothing for a claim with another id', async (world) => {
      const [a, b] = await world.three()
      const held = world.claim('key')
      await a.hold(held)
      assert.equal(await b.release(world.claim('key')), 'not-held')
      assert.equal(await b.release({ ...held, id: held.id.replace(/^./, (c) => (c === '0' ? '1' : '0')) }), 'not-held')
      assert.equal((await b.refused(world.claim('key'))).holder?.owner, a.owner)
      assert.equal((await a.renew(held, held.ttlMs)).status, 'held')
    })

    test('does nothing for an id that holds another resource', async (world) => {
      const a = await world.open()
      const held = world.claim('key')
      await a.hold(held)
      assert.equal(await a.release({ ...held, resource: 'other' }), 'not-held')
      assert.equal(await a.release(held), 'released')
    })

    test('releases for whoever knows the id, in another process too', async (world) => {
      const [a, b] = await world.three()
      const claim = world.claim('key')
      await a.hold(claim)
      assert.equal(await b.release(claim), 'released')
      assert.equal(await a.release(claim), 'not-held')
    })

    for (const [which, name] of [[0, 'first'], [1, 'middle'], [2, 'last']] as const) {
      test(`withdraws the ${name} of three that wait`, async (world) => {
        const [a, b, c] = await world.three()
        const held = world.claim('key')
        await a.hold(held)
        const line = [b, c, a].map((process) => ({ process, claim: world.claim('key') }))
        for (const { process, claim } of line) await process.queue(claim)
        const [gone] = line.splice(which, 1)
        assert.equal(await gone!.process.release(gone!.claim), 'not-held')
        for (const [ahead, { process, claim }] of line.entries()) {
          assert.deepEqual(inTheWay(await process.queue(claim)), { owner: a.owner, ahead, waiting: 1 })
        }
        await a.release(held)
        for (const { process, claim } of line) {
          await process.granted(claim)
          assert.equal(await process.release(claim), 'released')
        }
        assert.equal(gone!.process.told(gone!.claim, 'granted').length, 0)
      })
    }

    test('passes on what was granted to one that withdraws', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const leaving = world.claim('key')
      const next = world.claim('key')
      await a.hold(held)
      await b.queue(leaving)
      await c.queue(next)
      await a.release(held)
      // It may not have heard of its grant yet.
      await b.release(leaving)
      await c.granted(next)
      assert.equal(await c.release(next), 'released')
    })

    test('strands nobody when one withdraws in the moment of its grant', async (world) => {
      const [a, b, c] = await world.three()
      for (let round = 0; round < 20; round++) {
        const resource = `key-${round}`
        const held = world.claim(resource)
        const leaving = world.claim(resource)
        const next = world.claim(resource)
        await a.hold(held)
        await b.queue(leaving)
        await c.queue(next)
        const release = () => a.release(held)
        const withdraw = () => b.release(leaving)
        const [first, second] = round % 2 === 0 ? [release, withdraw] : [withdraw, release]
        await Promise.all([first(), second()])
        await c.granted(next)
      }
    })

    test('keeps nothing of a key once it is idle', async (world) => {
      const [a, b] = await world.three()
      const held = world.claim('key')
      const waiting = world.claim('key')
      await a.hold(held)
      await b.queue(waiting)
      await b.release(waiting)
      await a.release(held)
      assert.deepEqual(await a.inspect(), [])
    })
  })
}
