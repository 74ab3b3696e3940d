/** Backends with a client of their own, made from a URL by whichever driver is installed. */
import type { BackendFactory } from '../../core/backend.js'
import { ConnectorError } from '../../core/errors.js'
import { RedisBackend } from './backend.js'
import type { OwnClient } from './client.js'
import { openIoredis } from './clients/open-ioredis.js'
import { openNodeRedis } from './clients/open-node-redis.js'
import { parseRedisUrl, type RedisAddress } from './url.js'

type Open = (address: RedisAddress, connectTimeoutMs: number) => OwnClient

export async function redisFromUrl(url: string, connectTimeoutMs: number): Promise<BackendFactory> {
  const address = parseRedisUrl(url)
  const open = await loadDriver()
  return (scope) => {
    const own = open(address, connectTimeoutMs)
    return new RedisBackend(own.client, scope, {}, own)
  }
}

async function loadDriver(): Promise<Open> {
  try {
    const ioredis = await import('ioredis')
    return (address, timeoutMs) => openIoredis(ioredis, address, timeoutMs)
  } catch (error) {
    if (!isMissing(error)) throw error
  }
  try {
    const nodeRedis = await import('redis')
    return (address, timeoutMs) => openNodeRedis(nodeRedis, address, timeoutMs)
  } catch (error) {
    if (!isMissing(error)) throw error
    throw new ConnectorError('No client for Redis is installed: npm i ioredis, or npm i redis.', { cause: error })
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === 'ERR_MODULE_NOT_FOUND'
}
