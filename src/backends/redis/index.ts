import type { BackendFactory } from '../../core/backend.js'
import { ConfigurationError, ConnectorError } from '../../core/errors.js'
import { RedisBackend, type RedisOptions } from './backend.js'
import { checkClient, withoutSecrets, type IoredisClient } from './client.js'

export type { RedisOptions } from './backend.js'
export type { IoredisClient } from './client.js'

/** Locks on a single Redis, through your own ioredis client. It is used, never closed. */
export function redisBackend(client: IoredisClient, options: RedisOptions = {}): BackendFactory {
  checkClient(client)
  const { waitReplicas } = options
  if (waitReplicas && !(waitReplicas.count >= 1 && waitReplicas.timeoutMs >= 1)) {
    throw new ConfigurationError('waitReplicas is { count, timeoutMs }, each at least 1.')
  }
  return (scope) => new RedisBackend(client, scope, options)
}

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
    const client = open()
    let trouble: Error | undefined
    // Every request reports its own failure; without a listener ioredis prints them as well.
    client.on('error', (error) => (trouble = withoutSecrets(error)))
    client.on('ready', () => (trouble = undefined))
    return new RedisBackend(client, scope, {}, { close: () => client.disconnect(), trouble: () => trouble })
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
