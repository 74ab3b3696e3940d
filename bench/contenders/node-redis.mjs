/** The same as ioredis.mjs, on the other client. */
import { randomUUID } from 'node:crypto'
import { CLIENTS } from '../lib/clients.mjs'
import { COMPARE_AND_DELETE } from '../lib/raw-script.mjs'

export async function open(url, { ttlMs, prefix }) {
  const client = await CLIENTS['node-redis'](url)
  const sha = await client.scriptLoad(COMPARE_AND_DELETE)
  const onlyIfFree = { expiration: { type: 'PX', value: ttlMs }, condition: 'NX' }
  return {
    acquire: async (key) => {
      const name = `${prefix}:${key}`
      const token = randomUUID()
      if ((await client.set(name, token, onlyIfFree)) !== 'OK') throw new Error(`${name} is taken`)
      return { name, token }
    },
    release: ({ name, token }) => client.evalSha(sha, { keys: [name], arguments: [token] })
  }
}
