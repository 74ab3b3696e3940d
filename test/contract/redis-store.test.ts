/** What becomes of a commit on Redis that gets lost, or whose answer does, or that comes late; and what it leaves on the server. */
import { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { RedisClient } from '../../src/backends/redis/client.js'
import { fromIoredis } from '../../src/backends/redis/clients/ioredis.js'
import { redisBackend } from '../../src/backends/redis/index.js'
import { Keys } from '../../src/backends/redis/keys.js'
import { RedisVersionedStore } from '../../src/backends/redis/versioned-store.js'
import { systemClock } from '../../src/core/clock.js'
import { commitOf, lostCommits, OWNER, put, see, type Send } from '../support/lost-commits.js'
import { startRedis, type RedisServer } from '../support/redis-server.js'

let server: RedisServer
let redis: Redis
beforeAll(async () => {
  server = await startRedis()
  redis = new Redis(server.port)
})
afterAll(async () => {
  redis.disconnect()
  await server.stop()
})

const scope = { clock: systemClock(), owner: OWNER }
const cut = () => new Error('Connection is closed.')

/** `first`: what becomes of the first request that the server knows the script of. */
function storeOn(prefix: string, first?: (send: Send) => Promise<unknown>): RedisVersionedStore {
  const client = fromIoredis(redis)
  let requests = 0
  const run: RedisClient['run'] = (how, script, numberOfKeys, words) => {
    const send = () => client.run(how, script, numberOfKeys, words)
    return ++requests === 1 && first ? first(send) : send()
  }
  return new RedisVersionedStore({ ...client, isCluster: false, run } as RedisClient, new Keys(prefix, false), scope)
}

lostCommits({ storeOn, factory: () => redisBackend(redis), cut })

it('is unknown if no answer comes at all, and fails if it was refused', async () => {
  const answering = (error: () => Error) => {
    const run = () => Promise.reject(error())
    return new RedisVersionedStore({ ...fromIoredis(redis), isCluster: false, run } as RedisClient, new Keys('dead', false), scope)
  }
  expect(await answering(cut).commit(commitOf({}))).toMatchObject({ status: 'unknown', error: { code: 'BACKEND' } })
  const refused = () => new Error("READONLY You can't write against a read only replica.")
  await expect(answering(refused).commit(commitOf({}))).rejects.toMatchObject({ code: 'BACKEND', transient: true })
})

it('has a revision that is higher than all before, though the server has forgotten them or its clock was set back', async () => {
  const revisionOf = async () => ((await storeOn('revisions').commit(commitOf({ puts: [put('k', 'v')] }))) as { revision: bigint }).revision
  const before = await revisionOf()
  await redis.del('revisions:stm1')
  const after = await revisionOf()
  expect(after).toBeGreaterThan(before)
  const ahead = after + 3_600_000_000n
  await redis.hset('revisions:stm1', '', `${ahead} 0`)
  expect(await revisionOf()).toBe(ahead + 1n)
})

it('leaves one key for all, in which text can be read, and for a minute what came of it', async () => {
  await storeOn('left').commit(commitOf({ puts: [put('text', 'é'), { key: 'bytes', value: Uint8Array.of(0xff) }] }))
  const { revision } = await see(storeOn('left'), 'text')
  const keys = await redis.keys('left:*')
  expect(keys).toHaveLength(2)
  for (const key of keys.filter((name) => name !== 'left:stm1')) expect(await redis.pttl(key)).toBeGreaterThan(50_000)
  expect(await redis.hgetall('left:stm1')).toEqual({ '': `${revision} 0`, text: `${revision} té`, bytes: `${revision} b/w==` })
})
