/** A process that goes away, and one that is gone. */
import assert from 'node:assert/strict'
import { HoldfastError } from '../../core/errors.js'
import type { Suite } from '../conformance.js'
import { inTheWay, LONG_MS } from '../harness.js'

export function closing({ theme, test }: Suite): void {
  theme('closing', () => {
    test('passes over one that has gone while it waited', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const next = world.claim('key')
      await a.hold(held)
      await b.queue(world.claim('key'))
      await b.queue(world.claim('key'))
      await c.queue(next)
      await b.close()
      await a.release(held)
      await c.heldByAsking(next)
    })

    // Or a claim that was transferred would end with the process that it came from.
    test('leaves what it holds to its TTL, and another can take it over', async (world) => {
      const [a, b, c] = await world.three()
      const claim = world.claim('key')
      const { epoch } = await a.hold(claim)
      await a.close()
      await b.refused(world.claim('key'))
      const taken = world.claim('key')
      assert.equal(await c.takeOver(taken, claim, a), 'held')
      assert.equal((await c.hold(taken)).epoch, epoch)
      assert.equal(await c.release(taken), 'released')
      await b.hold(world.claim('key'))
    })

    test('rejects every call after it', async (world) => {
      const a = await world.open()
      const claim = world.claim('key')
      await a.hold(claim)
      await a.close()
      for (const [name, call] of Object.entries({
        claim: () => a.ask(claim, 'queue'),
        renew: () => a.renew(claim, LONG_MS),
        release: () => a.release(claim),
        revoke: () => a.revoke('key', 'now'),
        inspect: () => a.inspect(),
      })) {
        await assert.rejects(call, (error) => error instanceof HoldfastError, `${name} after close`)
      }
    })

    test('closes twice', async (world) => {
      const a = await world.open()
      await a.backend.close()
      await a.backend.close()
    })

    test('tells nothing after it', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      await a.hold(held)
      await b.queue(world.claim('key'))
      await b.close()
      const told = b.wakeUps.length
      await a.release(held)
      const next = world.claim('key')
      await c.heldByAsking(next)
      assert.equal(b.wakeUps.length, told)
    })

    test('does not disturb the others', async (world) => {
      const [a, b, c] = await world.three()
      const held = world.claim('key')
      const next = world.claim('key')
      await a.hold(held)
      await b.queue(next)
      await c.close()
      assert.deepEqual(inTheWay(await b.queue(next)), { owner: a.owner, ahead: 0, waiting: 0 })
      await a.release(held)
      await b.granted(next)
    })

    // Whether they are answered or refused is a matter of timing; but each is, and nobody is left unheard.
    test('settles calls that are under way', async (world) => {
      const a = await world.open()
      const calls = Array.from({ length: 20 }, (_, i) => a.ask(world.claim(`key-${i}`), 'queue'))
      const settled = Promise.allSettled(calls)
      await a.close()
      for (const call of await settled) {
        assert.ok(call.status === 'fulfilled' || call.reason instanceof HoldfastError, String(call.status))
      }
    })
  })
}
