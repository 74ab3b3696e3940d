/** node-redis clients of our own. */
import type { OwnClient, RedisClient } from '../client.js'
import { withoutSecrets } from '../errors.js'
import type { RedisAddress } from '../url.js'
import { fromNodeRedis } from './node-redis.js'

type NodeRedis = Pick<typeof import('redis'), 'createClient' | 'createCluster' | 'createSentinel'>
type Driver = ReturnType<NodeRedis['createClient']> | ReturnType<NodeRedis['createCluster']> | ReturnType<NodeRedis['createSentinel']>

/** Its own socket timeout counts what is written, too: a server that hangs while we go on asking is found out by nothing but this. */
const PING_EVERY_MS = 2_000
const ANSWER_MS = 5_000
/** Shorter: one sentinel that hangs must not use up the time that connecting may take, while the others would answer. */
const SENTINEL_ANSWER_MS = 1_000

const backOff = (retries: number) => Math.min(1_000, 25 * 2 ** Math.min(retries, 6))

export function openNodeRedis(nodeRedis: NodeRedis, address: RedisAddress, connectTimeoutMs: number): OwnClient {
  return new OwnNodeRedis(makeDriver(nodeRedis, address, connectTimeoutMs), address.kind)
}

function makeDriver({ createClient, createCluster, createSentinel }: NodeRedis, address: RedisAddress, connectTimeoutMs: number): Driver {
  const { kind, tls, hosts, username, password, database, masterName, sentinelUsername, sentinelPassword } = address
  const socket = { connectTimeout: connectTimeoutMs, socketTimeout: ANSWER_MS, reconnectStrategy: backOff, ...(tls && { tls: true as const }) }
  const options = {
    ...(username !== undefined && { username }),
    ...(password !== undefined && { password }),
    // An idle connection would time out.
    pingInterval: PING_EVERY_MS,
  }
  if (kind === 'cluster') return createCluster({ rootNodes: hosts.map((host) => ({ socket: { ...host } })), defaults: { ...options, socket } })
  if (kind === 'single') return createClient({ ...options, socket: { ...socket, ...hosts[0] }, database })
  const sentinelAuth = {
    ...(sentinelUsername !== undefined && { username: sentinelUsername }),
    ...(sentinelPassword !== undefined && { password: sentinelPassword }),
  }
  return createSentinel({
    name: masterName,
    sentinelRootNodes: [...hosts],
    nodeClientOptions: { ...options, socket, database },
    sentinelClientOptions: { ...sentinelAuth, socket: { ...socket, socketTimeout: SENTINEL_ANSWER_MS }, pingInterval: SENTINEL_ANSWER_MS / 2 },
    scanInterval: PING_EVERY_MS,
  })
}

class OwnNodeRedis implements OwnClient {
  readonly client: RedisClient
  readonly #driver: Driver
  #connecting: Promise<void>
  #trouble: Error | undefined
  #isClosed = false

  constructor(driver: Driver, kind: RedisAddress['kind']) {
    this.#driver = driver
    // Every request reports its own failure; without a listener they would end the process.
    for (const event of ['error', 'node-error']) {
      ;(driver as NodeJS.EventEmitter).on(event, (error: unknown) => (this.#trouble = withoutSecrets(error)))
    }
    const client = fromNodeRedis(driver)
    this.client = {
      isCluster: client.isCluster,
      run: (...command) => this.#whenConnected(() => client.run(...command)),
      ...(client.wait && { wait: (...args) => client.wait!(...args) }),
      masters: () => this.#whenConnected(() => client.masters()),
      onDisconnect: (listener) => client.onDisconnect(listener),
    }
    this.#connecting = this.#connect()
    // The Sentinel client looks for a new master by itself, and must not be disturbed.
    if (kind !== 'sentinel') this.#probeLater(client)
  }

  ready(): Promise<void> {
    return this.#connecting
  }

  trouble(): Error | undefined {
    return this.#trouble
  }

  close(): void {
    this.#isClosed = true
    this.#destroy()
  }

  #whenConnected<T>(step: () => Promise<T>): Promise<T> {
    return this.#driver.isOpen ? step() : this.#connecting.then(step)
  }

  /** A single client connects for as long as it takes; the others give up. */
  async #connect(): Promise<void> {
    for (let retries = 0; !this.#isClosed; retries++) {
      try {
        await this.#driver.connect()
        this.#trouble = undefined
        return
      } catch (error) {
        this.#trouble = withoutSecrets(error)
        await new Promise((resolve) => setTimeout(resolve, backOff(retries)))
      }
    }
  }

  #probeLater(client: RedisClient): void {
    if (!this.#isClosed) setTimeout(() => void this.#probe(client), PING_EVERY_MS).unref()
  }

  async #probe(client: RedisClient): Promise<void> {
    if (this.#driver.isOpen && !(await answers(client)) && !this.#isClosed) {
      this.#destroy()
      this.#connecting = this.#connect()
    }
    this.#probeLater(client)
  }

  #destroy(): void {
    try {
      void Promise.resolve(this.#driver.destroy()).catch(() => {})
    } catch {
      // Version 5 says so of one that is closed already.
    }
  }
}

/** Whether every master answers in time, if only to say that it cannot serve. */
async function answers(client: RedisClient): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const tooLong = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), ANSWER_MS).unref()
  })
  const pings = client.masters().then((masters) => Promise.allSettled(masters.map((master) => master.call('PING'))))
  const inTime = await Promise.race([pings.then(() => true, () => true), tooLong])
  clearTimeout(timer)
  return inTime
}
