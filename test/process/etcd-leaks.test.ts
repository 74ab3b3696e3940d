import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { connect } from '../../src/index.js'
import { watchersOf } from '../support/etcd-calls.js'
import { startEtcd } from '../support/etcd-server.js'
import { expectNoLeak } from '../support/leaks.js'
import { until } from '../support/until.js'

/** What is left on the server, by its own words. */
const IS_EMPTY = ''
const NO_LEASES = 'found 0 leases'

it('100,000 locks and unlocks leave no timers, listeners, handles or memory behind, and no keys, leases or watches on the server', async () => {
  await using server = await startEtcd({ autoCompaction: 1_000 })
  const locks = await connect(server.url, { prefix: 'test' })
  await expectNoLeak(locks, 100)
  // The lease that they shared, and its mailbox.
  expect(await server.ctl('get', '--prefix', 'test/', '--keys-only').then((text) => text.split('\n').filter(Boolean))).toHaveLength(1)
  await locks.close()
  expect(await server.ctl('get', '--prefix', '', '--keys-only')).toBe(IS_EMPTY)
  expect(await server.ctl('lease', 'list')).toBe(NO_LEASES)
  await until('its watches to be gone', async () => (await watchersOf(server)) === 0)
})

it('many who wait in vain for one key leave nothing behind', async () => {
  await using server = await startEtcd()
  const [a, b] = [await connect(server.url, { prefix: 'test' }), await connect(server.url, { prefix: 'test' })]
  const held = await a.lock('hot')
  for (let round = 0; round < 20; round++) {
    const refused = await Promise.allSettled(Array.from({ length: 50 }, (_, i) => b.lock('hot', { waitMs: i % 10, fairness: i % 2 ? 'strict' : 'bounded' })))
    expect(refused.every(({ status }) => status === 'rejected')).toBe(true)
  }
  const keys = async () => (await server.ctl('get', '--prefix', 'test/hot/', '--keys-only')).split('\n').filter(Boolean)
  await until('the holder to be alone', async () => (await keys()).length === 1)
  // A watch is kept for a second after the last who waited.
  await sleep(1_500)
  expect(await watchersOf(server)).toBe(2)
  expect(await held.release()).toBe(true)
  await Promise.all([a.close(), b.close()])
  expect(await server.ctl('lease', 'list')).toBe(NO_LEASES)
})
