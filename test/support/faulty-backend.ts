/**
 * A backend whose network is in the test's hands: single requests, replies and wake-ups can be held back, failed, delayed,
 * doubled or made up. Every request is recorded with the time at which it was sent.
 *
 *   const claim = store.hold('claim')          the next claim does not reach the store until claim.release()
 *   const claim = store.holdReply('claim')     it does, but its answer is on the way until then
 *   claim.fail(error)                          instead of release(): the caller gets the error
 *
 * A fault is for the next request of its kind, unless `times` says otherwise; faults for one kind apply in the order in which
 * they were made.
 */
import type { Backend, BackendFactory, Claim, RenewState, Scope, Traits, WakeUp } from '../../src/core/backend.js'
import type { Clock } from '../../src/core/clock.js'
import { BackendError } from '../../src/core/errors.js'

export type Method = 'ready' | 'claim' | 'renew' | 'release' | 'revoke' | 'inspect' | 'close'

export interface Request {
  readonly method: Method
  readonly sentAt: number
  /** Who sent it. */
  readonly owner: string
  /** The keys that it is about. */
  readonly keys: readonly string[]
  readonly claimIds: readonly string[]
  readonly args: readonly any[]
}

/** A fault decides when and whether the request is sent, and what its answer is. */
type Fault = (send: () => Promise<any>) => Promise<any>

interface PlannedFault {
  readonly method: Method
  readonly owner: string | undefined
  readonly fault: Fault
  left: number
}

interface FaultOptions {
  /** How many requests it is for. Default: 1. */
  readonly times?: number
  /** Only those of this owner. */
  readonly owner?: string
}

/** Requests that are held back. */
export interface Held {
  /** How many are held back now. */
  readonly count: number
  /** Lets them go on, and those that come later. */
  release(): void
  /** Lets them, and those that come later, fail. */
  fail(error?: unknown): void
}

/** What a connection that broke looks like. */
export function outage(message = 'The connection broke.'): BackendError {
  return new BackendError(message, { transient: true })
}

export class FaultyBackend {
  readonly requests: Request[] = []
  /** Those that came from the store, whether they were passed on or not. */
  readonly wakeUps: WakeUp[] = []
  /** What it says keeps the store from being reached. */
  trouble: Error | undefined
  readonly #inner: BackendFactory
  readonly #clock: Clock
  readonly #traits: Partial<Traits>
  readonly #scopes = new Map<string, Scope>()
  #faults: PlannedFault[] = []
  #heldWakeUps: (() => void)[] | undefined

  /** `traits`: what the store is to say of itself, instead of what it says. */
  constructor(inner: BackendFactory, clock: Clock, traits: Partial<Traits> = {}) {
    this.#inner = inner
    this.#clock = clock
    this.#traits = traits
  }

