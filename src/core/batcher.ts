/**
 * Joins the requests of concurrent callers: what is asked for while a request is on its way travels together in the next.
 *
 * A lane is idle → nothing is on its way: what comes is sent at the end of this turn of the event loop, with all that came in it
 *           busy → what comes is gathered, and sent when the answer is there, or when that takes too long
 *
 * Renewals have a lane of their own, so that nothing delays them. What may go wrong stays with whom it concerns:
 * - One bad claim never fails its neighbours: if a request as a whole is refused for good, each is asked for alone.
 * - A request that hangs blocks nobody: after a short while the lane goes on without it.
 * - The order per claim is kept. A release takes back what of its claim is still unsent, and waits for what is on its way: a claim
 *   that comes after its own release would be one that nobody knows of.
 */
import { answered, asHoldfastError } from './answer.js'
import type { Backend, Claim, ClaimState, ReleaseState, Renewal, RenewState } from './backend.js'
import type { Clock, Timer } from './clock.js'
import { BackendError, LockNotHeldError } from './errors.js'

/** A request of this many takes the store a millisecond or two, in which it serves nobody else. */
const MOST_CLAIMS = 128
const MOST_RENEWALS = 1_000
/** So long a lane waits for an answer before it goes on without it. */
const HUNG_MS = 20

type Send<Item, State> = (items: readonly Item[]) => Promise<readonly State[]>

export class Batcher {
  readonly #backend: Backend
  readonly #clock: Clock
  readonly #work: Lane
  readonly #renewals: Lane
  readonly #release: Send<Claim, ReleaseState>
  readonly #queue: Send<Claim, ClaimState>
  readonly #leave: Send<Claim, ClaimState>
  readonly #renew: Send<Renewal, RenewState>
  /** The latest request of each claim, until it is answered. */
  readonly #asked = new Map<string, Call<Claim, ClaimState>>()

