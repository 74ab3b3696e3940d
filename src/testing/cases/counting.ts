/** Resources with more than one slot: semaphores and read-write locks. */
import assert from 'node:assert/strict'
import { ALL_SLOTS } from '../../core/backend.js'
import { ConfigurationError } from '../../core/errors.js'
import type { Suite } from '../conformance.js'
import { expectStatus, LONG_MS, statuses } from '../harness.js'

export function counting(suite: Suite): void {
  suite.theme('counting', () => {
    if (!suite.traits.counted) {
      for (const limit of [2, ALL_SLOTS]) {
        suite.test(`fails a claim with a limit of ${limit}, which it does not serve, and nothing else`, async (world) => {
          const a = await world.open()
          const claims = [world.claim('key'), world.claim('other', { limit }), world.claim('third')]
          const states = await a.backend.claim(claims, 'queue')
          assert.deepEqual(statuses(states), ['held', 'failed', 'held'])
          const { error } = expectStatus(states[1]!, 'failed')
          assert.ok(error instanceof ConfigurationError, `not a ConfigurationError: ${error}`)
          await a.hold(world.claim('other'))
        })
      }
      return
    }
    semaphores(suite)
    readWriteLocks(suite)
    limits(suite)
  })
}

function semaphores({ test }: Suite): void {
  test('semaphore: lets as many hold as there are permits', async (world) => {
    const [a, b, c] = await world.three()
    const permit = () => world.claim('key', { limit: 3 })
    const held = [permit(), permit(), permit()]
    const epochs = [(await a.hold(held[0]!)).epoch, (await a.hold(held[1]!)).epoch, (await b.hold(held[2]!)).epoch]
    assert.ok(epochs[0]! < epochs[1]! && epochs[1]! < epochs[2]!, `epochs ${epochs}`)
    await c.refused(permit())
    const next = permit()
    const { holder, ahead, waiting } = await c.queue(next)
    assert.deepEqual([ahead, waiting], [0, 0])
    assert.ok([a.owner, b.owner].includes(holder!.owner!), `held by ${holder?.owner}`)
    assert.equal(await a.release(held[1]!), 'released')
    assert.ok((await c.granted(next)).epoch > epochs[2]!)
    assert.equal((await a.renew(held[0]!, LONG_MS)).status, 'held')
    assert.equal((await a.renew(held[1]!, LONG_MS)).status, 'lost')
    assert.equal(await a.release(held[1]!), 'not-held')
    await a.refused(permit())
  })

  test('semaphore: asked again, a holder does not take twice', async (world) => {
    const [a, b] = await world.three()
    const permit = () => world.claim('key', { limit: 2 })
    const claim = permit()
    const { epoch } = await a.hold(claim)
    for (let i = 0; i < 3; i++) assert.equal((await a.hold(claim)).epoch, epoch)
    await b.hold(permit())
    await b.refused(permit())
    assert.equal((await a.hold(claim)).epoch, epoch)
  })

  test('semaphore: weighs claims, and a big one at the head keeps small ones behind it waiting', async (world) => {
    const [a, b, c] = await world.three()
    const permit = (take: number) => world.claim('key', { limit: 3, take })
    const held = permit(2)
    const big = permit(2)
    const small = permit(1)
    await a.hold(held)
    assert.equal((await b.queue(big)).ahead, 0)
    assert.equal((await c.queue(small)).ahead, 1)
    await c.refused(permit(1))
    assert.equal((await c.queue(small)).ahead, 1)
    await a.release(held)
    await b.granted(big)
    await c.granted(small)
    await a.refused(permit(1))
  })

  test('semaphore: a big one that is withdrawn lets the small ones behind it in', async (world) => {
    const [a, b, c] = await world.three()
    const permit = (take: number) => world.claim('key', { limit: 3, take })
    const big = permit(3)
    const small = [permit(1), permit(1), permit(1)]
    await a.hold(permit(1))
    await b.queue(big)
    for (const claim of small) await c.queue(claim)
    await b.release(big)
    await c.granted(small[0]!)
    await c.granted(small[1]!)
    assert.equal((await c.queue(small[2]!)).ahead, 0)
  })

  test('semaphore: a big one that goes away lets the small ones behind it in', async (world) => {
    const [a, b, c] = await world.three()
    const small = world.claim('key', { limit: 3, take: 1 })
    await a.hold(world.claim('key', { limit: 3, take: 2 }))
    await b.queue(world.claim('key', { limit: 3, take: 2 }))
    await c.queue(small)
    await b.close()
    await c.heldByAsking(small)
  })

  test('semaphore: a big one waits for as many releases as it takes', async (world) => {
    const [a, b] = await world.three()
    const held = [1, 2, 3].map(() => world.claim('key', { limit: 3 }))
    for (const claim of held) await a.hold(claim)
    const big = world.claim('key', { limit: 3, take: 3 })
    await b.queue(big)
    for (const claim of held) {
      await b.queue(big)
      assert.equal(b.told(big, 'granted').length, 0)
      await a.release(claim)
    }
    await b.granted(big)
  })

  test('semaphore: one that expires makes room, and only its own', async (world) => {
    const [a, b, c] = await world.three()
    const permit = () => world.claim('key', { limit: 2 })
    const kept = permit()
    const expiring = permit()
    const next = permit()
    await a.hold(kept)
    await b.hold(expiring)
    await c.queue(next)
    await world.letExpire(b, expiring)
    await c.hold(next)
    assert.equal((await a.renew(kept, LONG_MS)).status, 'held')
    assert.equal((await b.renew(expiring, LONG_MS)).status, 'lost')
    assert.equal(await b.release(expiring), 'not-held')
    await b.refused(permit())
  })

  test('semaphore: a refusal names the holder that will be free first', async (world) => {
    const [a, b, c] = await world.three()
    await a.hold(world.claim('key', { limit: 2, ttlMs: LONG_MS }))
    await b.hold(world.claim('key', { limit: 2, ttlMs: 20_000, type: 'short' }))
    const { holder } = await c.refused(world.claim('key', { limit: 2 }))
    assert.deepEqual([holder?.owner, holder?.type], [b.owner, 'short'])
  })

  test('semaphore: inspect shows every holder and what it takes', async (world) => {
    const [a, b, c] = await world.three()
    const { epoch } = await a.hold(world.claim('key', { limit: 5, take: 3, type: 'big', metadata: '{"n":3}' }))
    const second = await b.hold(world.claim('key', { limit: 5, take: 1 }))
    await c.queue(world.claim('key', { limit: 5, take: 4 }))
    const [resource] = await c.inspect()
    assert.equal(resource?.limit, 5)
    assert.deepEqual(resource.waiters, [{ owner: c.owner, take: 4 }])
    const holders = [...resource.holders].sort((one, other) => other.take - one.take)
    assert.deepEqual(
      holders.map(({ owner, take, epoch, type, metadata }) => ({ owner, take, epoch, type, metadata })),
      [
        { owner: a.owner, take: 3, epoch, type: 'big', metadata: '{"n":3}' },
        { owner: b.owner, take: 1, epoch: second.epoch, type: undefined, metadata: undefined },
      ],
    )
  })

  for (const when of ['told', 'now'] as const) {
    test(`semaphore: revokes all holders (${when})`, async (world) => {
      const [a, b, c] = await world.three()
      const held = [a, b].map((process) => ({ process, claim: world.claim('key', { limit: 2 }) }))
      for (const { process, claim } of held) await process.hold(claim)
      const next = world.claim('key', { limit: 2 })
      await c.queue(next)
      assert.equal(await c.revoke('key', when), when === 'told' ? 'told' : 'freed')
      for (const { process, claim } of held) {
        assert.equal((await process.renew(claim, LONG_MS)).status, when === 'told' ? 'revoked' : 'lost')
      }
      if (when === 'told') {
        await c.queue(next)
        for (const { process, claim } of held) await process.release(claim)
      }
      await c.granted(next)
      assert.equal((await c.hold(next)).waiting, 0)
    })
  }
}

