/** Releases with GET and DEL: in between, the lock may have become another's. */
import { open, simpleLocks } from './simple-lock.mjs'

export function connect(url, { prefix }) {
  const release = async (redis, name, token) => (await redis.get(name)) === token && (await redis.del(name)) === 1
  return simpleLocks(open(url), prefix, { release })
}
