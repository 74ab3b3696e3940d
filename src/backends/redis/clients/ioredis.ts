/**
 * ioredis and its fork for Valkey, iovalkey: one instance, Sentinel, and Cluster.
 *
 * When a connection is lost it sends again what was not answered, on the next connection or to another node.
 */
import { ConfigurationError } from '../../../core/errors.js'
import type { Connection, ConnectionListener, RedisClient, RedisNode } from '../client.js'

/** The part of an ioredis `Redis` that is used. */
export interface IoredisClient {
  readonly status: string
  readonly stream?: { unref?(): unknown }
  readonly options?: { readonly keyPrefix?: string | undefined; readonly sentinelCommandTimeout?: number | undefined }
  evalsha(sha: string, numberOfKeys: number, keysAndArgs: any): Promise<unknown>
  eval(script: string, numberOfKeys: number, keysAndArgs: any): Promise<unknown>
  call(command: string, ...args: string[]): Promise<unknown>
  wait(replicas: number, timeoutMs: number): Promise<number>
  subscribe(channel: string): Promise<unknown>
  connect(): Promise<unknown>
  duplicate(override?: object): IoredisClient
  disconnect(reconnect?: boolean): void
  on(event: string, listener: (...args: any[]) => void): unknown
  off(event: string, listener: (...args: any[]) => void): unknown
}

/** The part of an ioredis `Cluster` that is used. */
export interface IoredisCluster {
  readonly isCluster: boolean
  readonly status: string
  readonly options?: { readonly keyPrefix?: string | undefined; readonly redisOptions?: { readonly keyPrefix?: string | undefined } }
  evalsha(sha: string, numberOfKeys: number, keysAndArgs: any): Promise<unknown>
  eval(script: string, numberOfKeys: number, keysAndArgs: any): Promise<unknown>
  call(command: string, ...args: string[]): Promise<unknown>
  nodes(role?: 'master'): IoredisClient[]
  on(event: string, listener: (...args: any[]) => void): unknown
  off(event: string, listener: (...args: any[]) => void): unknown
}

export function isIoredis(client: object): client is IoredisClient | IoredisCluster {
  return has(client, 'evalsha') && has(client, 'duplicate') && 'status' in client
}

export function fromIoredis(client: IoredisClient | IoredisCluster): RedisClient {
  const prefix = client.options?.keyPrefix ?? (isCluster(client) ? client.options?.redisOptions?.keyPrefix : undefined)
  if (prefix) {
    throw new ConfigurationError(
      `This client has keyPrefix "${prefix}", which changes key names behind our back. Use one without it, and the manager's own prefix.`,
    )
  }
  return isCluster(client) ? new IoredisClusterClient(client) : new IoredisSingleClient(client)
}

class IoredisSingleClient implements RedisClient {
  readonly isCluster = false
  readonly #redis: IoredisClient

  constructor(redis: IoredisClient) {
    this.#redis = redis
  }

  run(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown> {
    return this.#redis[how](script, numberOfKeys, keysAndArgs)
  }

  wait(replicas: number, timeoutMs: number): Promise<number> {
    return this.#redis.wait(replicas, timeoutMs)
  }

  async masters(): Promise<readonly RedisNode[]> {
    return [new IoredisNode(this.#redis)]
  }

  onDisconnect(listener: () => void): () => void {
    this.#redis.on('close', listener)
    return () => void this.#redis.off('close', listener)
  }
}

class IoredisClusterClient implements RedisClient {
  readonly isCluster = true
  readonly #cluster: IoredisCluster

  constructor(cluster: IoredisCluster) {
    this.#cluster = cluster
  }

  run(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown> {
    return this.#cluster[how](script, numberOfKeys, keysAndArgs)
  }

  async masters(): Promise<readonly RedisNode[]> {
    // Until it knows better, it takes all that it was given for masters.
    if (this.#cluster.status !== 'ready') await this.#cluster.call('ping')
    return this.#cluster.nodes('master').map((node) => new IoredisNode(node))
  }

  /** The cluster itself tells only when all of its nodes are gone. */
  onDisconnect(listener: () => void): () => void {
    const watched = new Set<IoredisClient>()
    const watch = (node: IoredisClient) => {
      if (!watched.has(node)) node.on('close', listener)
      watched.add(node)
    }
    const unwatch = (node: IoredisClient) => {
      if (watched.delete(node)) node.off('close', listener)
      listener()
    }
    for (const node of this.#cluster.nodes()) watch(node)
    this.#cluster.on('+node', watch)
    this.#cluster.on('-node', unwatch)
    return () => {
      this.#cluster.off('+node', watch)
      this.#cluster.off('-node', unwatch)
      for (const node of watched) node.off('close', listener)
    }
  }
}

/** A sentinel that hangs must not use up the time that connecting may take. */
const SENTINEL_TIMEOUT_MS = 500

class IoredisNode implements RedisNode {
  readonly #redis: IoredisClient

  constructor(redis: IoredisClient) {
    this.#redis = redis
  }

  call(...[command, ...args]: readonly string[]): Promise<unknown> {
    return call(this.#redis, command!, args)
  }

  connect({ onMessage, onClose }: ConnectionListener): Connection {
    const redis = this.#redis.duplicate({
      lazyConnect: true,
      retryStrategy: null,
      autoResubscribe: false,
      autoResendUnfulfilledCommands: false,
      enableOfflineQueue: true,
      commandTimeout: undefined,
      socketTimeout: undefined,
      sentinelCommandTimeout: this.#redis.options?.sentinelCommandTimeout ?? SENTINEL_TIMEOUT_MS,
      sentinelRetryStrategy: null,
      // It is pinged when its master may have gone.
      failoverDetector: false,
    })
    redis.on('ready', () => void redis.stream?.unref?.())
    redis.on('message', (_channel: string, message: string) => onMessage(message))
    redis.on('end', onClose)
    // Without a listener they are printed; `ready` and `onClose` tell enough.
    redis.on('error', () => {})
    return {
      ready: redis.connect(),
      call: (command, ...args) => call(redis, command!, args),
      subscribe: (channel) => redis.subscribe(channel),
      destroy: () => redis.disconnect(),
    }
  }
}

/** It knows what may be sent on a connection that listens by lower-case names only. */
function call(redis: IoredisClient, command: string, args: readonly string[]): Promise<unknown> {
  return redis.call(command.toLowerCase(), ...args)
}

function isCluster(client: IoredisClient | IoredisCluster): client is IoredisCluster {
  return 'isCluster' in client && client.isCluster
}

function has(client: object, method: string): boolean {
  return typeof (client as Record<string, unknown>)[method] === 'function'
}
