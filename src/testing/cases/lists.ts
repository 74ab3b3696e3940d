/** Several claims in one call: each has its own answer, in order, and none spoils another. */
import assert from 'node:assert/strict'
import { ConfigurationError } from '../../core/errors.js'
import type { Suite } from '../conformance.js'
import { expectStatus, LONG_MS, statuses } from '../harness.js'

export function lists({ theme, test }: Suite): void {
  theme('lists', () => {
    test('answers nothing to nothing', async (world) => {
      const { backend } = await world.open()
      assert.deepEqual([...await backend.claim([], 'queue')], [])
      assert.deepEqual([...await backend.renew([])], [])
      assert.deepEqual([...await backend.release([])], [])
    })

    test('answers each claim in its place', async (world) => {
      const [a, b] = await world.three()
      const theirs = [world.claim('key-1'), world.claim('key-3')]
      assert.deepEqual(statuses(await b.backend.claim(theirs, 'queue')), ['held', 'held'])
      const ours = [0, 1, 2, 3, 4].map((i) => world.claim(`key-${i}`))
      assert.deepEqual(statuses(await a.backend.claim(ours, 'leave')), ['held', 'refused', 'held', 'refused', 'held'])
      assert.deepEqual(statuses(await a.backend.claim(ours, 'queue')), ['held', 'queued', 'held', 'queued', 'held'])
      const renewals = ours.map((claim) => ({ claim, ttlMs: LONG_MS, exact: false }))
      assert.deepEqual(statuses(await a.backend.renew(renewals)), ['held', 'lost', 'held', 'lost', 'held'])
      assert.deepEqual(
        statuses(await a.backend.release(ours)),
        ['released', 'not-held', 'released', 'not-held', 'released'],
      )
      assert.deepEqual(statuses(await b.backend.release(theirs)), ['released', 'released'])
      assert.deepEqual(await a.inspect(), [])
    })

    test('answers each renewal in its place, whatever becomes of it meanwhile', async (world) => {
      const { backend } = await world.open()
      const [held, lost] = [world.claim('key-0'), world.claim('key-1')]
      await backend.claim([held], 'queue')
      let isPassedOn = false
      const renewals = [held, lost].map((claim, i) => ({
        claim,
        ttlMs: LONG_MS,
        exact: false,
        // As of a hold, which is passed on while its renewal is on its way.
        get counting() {
          return isPassedOn === (i === 0)
        },
      }))
      const renewed = backend.renew(renewals)
      isPassedOn = true
      assert.deepEqual(statuses(await renewed), ['held', 'lost'])
    })

    test('takes 128 at once', async (world) => {
      const { backend } = await world.open()
      const claims = Array.from({ length: 128 }, (_, i) => world.claim(`key-${i}`))
      const held = await backend.claim(claims, 'queue')
      assert.deepEqual(new Set(statuses(held)), new Set(['held']))
      const renewed = await backend.renew(claims.map((claim) => ({ claim, ttlMs: LONG_MS, exact: false })))
      assert.deepEqual(new Set(statuses(renewed)), new Set(['held']))
      const released = await backend.release(claims)
      assert.deepEqual([released.length, ...new Set(statuses(released))], [128, 'released'])
    })

    test('fails only the claim that is wrong', async (world) => {
      const [a, b] = await world.three()
      const claims = [world.claim('key-0'), world.claim('key-1', { take: 3, limit: 1 }), world.claim('key-2')]
      const states = await a.backend.claim(claims, 'queue')
      assert.deepEqual(statuses(states), ['held', 'failed', 'held'])
      const { error } = expectStatus(states[1]!, 'failed')
      assert.ok(error instanceof ConfigurationError, `not a ConfigurationError: ${error}`)
      await b.refused(world.claim('key-0'))
      await b.hold(world.claim('key-1'))
      await b.refused(world.claim('key-2'))
    })

    test('serves the same resource twice in one list, in order', async (world) => {
      const [a, b] = await world.three()
      const claims = [world.claim('key'), world.claim('key'), world.claim('other')]
      const states = await a.backend.claim(claims, 'queue')
      assert.deepEqual(statuses(states), ['held', 'queued', 'held'])
      const others = await b.backend.claim([world.claim('key'), world.claim('key')], 'leave')
      assert.deepEqual(statuses(others), ['refused', 'refused'])
      await a.release(claims[0]!)
      await a.granted(claims[1]!)
      assert.deepEqual(
        statuses(await a.backend.renew(claims.map((claim) => ({ claim, ttlMs: LONG_MS, exact: false })))),
        ['lost', 'held', 'held'],
      )
    })

    test('releases a holder and a waiter of the same resource in one list', async (world) => {
      const [a, b] = await world.three()
      const claims = [world.claim('key'), world.claim('key')]
      const next = world.claim('key')
      assert.deepEqual(statuses(await a.backend.claim(claims, 'queue')), ['held', 'queued'])
      await b.queue(next)
      assert.equal(statuses(await a.backend.release(claims))[0], 'released')
      await b.granted(next)
    })

    test('hands each resource of a list to its own next', async (world) => {
      const [a, b, c] = await world.three()
      const keys = Array.from({ length: 10 }, (_, i) => `key-${i}`)
      const held = keys.map((key) => world.claim(key))
      await a.backend.claim(held, 'queue')
      const next = keys.map((key, i) => ({ process: i % 2 === 0 ? b : c, claim: world.claim(key) }))
      for (const { process, claim } of next) await process.queue(claim)
      assert.deepEqual(new Set(statuses(await a.backend.release(held))), new Set(['released']))
      for (const { process, claim } of next) await process.granted(claim)
    })
  })
}
