/**
 * node-redis (the package `redis`), version 5 and later: createClient, createCluster and createSentinel.
 *
 * When a connection is lost it rejects what was not answered. Only its Sentinel client tries again by itself. Commands go as
 * plain words: so neither its `keyPrefix` nor the caller's mapping of types applies to them.
 */
import { ConfigurationError, ConnectorError } from '../../../core/errors.js'
import type { Connection, ConnectionListener, RedisClient, RedisNode } from '../client.js'

interface Emitter {
  on(event: string, listener: (...args: any[]) => void): unknown
  off(event: string, listener: (...args: any[]) => void): unknown
}

/** The part of a client made by `createClient` that is used. */
export interface NodeRedisClient extends Emitter {
  readonly isOpen: boolean
  readonly isReady: boolean
  readonly options?: object | undefined
  sendCommand(args: readonly string[], options?: { typeMapping: object }): Promise<unknown>
  subscribe(channel: string, listener: (message: string) => unknown): Promise<unknown>
  connect(): Promise<unknown>
  duplicate(overrides?: object): NodeRedisClient
  destroy(): void
  unref(): void
}

/** The part of a client made by `createCluster` that is used. */
export interface NodeRedisCluster extends Emitter {
  readonly isOpen: boolean
  readonly masters: readonly object[]
  sendCommand(firstKey: string, isReadonly: boolean, args: string[], options?: { typeMapping: object }): Promise<unknown>
  nodeClient(node: any): unknown
}

/** The part of a client made by `createSentinel` that is used. */
export interface NodeRedisSentinel extends Emitter {
  readonly isOpen: boolean
  getSentinelNode(): unknown
  /** Not documented, but what every command of it goes through: the one way to the connection behind it. */
  _execute<T>(isReadonly: boolean, step: (master: any) => Promise<T>): Promise<T>
}

type NodeRedis = NodeRedisClient | NodeRedisCluster | NodeRedisSentinel

/** Whatever the caller has his replies mapped to, ours are strings and numbers. */
const PLAIN = { typeMapping: {} }

export function isNodeRedis(client: object): client is NodeRedis {
  return has(client, 'sendCommand') && 'isOpen' in client
}

export function fromNodeRedis(client: NodeRedis): RedisClient {
  if (!has(client, 'destroy')) throw new ConnectorError('redisBackend() takes clients of node-redis (the package redis) from version 5 on.')
  if ('totalClients' in client) {
    throw new ConfigurationError('redisBackend() takes no pool of node-redis: pass a client of createClient(), which serves any number of calls.')
  }
  if ('masters' in client) return new NodeRedisClusterClient(client)
  if ('getSentinelNode' in client) return new NodeRedisSentinelClient(client)
  return new NodeRedisSingleClient(client)
}

function evalCommand(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): string[] {
  return [how, script, String(numberOfKeys), ...keysAndArgs]
}

class NodeRedisSingleClient implements RedisClient {
  readonly isCluster = false
  readonly #redis: NodeRedisClient

  constructor(redis: NodeRedisClient) {
    this.#redis = redis
  }

