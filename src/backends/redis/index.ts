import type { BackendFactory } from '../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../core/errors.js'
import { RedisBackend } from './backend.js'
import type { RedisClient } from './client.js'
import { fromIoredis, isIoredis, type IoredisClient, type IoredisCluster } from './clients/ioredis.js'
import { fromNodeRedis, isNodeRedis, type NodeRedisClient, type NodeRedisCluster, type NodeRedisSentinel } from './clients/node-redis.js'
import type { RedisOptions } from './steps.js'

export type { RedisOptions } from './steps.js'
export type { IoredisClient, IoredisCluster } from './clients/ioredis.js'
export type { NodeRedisClient, NodeRedisCluster, NodeRedisSentinel } from './clients/node-redis.js'

/** A client of ioredis, iovalkey or node-redis: of one instance, of a group with Sentinel, or of a cluster. */
export type RedisDriver = IoredisClient | IoredisCluster | NodeRedisClient | NodeRedisCluster | NodeRedisSentinel

/** Locks on Redis, through your own client. It is used, never closed. */
export function redisBackend(driver: RedisDriver, options: RedisOptions = {}): BackendFactory {
  const client = clientOf(driver)
  const { waitReplicas } = options
  if (waitReplicas && !(waitReplicas.count >= 1 && waitReplicas.timeoutMs >= 1)) {
    throw new ConfigurationError('waitReplicas is { count, timeoutMs }, each at least 1.')
  }
  if (waitReplicas && !client.wait) {
    throw new ConfigurationError(
      'waitReplicas needs the very connection that wrote, which a Cluster client, or a Sentinel client of node-redis, does not give.',
    )
  }
  return (scope) => new RedisBackend(client, scope, options)
}

function clientOf(driver: RedisDriver | null | undefined): RedisClient {
  if (typeof driver === 'object' && driver !== null) {
    if (isIoredis(driver)) return fromIoredis(driver)
    if (isNodeRedis(driver)) return fromNodeRedis(driver)
  }
  throw new ConnectorError(
    'redisBackend() takes a client of ioredis, iovalkey or node-redis: redisBackend(new Redis(…)) or redisBackend(await createClient(…).connect()).',
  )
}