  constructor(backend: Backend, clock: Clock) {
    this.#backend = backend
    this.#clock = clock
    this.#release = (claims) => backend.release(claims)
    this.#queue = (claims) => backend.claim(claims, 'queue')
    this.#leave = (claims) => backend.claim(claims, 'leave')
    this.#renew = (renewals) => backend.renew(renewals)
    // Releases go first: they may free what is asked for in the same breath.
    this.#work = new Lane([this.#release, this.#queue, this.#leave], MOST_CLAIMS, backend, clock, (call) => {
      const { id } = call.item as Claim
      if (this.#asked.get(id) === call) this.#asked.delete(id)
    })
    this.#renewals = new Lane([this.#renew], MOST_RENEWALS, backend, clock)
  }

  claim(claim: Claim, ifBusy: 'queue' | 'leave'): Promise<ClaimState> {
    const call = new Call(claim, ifBusy === 'queue' ? this.#queue : this.#leave)
    this.#asked.set(claim.id, call)
    return this.#work.add(call)
  }

  release(claim: Claim): Promise<ReleaseState> {
    const asked = this.#asked.get(claim.id)
    const release = () => this.#work.add(new Call(claim, this.#release))
    this.#renewals.takeBack(claim, ({ item }) => (item as Renewal).claim.id === claim.id)
    if (!asked || this.#work.takeBack(claim, (call) => call === asked)) return release()
    return answered(asked.answer, this.#clock, this.#backend).then(release, release)
  }

  renew(renewal: Renewal): Promise<RenewState> {
    return this.#renewals.add(new Call(renewal, this.#renew))
  }

  /** They are gathered already. */
  renewAll(renewals: readonly Renewal[]): Promise<readonly RenewState[]> {
    return this.#backend.renew(renewals)
  }
}

/** One item of a request, and the promise of its state. */
class Call<Item, State> {
  readonly item: Item
  readonly send: Send<Item, State>
  readonly answer: Promise<State>
  resolve!: (state: State) => void
  reject!: (error: unknown) => void

  constructor(item: Item, send: Send<Item, State>) {
    this.item = item
    this.send = send
    this.answer = new Promise((resolve, reject) => {
      this.resolve = resolve
      this.reject = reject
    })
  }
}

type AnyCall = Call<any, any>

/** Requests that were sent together. */
interface Flight {
  readonly sentAt: number
  unanswered: number
}

class Lane {
  /** What travels together is sent in this order. */
  readonly #order: readonly Send<any, any>[]
  readonly #most: number
  readonly #backend: Backend
  readonly #clock: Clock
  readonly #settled: ((call: AnyCall) => void) | undefined
  #unsent: AnyCall[] = []
  /** What the lane waits for. */
  #flight: Flight | undefined
  #isDue = false
  #hung: Timer | undefined

  constructor(order: readonly Send<any, any>[], most: number, backend: Backend, clock: Clock, settled?: (call: AnyCall) => void) {
    this.#order = order
    this.#most = most
    this.#backend = backend
    this.#clock = clock
    this.#settled = settled
  }

  add<State>(call: Call<any, State>): Promise<State> {
    this.#unsent.push(call)
    if (!this.#flight) this.#flushSoon()
    else if (!this.#isDue && !this.#hung) this.#flushIfItHangs(this.#flight)
    return call.answer
  }

  #flushIfItHangs(flight: Flight): void {
    const leftMs = flight.sentAt + HUNG_MS - this.#clock.now()
    if (leftMs <= 0) this.#flushSoon()
    else this.#hung = this.#clock.timer(leftMs, () => this.#flush(), 'background')
  }

  /** What is unsent of a claim that is released is not sent any more; whether there was any. */
  takeBack({ resource }: Claim, isIt: (call: AnyCall) => boolean): boolean {
    const taken = this.#unsent.filter(isIt)
    if (taken.length === 0) return false
    this.#unsent = this.#unsent.filter((call) => !taken.includes(call))
    const error = new LockNotHeldError(resource, `"${resource}" was released meanwhile.`)
    for (const call of taken) this.#settle(call, { status: 'failed', error })
    return true
  }

  /** When everything has run that the last answers have set going: all that it asks for can travel together. */
  #flushSoon(): void {
    if (this.#isDue) return
    this.#isDue = true
    process.nextTick(() => this.#flush())
  }

  #flush(): void {
    this.#isDue = false
    this.#hung?.cancel()
    this.#hung = undefined
    const calls = this.#unsent
    if (calls.length === 0) return
    this.#unsent = []
    const flight = { sentAt: this.#clock.now(), unanswered: 0 }
    this.#flight = flight
    for (const send of this.#order) {
      const its = calls.every((call) => call.send === send) ? calls : calls.filter((call) => call.send === send)
      for (let i = 0; i < its.length; i += this.#most) this.#send(its.length > this.#most ? its.slice(i, i + this.#most) : its, flight)
    }
  }

  #send(calls: readonly AnyCall[], flight: Flight): void {
    flight.unanswered++
    this.#request(calls).then(
      (states) => {
        for (let i = 0; i < calls.length; i++) this.#settle(calls[i]!, states[i])
        this.#landed(flight)
      },
      (error: unknown) => {
        const isForGood = !(error instanceof BackendError && error.transient)
        if (isForGood && calls.length > 1) {
          for (const call of calls) this.#send([call], flight)
        } else {
          for (const call of calls) this.#fail(call, error)
        }
        this.#landed(flight)
      },
    )
  }

  #request(calls: readonly AnyCall[]): Promise<readonly unknown[]> {
    try {
      return calls[0]!.send(calls.map(({ item }) => item))
    } catch (error) {
      return Promise.reject(asHoldfastError(error, this.#backend))
    }
  }

  #landed(flight: Flight): void {
    if (--flight.unanswered > 0 || this.#flight !== flight) return
    this.#flight = undefined
    if (this.#unsent.length > 0) this.#flushSoon()
  }

  #settle(call: AnyCall, state: unknown): void {
    this.#settled?.(call)
    call.resolve(state)
  }

  #fail(call: AnyCall, error: unknown): void {
    this.#settled?.(call)
    call.reject(error)
  }
}
