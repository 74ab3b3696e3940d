/** Backends with a client of their own, made from a URL. */
import type { BackendFactory } from '../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../core/errors.js'
import { RedisBackend } from './backend.js'
import { fromIoredis } from './clients/ioredis.js'
import { withoutSecrets } from './errors.js'

/** @internal A backend with a client of its own. */
export async function redisFromUrl(url: URL, connectTimeoutMs: number): Promise<BackendFactory> {
  if (url.hostname === '' || !/^(\/\d*)?$/.test(url.pathname)) {
    throw new ConfigurationError('A Redis URL is redis://host:port/database, where the database is a number: redis://localhost:6379/0.')
  }
  const { Redis } = await loadIoredis()
  const open = () => {
    const client = new Redis(url.href, {
      connectTimeout: connectTimeoutMs,
      // Claims wait for the connection as they wait for the lock, and their own deadlines end that.
      maxRetriesPerRequest: null,
      // A connection that swallows everything is replaced: nothing else would ever notice.
      socketTimeout: SOCKET_TIMEOUT_MS,
      retryStrategy: (times) => Math.min(1_000, 25 * 2 ** Math.min(times, 6)),
    })
    return client
  }
  return (scope) => {
    const redis = open()
    let trouble: Error | undefined
    // Every request reports its own failure; without a listener ioredis prints them as well.
    redis.on('error', (error) => (trouble = withoutSecrets(error)))
    redis.on('ready', () => (trouble = undefined))
    const client = fromIoredis(redis)
    return new RedisBackend(client, scope, {}, {
      client,
      close: () => redis.disconnect(),
      trouble: () => trouble,
      // ioredis goes on in database 0 when there is none of that number.
      ready: async () => void (redis.options.db && (await redis.select(redis.options.db))),
    })
  }
}

const SOCKET_TIMEOUT_MS = 5_000

async function loadIoredis() {
  try {
    return await import('ioredis')
  } catch (error) {
    throw new ConnectorError('The Redis client is missing: npm i ioredis', { cause: error })
  }
}
