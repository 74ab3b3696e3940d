/** Which endpoint is next. One that failed is left alone for a while, longer each time; the others come first. */
import type { EtcdError } from './errors.js'

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 1_000

interface Endpoint {
  readonly url: string
  failures: number
  retryAt: number
  trouble: EtcdError | undefined
}

export class Endpoints {
  readonly #all: readonly Endpoint[]
  #current: number

  /** Clients begin at different ones, so that the load is spread. */
  constructor(urls: readonly string[]) {
    this.#all = urls.map((url) => ({ url, failures: 0, retryAt: 0, trouble: undefined }))
    this.#current = Math.floor(Math.random() * urls.length)
  }

  get count(): number {
    return this.#all.length
  }

  /** Of the endpoint that is used: what keeps it from working. */
  get trouble(): EtcdError | undefined {
    return this.#all[this.#current]!.trouble
  }

  /** No endpoint will work without somebody changing something. */
  get isHopeless(): boolean {
    return this.#all.every(({ trouble }) => trouble && !trouble.transient)
  }

  /** The one that worked last, or the next that need not be left alone, or the one that comes back first. */
  next(): { readonly url: string; readonly inMs: number; readonly failures: number } {
    const now = performance.now()
    const inOrder = [...this.#all.slice(this.#current), ...this.#all.slice(0, this.#current)]
    const waitMs = ({ retryAt }: Endpoint) => Math.max(0, retryAt - now)
    const soonest = inOrder.reduce((best, one) => (waitMs(one) < waitMs(best) ? one : best))
    this.#current = this.#all.indexOf(soonest)
    return { url: soonest.url, inMs: waitMs(soonest), failures: soonest.failures }
  }

  /** How long until the first of them may be tried. */
  get inMs(): number {
    return Math.max(0, Math.min(...this.#all.map(({ retryAt }) => retryAt)) - performance.now())
  }

  failed(url: string, trouble: EtcdError): void {
    const endpoint = this.#find(url)
    const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** endpoint.failures, LONGEST_PAUSE_MS)
    endpoint.failures++
    endpoint.retryAt = performance.now() + pauseMs * (0.5 + Math.random())
    endpoint.trouble = trouble
  }

  /** It can be connected to; whether it is of use, only an answer tells. */
  connected(url: string): void {
    this.#find(url).trouble = undefined
  }

  worked(url: string): void {
    const endpoint = this.#find(url)
    endpoint.failures = 0
    endpoint.trouble = undefined
  }

  #find(url: string): Endpoint {
    return this.#all.find((endpoint) => endpoint.url === url)!
  }
}
