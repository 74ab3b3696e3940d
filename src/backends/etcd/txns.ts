/**
 * Joins steps into transactions of etcd: what is asked for in one turn of the event loop travels together.
 *
 * - Releases go first. A claim that came before them would be told that what is about to go is still in its way, and no watch that
 *   begins after the transaction would ever tell it otherwise.
 * - All that is created in one transaction has one revision. So two claims on one resource never share one: both would be first.
 * - Conditions are joined, too: the common case is that all of them are true. If one is not, nothing has happened, and each step is
 *   sent with its own condition, in a transaction within the transaction.
 * - What is wrong with one step (a lease that is gone, a key that is forbidden, no space for what is new) fails the whole: then
 *   releases are sent by themselves, claims by their leases, and at last each alone.
 */
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import type { Compare, RequestOp, ResponseOp, TxnResponse } from './client/messages.js'

export interface Step {
  readonly kind: 'release' | 'claim' | 'other'
  readonly compare?: readonly Compare[]
  readonly success: readonly RequestOp[]
  readonly failure?: readonly RequestOp[]
  /** Whether its condition is nearly always true, so that it can be joined with others'. */
  readonly isLikely: boolean
  /** Of a claim: where its key is. */
  readonly directory?: string
  readonly lease?: bigint
}

export interface Outcome {
  /** Whether its condition was true. */
  readonly succeeded: boolean
  readonly responses: readonly ResponseOp[]
  readonly revision: bigint
}

interface Pending {
  readonly step: Step
  readonly resolve: (outcome: Outcome) => void
  readonly reject: (error: unknown) => void
}

/** The server's limit is 128, and what is within counts, too. */
const MOST_OPERATIONS = 120

export class Txns {
  readonly #client: Pick<EtcdClient, 'txn'>
  #pending: Pending[] = []
  /** Until when the next claim in a directory has to wait. */
  readonly #busy = new Map<string, Promise<unknown>>()

  constructor(client: Pick<EtcdClient, 'txn'>) {
    this.#client = client
  }

  run(step: Step): Promise<Outcome> {
    const { kind, directory } = step
    if (kind !== 'claim' || directory === undefined) return this.#add(step)
    const before = this.#busy.get(directory)
    const outcome = before ? before.then(() => this.#add(step)) : this.#add(step)
    const over = outcome.then(noMatter, noMatter)
    this.#busy.set(directory, over)
    void over.then(() => {
      if (this.#busy.get(directory) === over) this.#busy.delete(directory)
    })
    return outcome
  }

  #add(step: Step): Promise<Outcome> {
    return new Promise((resolve, reject) => {
      if (this.#pending.length === 0) queueMicrotask(() => this.#flush())
      this.#pending.push({ step, resolve, reject })
    })
  }

  #flush(): void {
    const pending = this.#pending
    this.#pending = []
    const ordered = [...pending.filter(isRelease), ...pending.filter((one) => !isRelease(one))]
    for (const part of parts(ordered)) void this.#send(part, true)
  }

  async #send(part: readonly Pending[], together: boolean): Promise<void> {
    const joined = together ? part.filter(({ step }) => step.isLikely) : []
    const compare = joined.flatMap(({ step }) => step.compare ?? [])
    const success = part.flatMap(({ step }) => (together && step.isLikely ? step.success : [nested(step)]))
    let answer: TxnResponse
    try {
      answer = await this.#client.txn({ compare, success })
    } catch (error) {
      return this.#failed(part, error, together)
    }
    if (!answer.succeeded) return this.#send(part, false)
    let at = 0
    for (const { step, resolve } of part) {
      const { revision } = answer
      if (together && step.isLikely) {
        resolve({ succeeded: true, responses: answer.responses.slice(at, at + step.success.length), revision })
        at += step.success.length
      } else {
        const { succeeded, responses } = answer.responses[at++] as TxnResponse
        resolve({ succeeded, responses, revision })
      }
    }
  }

  async #failed(part: readonly Pending[], error: unknown, together: boolean): Promise<void> {
    const isRefused = error instanceof EtcdError && !error.mayBeDone && !error.transient
    if (!isRefused || part.length === 1) {
      for (const { reject } of part) reject(error)
      return
    }
    for (const smaller of divided(part, error)) await this.#send(smaller, together)
  }
}

function isRelease({ step }: Pending): boolean {
  return step.kind === 'release'
}

function noMatter(): void {}

function nested({ compare = [], success, failure = [] }: Step): RequestOp {
  return { kind: 'txn', compare, success, failure }
}

function parts(pending: readonly Pending[]): Pending[][] {
  const all: Pending[][] = []
  let size = MOST_OPERATIONS
  for (const one of pending) {
    const { success, compare = [], failure = [] } = one.step
    const its = Math.max(success.length, compare.length, failure.length)
    if (size + its > MOST_OPERATIONS) {
      all.push([])
      size = 0
    }
    all.at(-1)!.push(one)
    size += its
  }
  return all
}

/** Into what may be wrong by itself. */
function divided(part: readonly Pending[], error: EtcdError): (readonly Pending[])[] {
  if (error.reason === 'too-many-operations' || error.reason === 'too-large') {
    const half = Math.ceil(part.length / 2)
    return [part.slice(0, half), part.slice(half)]
  }
  const releases = part.filter(isRelease)
  if (releases.length > 0 && releases.length < part.length) return [releases, part.filter((one) => !isRelease(one))]
  const leases = new Map<bigint | undefined, Pending[]>()
  for (const one of part) {
    const same = leases.get(one.step.lease)
    if (same) same.push(one)
    else leases.set(one.step.lease, [one])
  }
  return leases.size > 1 ? [...leases.values()] : part.map((one) => [one])
}