function readWriteLocks({ test }: Suite): void {
  const reader = { take: 1, limit: ALL_SLOTS }
  const writer = { take: ALL_SLOTS, limit: ALL_SLOTS }

  test('read-write: readers share, writers do not', async (world) => {
    const [a, b, c] = await world.three()
    const readers = [a, b].map((process) => ({ process, claim: world.claim('key', reader) }))
    for (const { process, claim } of readers) await process.hold(claim)
    await c.refused(world.claim('key', writer))
    for (const { process, claim } of readers) await process.release(claim)
    await c.hold(world.claim('key', writer))
    await a.refused(world.claim('key', writer))
    await b.refused(world.claim('key', reader))
  })

  test('read-write: a reader behind a waiting writer waits, and then all readers come in together', async (world) => {
    const [a, b, c] = await world.three()
    const first = world.claim('key', reader)
    const write = world.claim('key', writer)
    const readers = [a, c, c].map((process) => ({ process, claim: world.claim('key', reader) }))
    const last = world.claim('key', writer)
    await a.hold(first)
    await b.queue(write)
    await c.refused(world.claim('key', reader))
    for (const { process, claim } of readers) await process.queue(claim)
    await b.queue(last)
    await a.release(first)
    await b.granted(write)
    for (const { process, claim } of readers) assert.equal(process.told(claim, 'granted').length, 0)
    await b.release(write)
    for (const { process, claim } of readers) await process.granted(claim)
    assert.equal((await b.queue(last)).ahead, 0)
    for (const { process, claim } of readers) await process.release(claim)
    await b.granted(last)
  })

  test('read-write: a writer that gives up lets the readers behind it in', async (world) => {
    const [a, b, c] = await world.three()
    const write = world.claim('key', writer)
    const read = world.claim('key', reader)
    await a.hold(world.claim('key', reader))
    await b.queue(write)
    await c.queue(read)
    await b.release(write)
    await c.granted(read)
  })
}

