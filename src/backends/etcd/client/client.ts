/**
 * A client of etcd's API, version 3, for what locks need of it. Calls go over one connection; the two streams, of
 * renewals and of watches, over another: what waits for a large answer should not keep a lease from being renewed.
 */
import { randomBytes } from 'node:crypto'
import { ConfigurationError } from '../../../core/errors.js'
import { Auth, type Credentials } from './auth.js'
import { Calls, type CallKind } from './call.js'
import type { TlsOptions } from './connection.js'
import { EtcdError, unreadableError } from './errors.js'
import { frame } from './frames.js'
import { KeepAlives } from './keep-alive.js'
import { Lane } from './lane.js'
import * as messages from './messages.js'
import type { LeaseResponse, TimeToLive, WatchRequest } from './messages.js'
import type { RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse } from './messages.js'
import { Watches, type Watch, type WatchListener } from './watch.js'
import { Reader, type Writer } from './wire.js'

export interface EtcdOptions {
  /** http://host:2379, or https: for TLS. */
  readonly endpoints: readonly string[]
  readonly tls?: TlsOptions
  readonly username?: string
  readonly password?: string
  /** 2 s if not given. All tries of a call share it. */
  readonly callTimeoutMs?: number
}

/** All reject with an `EtcdError`. */
export interface EtcdClient {
  range(request: RangeRequest): Promise<RangeResponse>
  /** Never carried out twice, if it writes: after an error with `mayBeDone` it is for the caller to find out. */
  txn(request: TxnRequest): Promise<TxnResponse>
  /** Whoever gives no `id` gets a random one. */
  leaseGrant(ttlS: number, id?: bigint): Promise<LeaseResponse>
  leaseRevoke(id: bigint): Promise<void>
  leaseTimeToLive(id: bigint, withKeys: boolean): Promise<TimeToLive>
  /**
   * The TTL it has been renewed to; 0 if there is no such lease. If nothing comes for `silentMs` while something
   * should, the question goes to another endpoint.
   */
  keepAlive(id: bigint, silentMs: number): Promise<number>
  watch(request: WatchRequest, listener: WatchListener): Watch
  /** What keeps etcd from being reached at the moment. */
  readonly trouble: EtcdError | undefined
  close(): Promise<void>
}