  run(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown> {
    return this.#redis.sendCommand(evalCommand(how, script, numberOfKeys, keysAndArgs), PLAIN)
  }

  async wait(replicas: number, timeoutMs: number): Promise<number> {
    return Number(await this.#redis.sendCommand(['WAIT', String(replicas), String(timeoutMs)], PLAIN))
  }

  async masters(): Promise<readonly RedisNode[]> {
    return [new NodeRedisNode(this.#redis)]
  }

  onDisconnect(listener: () => void): () => void {
    return onAny(this.#redis, ['reconnecting', 'end'], listener)
  }
}

class NodeRedisClusterClient implements RedisClient {
  readonly isCluster = true
  readonly #cluster: NodeRedisCluster

  constructor(cluster: NodeRedisCluster) {
    this.#cluster = cluster
  }

  run(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown> {
    return this.#cluster.sendCommand(keysAndArgs[0]!, false, evalCommand(how, script, numberOfKeys, keysAndArgs), PLAIN)
  }

  async masters(): Promise<readonly RedisNode[]> {
    return this.#cluster.masters.map((node) => {
      const client = async () => (await this.#cluster.nodeClient(node)) as NodeRedisClient
      return {
        call: async (...command) => (await client()).sendCommand(command, PLAIN),
        connect: (listener) => connect(client(), listener),
      }
    })
  }

  onDisconnect(listener: () => void): () => void {
    return onAny(this.#cluster, ['node-reconnecting', 'node-disconnect'], listener)
  }
}

class NodeRedisSentinelClient implements RedisClient {
  readonly isCluster = false
  readonly #sentinel: NodeRedisSentinel
  readonly #listeners = new Set<() => void>()

  constructor(sentinel: NodeRedisSentinel) {
    if (!has(sentinel, '_execute')) throw new ConnectorError('This version of node-redis has a Sentinel client that holdfast does not know.')
    this.#sentinel = sentinel
  }

  run(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown> {
    let isSent = false
    return this.#sentinel._execute(false, (master: NodeRedisClient) => {
      // It is tried again when the connection was lost, which no event tells.
      if (isSent) for (const listener of this.#listeners) listener()
      isSent = true
      return master.sendCommand(evalCommand(how, script, numberOfKeys, keysAndArgs), PLAIN)
    })
  }

  async masters(): Promise<readonly RedisNode[]> {
    return [
      {
        call: (...command) => this.#sentinel._execute(false, (master: NodeRedisClient) => master.sendCommand(command, PLAIN)),
        connect: (listener) => connect(this.#sentinel._execute(false, async (master: NodeRedisClient) => master), listener),
      },
    ]
  }

  onDisconnect(listener: () => void): () => void {
    this.#listeners.add(listener)
    const off = onAny(this.#sentinel, ['reconnecting', 'topology-change', 'end'], listener)
    return () => {
      this.#listeners.delete(listener)
      off()
    }
  }
}

class NodeRedisNode implements RedisNode {
  readonly #redis: NodeRedisClient

  constructor(redis: NodeRedisClient) {
    this.#redis = redis
  }

  call(...command: readonly string[]): Promise<unknown> {
    return this.#redis.sendCommand(command, PLAIN)
  }

  connect(listener: ConnectionListener): Connection {
    return connect(Promise.resolve(this.#redis), listener)
  }
}

function connect(original: Promise<NodeRedisClient>, { onMessage, onClose }: ConnectionListener): Connection {
  let redis: NodeRedisClient | undefined
  let isDestroyed = false
  const open = async () => {
    const model = await original
    if (isDestroyed) throw new Error('It was given up.')
    const socket = (model.options as { socket?: object } | undefined)?.socket
    redis = model.duplicate({
      socket: { ...socket, reconnectStrategy: false, socketTimeout: undefined },
      commandOptions: undefined,
      clientSideCache: undefined,
      emitInvalidate: false,
      disableOfflineQueue: false,
      maintNotifications: 'disabled',
      pingInterval: undefined,
    })
    redis.on('error', onClose)
    redis.on('end', onClose)
    redis.unref()
    await redis.connect()
  }
  return {
    ready: open(),
    call: (...command) => redis!.sendCommand(command, PLAIN),
    subscribe: (channel) => redis!.subscribe(channel, onMessage),
    destroy: () => {
      isDestroyed = true
      try {
        redis?.destroy()
      } catch {
        // Version 5 says so of one that is closed already.
      }
    },
  }
}

function onAny(emitter: Emitter, events: readonly string[], listener: () => void): () => void {
  for (const event of events) emitter.on(event, listener)
  return () => {
    for (const event of events) emitter.off(event, listener)
  }
}

function has(client: object, method: string): boolean {
  return typeof (client as Record<string, unknown>)[method] === 'function'
}
