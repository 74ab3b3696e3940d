/** ioredis clients of our own. */
import type { OwnClient } from '../client.js'
import { withoutSecrets } from '../errors.js'
import type { RedisAddress } from '../url.js'
import { fromIoredis } from './ioredis.js'

type Ioredis = Pick<typeof import('ioredis'), 'Redis' | 'Cluster'>

/** A connection that swallows everything is replaced after so long: nothing else would ever notice. */
const SOCKET_TIMEOUT_MS = 5_000
const SENTINEL_TIMEOUT_MS = 1_000
/** The slots of a cluster are asked for again so often, beside whenever a command is sent the wrong way. */
const REFRESH_MS = 5_000
const GO_ON_MS = 50

const backOff = (times: number) => Math.min(1_000, 25 * 2 ** Math.min(times, 6))

export function openIoredis({ Redis, Cluster }: Ioredis, address: RedisAddress, connectTimeoutMs: number): OwnClient {
  const { kind, tls, hosts, username, password, database, masterName, sentinelUsername, sentinelPassword } = address
  const options = {
    ...(username !== undefined && { username }),
    ...(password !== undefined && { password }),
    ...(tls && { tls: {} }),
    connectTimeout: connectTimeoutMs,
    socketTimeout: SOCKET_TIMEOUT_MS,
    // Claims wait for the connection as they wait for the lock, and their own deadlines end that.
    maxRetriesPerRequest: null,
  }
  if (kind === 'cluster') {
    const cluster = new Cluster([...hosts], {
      redisOptions: options,
      clusterRetryStrategy: backOff,
      slotsRefreshTimeout: SENTINEL_TIMEOUT_MS,
      slotsRefreshInterval: REFRESH_MS,
      // Certificates are for names.
      ...(tls && { dnsLookup: (host: string, done: (error: null, host: string) => void) => done(null, host) }),
    })
    return own(cluster, ['error', 'node error'], async () => {})
  }
  const redis = new Redis({
    ...options,
    db: database,
    retryStrategy: backOff,
    ...(kind === 'single'
      ? hosts[0]
      : {
          sentinels: [...hosts],
          name: masterName,
          ...(sentinelUsername !== undefined && { sentinelUsername }),
          ...(sentinelPassword !== undefined && { sentinelPassword }),
          ...(tls && { sentinelTLS: {}, enableTLSForSentinelMode: true }),
          sentinelRetryStrategy: backOff,
          sentinelCommandTimeout: SENTINEL_TIMEOUT_MS,
          // Without it, a master that hangs keeps its clients when another has been elected.
          failoverDetector: true,
        }),
  })
  // It goes on in database 0 when there is none of that number.
  return own(redis, ['error'], async () => void (database && (await redis.select(database))))
}

type Client = InstanceType<Ioredis['Redis']> | InstanceType<Ioredis['Cluster']>

function own(driver: Client, errors: readonly string[], ready: () => Promise<void>): OwnClient {
  let trouble: Error | undefined
  // Every request reports its own failure; without a listener they are printed as well.
  for (const event of errors) driver.on(event, (error: Error) => (trouble = withoutSecrets(error)))
  driver.on('ready', () => (trouble = undefined))
  // A failover that is announced while it connects ends it for good (failoverDetector, ioredis 6.0): it has to go on.
  const goOn = () => setTimeout(() => void driver.connect().catch(() => {}), GO_ON_MS).unref()
  driver.on('end', goOn)
  const close = () => {
    driver.off('end', goOn)
    driver.disconnect()
  }
  return { client: fromIoredis(driver), ready, trouble: () => trouble, close }
}