const CALL_TIMEOUT_MS = 2_000
/** Node's timers know no more. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1

const RANGE: CallKind = { path: '/etcdserverpb.KV/Range', repeatable: true }
const TXN: CallKind = { path: '/etcdserverpb.KV/Txn', repeatable: false }
const READING_TXN: CallKind = { ...TXN, repeatable: true }
const LEASE_GRANT: CallKind = { path: '/etcdserverpb.Lease/LeaseGrant', repeatable: true }
const LEASE_REVOKE: CallKind = { path: '/etcdserverpb.Lease/LeaseRevoke', repeatable: true }
const LEASE_TIME_TO_LIVE: CallKind = { path: '/etcdserverpb.Lease/LeaseTimeToLive', repeatable: true }
const AUTHENTICATE: CallKind = { path: '/etcdserverpb.Auth/Authenticate', repeatable: true, anonymous: true }

export function createEtcdClient(options: EtcdOptions): EtcdClient {
  return new Client(options)
}

class Client implements EtcdClient {
  readonly #lanes: readonly [calls: Lane, streams: Lane]
  readonly #auth: Auth
  readonly #calls: Calls
  readonly #keepAlives: KeepAlives
  readonly #watches: Watches

  constructor(options: EtcdOptions) {
    const { tls = {}, callTimeoutMs: timeoutMs = CALL_TIMEOUT_MS } = options
    if (!(timeoutMs >= 1 && timeoutMs <= LONGEST_TIMEOUT_MS)) {
      throw new ConfigurationError(`callTimeoutMs is a number of milliseconds from 1 to ${LONGEST_TIMEOUT_MS}, not ${String(timeoutMs)}.`)
    }
    const endpoints = checked(options.endpoints)
    const lane = () => new Lane({ endpoints, tls, timeoutMs })
    this.#lanes = [lane(), lane()]
    this.#auth = new Auth(credentialsOf(options), (credentials) => this.#authenticate(credentials))
    this.#calls = new Calls(this.#lanes[0], this.#auth, timeoutMs)
    this.#keepAlives = new KeepAlives(this.#lanes[1], this.#auth, timeoutMs)
    this.#watches = new Watches(this.#lanes[1], this.#auth, timeoutMs, (request) => this.#mayRead(request))
  }

  get trouble(): EtcdError | undefined {
    return this.#auth.trouble ?? this.#lanes[0].trouble ?? this.#lanes[1].trouble
  }

  range(request: RangeRequest): Promise<RangeResponse> {
    return this.#call(RANGE, request, messages.writeRange, messages.readRange)
  }

  txn(request: TxnRequest): Promise<TxnResponse> {
    return this.#call(writes(request) ? TXN : READING_TXN, request, messages.writeTxn, messages.readTxn)
  }

  async leaseGrant(ttlS: number, id = randomLeaseId()): Promise<LeaseResponse> {
    try {
      return await this.#call(LEASE_GRANT, { ttlS, id }, messages.writeLeaseGrant, messages.readLease)
    } catch (error) {
      if (!isDoneBefore(error, 'lease-exists')) throw error
      // It may be older than this call: from now on it lasts as long as a new one.
      const ttlS = await this.keepAlive(id, this.#calls.timeoutMs / 2)
      if (ttlS <= 0) throw error
      return { id, ttlS }
    }
  }

  async leaseRevoke(id: bigint): Promise<void> {
    try {
      await this.#call(LEASE_REVOKE, id, messages.writeLeaseId, messages.readNothing)
    } catch (error) {
      if (!isDoneBefore(error, 'lease-not-found')) throw error
    }
  }

  leaseTimeToLive(id: bigint, withKeys: boolean): Promise<TimeToLive> {
    return this.#call(LEASE_TIME_TO_LIVE, { id, withKeys }, messages.writeLeaseTimeToLive, messages.readLeaseTimeToLive)
  }

  keepAlive(id: bigint, silentMs: number): Promise<number> {
    return this.#keepAlives.ask(id, silentMs)
  }

  watch(request: WatchRequest, listener: WatchListener): Watch {
    return this.#watches.watch(request, listener)
  }

  async close(): Promise<void> {
    this.#calls.close()
    this.#keepAlives.close()
    this.#watches.close()
    for (const lane of this.#lanes) lane.close()
  }

  async #call<Request, Response>(
    kind: CallKind,
    request: Request,
    write: (writer: Writer, request: Request) => void,
    read: (reader: Reader) => Response,
  ): Promise<Response> {
    const answer = await this.#calls.call(kind, frame(request, write))
    try {
      return read(new Reader(answer))
    } catch (error) {
      throw unreadableError(error)
    }
  }

  #authenticate({ username, password }: Credentials): Promise<string> {
    return this.#call(AUTHENTICATE, { name: username, password }, messages.writeAuthenticate, messages.readToken)
  }

  async #mayRead({ key, rangeEnd }: WatchRequest): Promise<void> {
    await this.range({ key, ...(rangeEnd && { rangeEnd }), countOnly: true, serializable: true })
  }
}

/** They are quoted in errors, so there must be no secrets in them. */
function checked(endpoints: readonly string[]): readonly string[] {
  if (endpoints.length === 0) throw new ConfigurationError('An etcd client needs an endpoint.')
  return endpoints.map((endpoint) => {
    const url = URL.canParse(endpoint) ? new URL(endpoint) : undefined
    if (!url || !/^https?:$/.test(url.protocol) || url.username !== '' || url.password !== '') {
      const form = 'http://host:2379 or https://host:2379'
      throw new ConfigurationError(`An endpoint of etcd is ${form}. User and password are options of their own.`)
    }
    return url.origin
  })
}

function writes({ success = [], failure = [] }: TxnRequest): boolean {
  return success.some(isWrite) || failure.some(isWrite)
}

function isWrite(op: RequestOp): boolean {
  return op.kind === 'put' || op.kind === 'delete' || (op.kind === 'txn' && writes(op))
}

function credentialsOf({ username, password = '' }: EtcdOptions): Credentials | undefined {
  return username === undefined ? undefined : { username, password }
}

/** A try of this same call, of which nothing was heard, has done it. */
function isDoneBefore(error: unknown, reason: EtcdError['reason']): boolean {
  return error instanceof EtcdError && error.reason === reason && error.mayBeDone
}

/** Positive, as those that servers choose. */
function randomLeaseId(): bigint {
  return BigInt.asUintN(63, randomBytes(8).readBigUInt64BE()) || 1n
}
