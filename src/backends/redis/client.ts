/**
 * The few calls that we make on a Redis client, and how they go over ioredis. A client that a caller made is used, never
 * closed; one that was made from a URL, and the connection that listens for wake-ups, are ours.
 */
import { createHash } from 'node:crypto'
import { BackendError, ConfigurationError, ConnectorError, type HoldfastError } from '../../core/errors.js'

/** The part of an ioredis client that is used. */
export interface IoredisClient {
  readonly status: string
  readonly isCluster?: boolean
  readonly stream?: { unref?(): unknown }
  readonly options?: { readonly keyPrefix?: string | undefined; readonly db?: number | undefined }
  evalsha(sha: string, numberOfKeys: number, ...keysAndArgs: (string | number)[]): Promise<unknown>
  eval(script: string, numberOfKeys: number, ...keysAndArgs: (string | number)[]): Promise<unknown>
  get(key: string): Promise<string | null>
  info(section: string): Promise<string>
  select(database: number): Promise<unknown>
  wait(replicas: number, timeoutMs: number): Promise<number>
  scan(cursor: string, match: 'MATCH', pattern: string, count: 'COUNT', n: number): Promise<[string, string[]]>
  ping(): Promise<unknown>
  subscribe(channel: string): Promise<unknown>
  duplicate(override?: object): IoredisClient
  quit(): Promise<unknown>
  disconnect(reconnect?: boolean): void
  on(event: string, listener: (...args: any[]) => void): unknown
  off(event: string, listener: (...args: any[]) => void): unknown
}

export function checkClient(client: IoredisClient | undefined | null): asserts client is IoredisClient {
  if (typeof client?.evalsha !== 'function' || typeof client.duplicate !== 'function') {
    throw new ConnectorError('redisBackend() takes an ioredis client: redisBackend(new Redis(…)).')
  }
  if (client.isCluster) throw new ConfigurationError('Redis Cluster is not there yet in this version; pass a client of a single instance.')
  if (client.options?.keyPrefix) {
    throw new ConfigurationError(
      `This ioredis client has keyPrefix "${client.options.keyPrefix}", which changes key names behind our back. Use a client without it, and the manager's own prefix.`,
    )
  }
}

export class Script {
  readonly #source: string
  readonly #sha: string

  constructor(source: string) {
    this.#source = source
    this.#sha = createHash('sha1').update(source).digest('hex')
  }

  /** EVAL only if the server does not know the script: any other error must not run it a second time. */
  async run(client: IoredisClient, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown> {
    try {
      return await client.evalsha(this.#sha, keys.length, ...keys, ...args)
    } catch (error) {
      if (!isNoScript(error)) throw error
      return client.eval(this.#source, keys.length, ...keys, ...args)
    }
  }
}

function isNoScript(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith('NOSCRIPT')
}

/** What the server says while it cannot serve for a moment. */
const TRANSIENT_REPLIES = /^(LOADING|BUSY|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|NOREPLICAS|OOM|MISCONF|UNBLOCKED)\b/
/** What the server says for good. Anything that is not a reply is the connection's, and may be over in a moment. */
const REPLY = /^[A-Z]+ /

export function redisError(error: unknown): HoldfastError {
  const message = error instanceof Error ? error.message : String(error)
  const transient = TRANSIENT_REPLIES.test(message) || !REPLY.test(message)
  return new BackendError(`Redis failed: ${message}`, { cause: withoutSecrets(error), transient })
}

/** An error of one item of a script. */
export function redisItemError(message: string): HoldfastError {
  return redisError(new Error(message))
}

/** ioredis puts the command with its arguments, tokens and passwords among them, onto its errors. */
export function withoutSecrets(error: unknown): Error {
  const plain = new Error(error instanceof Error ? error.message : String(error))
  if (error instanceof Error) {
    plain.name = error.name
    if (error.stack !== undefined) plain.stack = error.stack
  }
  return plain
}
