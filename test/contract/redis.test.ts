import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisBackend } from '../../src/backends/redis/index.js'
import { conformance } from '../../src/testing/index.js'
import { kinds, type Deployment, type OpenClient } from '../support/redis-kinds.js'

describe.each(kinds)('$name', ({ start }) => {
  let redis: Deployment
  const open: OpenClient[] = []

  beforeAll(async () => {
    redis = await start()
  })

  afterAll(async () => {
    for (const { close } of open) close()
    await redis.stop()
  })

  conformance(
    async () => {
      const own = await redis.client()
      open.push(own)
      return redisBackend(own.client)
    },
    { fair: true, wakes: 'push', minTtlMs: 1, counted: false, heartbeatMs: 800 },
    { describe, it },
  )
})
