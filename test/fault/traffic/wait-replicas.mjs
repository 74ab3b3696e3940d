/** The package with `waitReplicas`, on a client of one's own. */
import { redisBackend } from '../../../dist/backends/redis/index.js'
import { connect as connectTo } from '../../../dist/index.js'
import { open } from '../controls/simple-lock.mjs'

export async function connect(url, options) {
  const redis = open(url)
  const locks = await connectTo(redisBackend(redis, { waitReplicas: { count: 1, timeoutMs: 200 } }), options)
  return {
    lock: (...args) => locks.lock(...args),
    async close() {
      await locks.close()
      redis.disconnect()
    },
  }
}