function limits({ test }: Suite): void {
  test('fails a claim with another limit while the resource is held or waited for, and nothing else', async (world) => {
    const [a, b, c] = await world.three()
    const held = world.claim('key', { limit: 2, take: 2 })
    const next = world.claim('key', { limit: 2 })
    await a.hold(held)
    await b.queue(next)
    for (const ifBusy of ['queue', 'leave'] as const) {
      const claims = [world.claim('other'), world.claim('key', { limit: 3 }), world.claim(`third-${ifBusy}`)]
      const states = await c.backend.claim(claims, ifBusy)
      assert.equal(states[1]?.status, 'failed')
      const { error } = expectStatus(states[1], 'failed')
      assert.ok(error instanceof ConfigurationError, `not a ConfigurationError: ${error}`)
      assert.equal(states[2]?.status, 'held')
    }
    expectStatus(await c.ask(world.claim('key'), 'queue'), 'failed')
    await a.release(held)
    await b.granted(next)
    expectStatus(await c.ask(world.claim('key', { limit: ALL_SLOTS }), 'queue'), 'failed')
    assert.equal((await b.hold(next)).waiting, 0)
  })

  test('fails a claim with another limit on a plain lock', async (world) => {
    const [a, b] = await world.three()
    const held = world.claim('key')
    await a.hold(held)
    expectStatus(await b.ask(world.claim('key', { limit: 2 }), 'queue'), 'failed')
    expectStatus(await b.ask(world.claim('key', { limit: 2 }), 'leave'), 'failed')
    assert.deepEqual(await a.hold(held).then(({ waiting }) => waiting), 0)
  })

  test('takes another limit once the resource is idle: released, withdrawn or expired', async (world) => {
    const [a, b] = await world.three()
    const lock = world.claim('key')
    await a.hold(lock)
    await a.release(lock)
    const permit = world.claim('key', { limit: 2, take: 2 })
    await b.hold(permit)
    const waiting = world.claim('key', { limit: 2 })
    await a.queue(waiting)
    await a.release(waiting)
    await b.release(permit)
    const expiring = world.claim('key', { limit: 3 })
    await a.hold(expiring)
    await world.letExpire(a, expiring)
    await b.hold(world.claim('key'))
    await a.refused(world.claim('key'))
  })
}
