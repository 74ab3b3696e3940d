/** One connection at a time, to whichever endpoint works. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Connection, type TlsOptions } from './connection.js'
import { Endpoints } from './endpoints.js'
import { closedError, connectionError, type EtcdError } from './errors.js'

export interface LaneOptions {
  readonly endpoints: readonly string[]
  readonly tls: TlsOptions
  /** What whoever uses it has time for. With several endpoints each gets its share. */
  readonly timeoutMs: number
}

const LEAST_CONNECT_MS = 250

export class Lane {
  readonly #endpoints: Endpoints
  readonly #tls: TlsOptions
  readonly #timeoutMs: number
  #current: Connection | undefined
  /** Left, but still good if its endpoint is the next again. */
  #left: Connection | undefined
  #connecting: Promise<Connection> | undefined
  #hasWorked = false
  readonly #closing = new AbortController()

  constructor({ endpoints, tls, timeoutMs }: LaneOptions) {
    this.#endpoints = new Endpoints(endpoints)
    this.#tls = tls
    this.#timeoutMs = Math.max(LEAST_CONNECT_MS, timeoutMs)
  }

  get connection(): Connection | undefined {
    return this.#current?.isOpen ? this.#current : undefined
  }

  get trouble(): EtcdError | undefined {
    return this.#endpoints.trouble
  }

  /** How long until it is worth trying again; Infinity if it never is. */
  get retryInMs(): number {
    return this.#endpoints.isHopeless ? Number.POSITIVE_INFINITY : this.#endpoints.inMs
  }

  /** One try, at one endpoint, which all who wait share. */
  ready(): Promise<Connection> {
    this.#connecting ??= this.#connect().finally(() => (this.#connecting = undefined))
    return this.#connecting
  }

  /** It is of no use at the moment. `reuse`: at least it is not broken. */
  leave(connection: Connection, why: EtcdError, { reuse }: { readonly reuse: boolean }): void {
    // Many calls find out about it at once.
    if (connection !== this.#current) return
    this.#endpoints.failed(connection.endpoint, why)
    this.#hasWorked = false
    this.#current = undefined
    if (reuse && connection.isOpen) this.#left = connection
    else connection.retire()
  }

  worked(connection: Connection): void {
    if (this.#hasWorked || connection !== this.#current) return
    this.#hasWorked = true
    this.#endpoints.worked(connection.endpoint)
  }

  close(): void {
    this.#closing.abort()
    this.#left?.destroy()
    this.#current?.destroy()
  }

  async #connect(): Promise<Connection> {
    const { url, inMs, failures } = this.#endpoints.next()
    const { signal } = this.#closing
    if (inMs > 0) await sleep(inMs, undefined, { ref: false, signal }).catch(() => {})
    if (signal.aborted) throw closedError(false)
    const left = this.#left
    this.#left = undefined
    if (left?.isOpen && left.endpoint === url) return (this.#current = left)
    left?.retire()
    // One that is only far away would never be connected to if it were given no more than its share.
    const shareMs = Math.max(LEAST_CONNECT_MS, this.#timeoutMs / this.#endpoints.count)
    return this.#open(url, Math.min(this.#timeoutMs, shareMs * 2 ** failures))
  }

  async #open(url: string, timeoutMs: number): Promise<Connection> {
    const { signal } = this.#closing
    let abort: (() => void) | undefined
    try {
      // Certificates that are none are found out at once.
      const { connection, ready } = Connection.open(url, this.#tls, timeoutMs)
      abort = () => connection.destroy(closedError(false))
      signal.addEventListener('abort', abort)
      await ready
      // It can have ended with the very next words: then the endpoint is left alone for a while.
      if (!connection.isOpen) throw connectionError(url, connection.trouble)
      this.#hasWorked = false
      this.#endpoints.connected(url)
      return (this.#current = connection)
    } catch (error) {
      const trouble = connectionError(url, error)
      this.#endpoints.failed(url, trouble)
      throw trouble
    } finally {
      if (abort) signal.removeEventListener('abort', abort)
    }
  }
}
