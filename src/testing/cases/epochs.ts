/** Every grant of a resource has a greater epoch than the one before it, whatever ended that one. */
import assert from 'node:assert/strict'
import type { Claim } from '../../core/backend.js'
import type { Suite } from '../conformance.js'
import type { Process, World } from '../harness.js'

export function epochs({ theme, test }: Suite): void {
  theme('epochs', () => {
    test('grow over 200 hand-overs across processes', async (world) => {
      const processes = await world.three()
      const grows = growing()
      let held = world.claim('key')
      grows((await processes[0].hold(held)).epoch)
      for (let i = 0; i < 200; i++) {
        const next = world.claim('key')
        const process = processes[(i + 1) % 3]!
        await process.queue(next)
        await processes[i % 3]!.release(held)
        grows((await process.granted(next)).epoch)
        held = next
      }
    })

    test('grow when the resource was idle in between', async (world) => {
      const processes = await world.three()
      const grows = growing()
      for (let i = 0; i < 30; i++) {
        const process = processes[i % 3]!
        const claim = world.claim('key')
        grows((await process.hold(claim, i % 2 === 0 ? 'queue' : 'leave')).epoch)
        await process.release(claim)
      }
    })

    const endings: Record<string, (world: World, process: Process, claim: Claim) => Promise<unknown>> = {
      'a release': (_world, process, claim) => process.release(claim),
      'a revocation': (_world, process, claim) => process.revoke(claim.resource, 'now'),
      'an expiry': (world, process, claim) => world.letExpire(process, claim),
    }
    for (const [name, ending] of Object.entries(endings)) {
      for (const contended of [false, true]) {
        test(`grow across ${name}, ${contended ? 'with' : 'without'} a waiter`, async (world) => {
          const [a, b] = await world.three()
          const grows = growing()
          const held = world.claim('key')
          const next = world.claim('key')
          grows((await a.hold(held)).epoch)
          if (contended) await b.queue(next)
          await ending(world, a, held)
          grows((await b.heldByAsking(next)).epoch)
          await b.release(next)
          grows((await a.hold(world.claim('key'))).epoch)
        })
      }
    }
  })
}

function growing(): (epoch: bigint) => void {
  let last = 0n
  return (epoch) => {
    assert.ok(epoch > last, `epoch ${epoch} after ${last}`)
    last = epoch
  }
}
