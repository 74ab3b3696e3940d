/** What a lock costs at the least on this client: SET NX, and a script that deletes only what is ours. No waiting. */
import { randomUUID } from 'node:crypto'
import { CLIENTS } from '../lib/clients.mjs'
import { COMPARE_AND_DELETE } from '../lib/raw-script.mjs'

export async function open(url, { ttlMs, prefix, client: clientOptions }) {
  const client = await CLIENTS.ioredis(url, clientOptions)
  const sha = await client.script('LOAD', COMPARE_AND_DELETE)
  return {
    acquire: async (key) => {
      const name = `${prefix}:${key}`
      const token = randomUUID()
      if ((await client.set(name, token, 'PX', ttlMs, 'NX')) !== 'OK') throw new Error(`${name} is taken`)
      return { name, token }
    },
    release: ({ name, token }) => client.evalsha(sha, 1, name, token)
  }
}
