/**
 * What a lock of holdfast's costs at the least on this client: its scripts and nothing else. Nobody is told of a loss, nobody can
 * wait, nothing is joined; a lock that is held is renewed as often, from a list that is made once.
 */
import { randomBytes } from 'node:crypto'
import * as lua from '../../dist/backends/redis/lua.js'
import { CLIENTS } from '../lib/clients.mjs'

const BATCH = 1_000
const OWNER = 'bench:1#00000000'

export async function open(url, { ttlMs, prefix, client: clientOptions }) {
  const client = await CLIENTS.ioredis(url, clientOptions)
  const [take, drop, keep] = await Promise.all([lua.take, lua.drop, lua.keep].map((source) => client.script('LOAD', source)))
  const fence = `${prefix}:fence`
  const held = []
  let batches

  async function acquire(key) {
    const lock = `${prefix}:lock:${key}`
    const queue = `${prefix}:q1:{0}:${key}`
    const id = randomBytes(16).toString('hex')
    const reply = await client.evalsha(take, 3, [fence, lock, queue, OWNER, '0', '', `${id} ${ttlMs}`])
    if (!reply.endsWith(' 1')) throw new Error(`${lock} is taken`)
    return { lock, queue, id }
  }

  return {
    acquire,
    release: ({ lock, queue, id }) => client.evalsha(drop, 2, [lock, queue, id]),
    hold: async (key) => {
      if (held.push(await acquire(key)) === 1) setTimeout(renew, ttlMs / 3)
    }
  }

  function renew() {
    if (batches?.count !== held.length) batches = batchesOf(held)
    for (const { locks, words } of batches.all) client.evalsha(keep, locks, words)
    setTimeout(renew, ttlMs / 3)
  }

  function batchesOf(locks) {
    const all = []
    for (let i = 0; i < locks.length; i += BATCH) {
      const some = locks.slice(i, i + BATCH)
      const words = [...some.map(({ lock }) => lock), OWNER, '', some.map(({ id }) => id).join(''), String(ttlMs)]
      all.push({ locks: some.length, words })
    }
    return { count: locks.length, all }
  }
}