  readonly factory: BackendFactory = (scope) => {
    this.#scopes.set(scope.owner, scope)
    const backend = this.#inner({ ...scope, wake: (wakeUp) => this.#wake(scope, wakeUp) })
    const send = <T>(method: Method, claims: readonly Claim[], args: readonly unknown[], request: () => Promise<T>): Promise<T> => {
      this.requests.push({
        method,
        sentAt: this.#clock.now(),
        owner: scope.owner,
        keys: method === 'revoke' ? [String(args[0])] : claims.map(({ resource }) => resource),
        claimIds: claims.map(({ id }) => id),
        args,
      })
      const fault = this.#take(method, scope.owner)
      return fault ? fault(request) : request()
    }
    const trouble = () => this.trouble
    const faulty: Backend = {
      name: backend.name,
      get trouble() {
        return trouble()
      },
      traits: { ...backend.traits, ...this.#traits },
      ready: () => send('ready', [], [], () => backend.ready()),
      claim: (claims, ifBusy) => send('claim', claims, [claims, ifBusy], () => backend.claim(claims, ifBusy)),
      renew: (renewals) => {
        const counting = renewals.map((renewal) => renewal.counting)
        // How many wait is said only to whoever has to know, as Redis does it.
        const leaveOut = (state: RenewState, i: number) => (state.status === 'held' && !counting[i] ? { ...state, waiting: undefined } : state)
        const request = async () => (await backend.renew(renewals)).map(leaveOut)
        return send('renew', renewals.map(({ claim }) => claim), [renewals], request)
      },
      release: (claims) => send('release', claims, [claims], () => backend.release(claims)),
      revoke: (resource, when) => send('revoke', [], [resource, when], () => backend.revoke(resource, when)),
      inspect: (prefix) => {
        void send('inspect', [], [prefix], async () => {})
        return backend.inspect(prefix)
      },
      close: () => send('close', [], [], () => backend.close()),
    }
    return faulty
  }

  /** The requests of one kind so far. */
  sent(method: Method): readonly Request[] {
    return this.requests.filter((request) => request.method === method)
  }

  /** Holds the next request back before it reaches the store. */
  hold(method: Method, options?: FaultOptions): Held {
    const gate = new Gate()
    this.intercept(method, (send) => gate.pass(send), options)
    return gate
  }

  /** Has the next request carried out, and holds its answer back. */
  holdReply(method: Method, options?: FaultOptions): Held {
    const gate = new Gate()
    this.intercept(
      method,
      (send) => {
        const answer = send()
        answer.catch(() => {})
        return gate.pass(() => answer)
      },
      options,
    )
    return gate
  }

  /** From now on the store swallows requests of this kind, until they are let go. */
  blackHole(method: Method, options?: FaultOptions): Held {
    return this.hold(method, { times: Infinity, ...options })
  }

  /** Fails the next request before it reaches the store. */
  fail(method: Method, error: unknown = outage(), options?: FaultOptions): void {
    this.intercept(method, () => Promise.reject(error), options)
  }

  /** Has the next request carried out, and loses its answer: the caller gets the error. */
  failReply(method: Method, error: unknown = outage(), options?: FaultOptions): void {
    this.intercept(method, (send) => send().then(() => Promise.reject(error)), options)
  }

  /** Carries the next request out at once, and its answer takes `ms`. */
  delayReply(method: Method, ms: number, options?: FaultOptions): void {
    this.intercept(method, (send) => send().then((answer) => this.#after(ms, answer)), options)
  }

  /** The next request takes `ms` to the store. */
  delay(method: Method, ms: number, options?: FaultOptions): void {
    this.intercept(method, (send) => this.#after(ms, undefined).then(send), options)
  }

  /** Sends the next request twice; the answer is that to the second. */
  duplicate(method: Method, options?: FaultOptions): void {
    this.intercept(method, (send) => send().then(send), options)
  }

  /** Answers the next request in the store's place. */
  answer(method: Method, answer: unknown, options?: FaultOptions): void {
    this.intercept(method, () => Promise.resolve(answer), options)
  }

  intercept(method: Method, fault: Fault, { times = 1, owner }: FaultOptions = {}): void {
    this.#faults.push({ method, owner, fault, left: times })
  }

  /** The network is well again: nothing planned so far is for requests that come from now on. */
  heal(): void {
    this.#faults = []
  }

  /** Holds all wake-ups back. */
  holdWakeUps(): { readonly count: number; release(): void; drop(): void } {
    const held: (() => void)[] = []
    this.#heldWakeUps = held
    const stop = () => {
      if (this.#heldWakeUps === held) this.#heldWakeUps = undefined
      return held.splice(0)
    }
    return {
      get count() {
        return held.length
      },
      release: () => stop().forEach((wake) => wake()),
      drop: () => void stop(),
    }
  }

  /** Tells a manager something that the store did not say, or says something a second time. */
  wake(owner: string, wakeUp: WakeUp): void {
    this.#scopes.get(owner)!.wake(wakeUp)
  }

  /** A warning of the store. */
  warn(owner: string, warning: string): void {
    this.#scopes.get(owner)!.warn(warning)
  }

  #wake(scope: Scope, wakeUp: WakeUp): void {
    this.wakeUps.push(wakeUp)
    if (this.#heldWakeUps) this.#heldWakeUps.push(() => scope.wake(wakeUp))
    else scope.wake(wakeUp)
  }

  #take(method: Method, owner: string): Fault | undefined {
    const planned = this.#faults.find((fault) => fault.method === method && (fault.owner ?? owner) === owner)
    if (planned && --planned.left <= 0) this.#faults.splice(this.#faults.indexOf(planned), 1)
    return planned?.fault
  }

  #after<T>(ms: number, answer: T): Promise<T> {
    return new Promise((resolve) => {
      this.#clock.timer(ms, () => resolve(answer), 'background')
    })
  }
}

class Gate implements Held {
  #waiting: { readonly go: () => void; readonly fail: (error: unknown) => void }[] = []
  #open: ((send: () => Promise<any>) => Promise<any>) | undefined

  get count(): number {
    return this.#waiting.length
  }

  pass(send: () => Promise<any>): Promise<any> {
    if (this.#open) return this.#open(send)
    return new Promise((resolve, reject) => {
      this.#waiting.push({ go: () => void send().then(resolve, reject), fail: reject })
    })
  }

  release(): void {
    this.#open = (send) => send()
    for (const { go } of this.#waiting.splice(0)) go()
  }

  fail(error: unknown = outage()): void {
    this.#open = () => Promise.reject(error)
    for (const { fail } of this.#waiting.splice(0)) fail(error)
  }
}
