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
import { promised, type Asker } from './askers.js'
import type { EtcdClient } from './client/client.js'
import { EtcdError } from './client/errors.js'
import type { Compare, RequestOp, ResponseOp, TxnResponse } from './client/messages.js'
import type { Directories, Directory } from './directories.js'

export interface Step {
  readonly kind: 'release' | 'claim' | 'other'
  readonly compare?: readonly Compare[] | undefined
  readonly success: readonly RequestOp[]
  readonly failure?: readonly RequestOp[]
  /** Whether its condition is nearly always true, so that it can be joined with others'. */
  readonly isLikely: boolean
  /** Of a claim: where its key is. */
  readonly directory?: Directory
  readonly lease?: bigint
}

export interface Outcome {
  /** Whether its condition was true. */
  readonly succeeded: boolean
  readonly responses: readonly ResponseOp[]
  readonly revision: bigint
}

export interface Pending {
  readonly step: Step
  readonly asker: Asker<Outcome>
}

/** What a server takes by default. What is within counts, too: as many with conditions of their own are halved when it refuses them. */
const MOST_OPERATIONS = 128

const RESOLVED = Promise.resolve()

export class Txns {
  readonly #client: Pick<EtcdClient, 'txn'>
  readonly #directories: Pick<Directories, 'tidy'>
  #pending: Pending[] = []

  constructor(client: Pick<EtcdClient, 'txn'>, directories: Pick<Directories, 'tidy'>) {
    this.#client = client
    this.#directories = directories
  }

  run(step: Step): Promise<Outcome> {
    return promised((asker) => this.ask(step, asker))
  }

  ask(step: Step, asker: Asker<Outcome>): void {
    const pending: Pending = { step, asker }
    const directory = directoryOf(pending)
    if (directory?.isAsked) return void (directory.unsent ??= []).push(pending)
    if (directory) directory.isAsked = true
    this.#add(pending)
  }

  #add(pending: Pending): void {
    // A promise, since queueMicrotask() makes an object for whoever looks at asynchronous calls each time.
    if (this.#pending.length === 0) void RESOLVED.then(this.#flush)
    this.#pending.push(pending)
  }

  readonly #flush = (): void => {
    const pending = this.#pending
    this.#pending = []
    if (pending.length === 1) return void this.#send(pending, true)
    const releases = pending.filter(isRelease)
    const isMixed = releases.length > 0 && releases.length < pending.length
    const ordered = isMixed ? [...releases, ...pending.filter((one) => !isRelease(one))] : pending
    for (const part of parts(ordered)) void this.#send(part, true)
  }

  /** It is answered: the next claim in its directory may go. */
  #isOver(pending: Pending): void {
    const directory = directoryOf(pending)
    if (!directory) return
    const next = directory.unsent?.shift()
    if (next) return this.#add(next)
    directory.isAsked = false
    this.#directories.tidy(directory)
  }

  async #send(part: readonly Pending[], together: boolean): Promise<void> {
    const compare: Compare[] = []
    const success: RequestOp[] = []
    for (const { step } of part) {
      if (together && step.isLikely) {
        if (step.compare) for (const one of step.compare) compare.push(one)
        for (const one of step.success) success.push(one)
      } else {
        success.push(nested(step))
      }
    }
    let answer: TxnResponse
    try {
      answer = await this.#client.txn({ compare, success })
    } catch (error) {
      return this.#failed(part, error, together)
    }
    if (!answer.succeeded) return this.#send(part, false)
    for (const pending of part) this.#isOver(pending)
    const { revision } = answer
    let at = 0
    for (const { step, asker } of part) {
      if (together && step.isLikely) {
        tell(asker, { succeeded: true, responses: answer.responses.slice(at, at + step.success.length), revision })
        at += step.success.length
      } else {
        const { succeeded, responses } = answer.responses[at++] as TxnResponse
        tell(asker, { succeeded, responses, revision })
      }
    }
  }

  async #failed(part: readonly Pending[], error: unknown, together: boolean): Promise<void> {
    const isRefused = error instanceof EtcdError && !error.mayBeDone && !error.transient
    if (!isRefused || part.length === 1) {
      for (const pending of part) this.#isOver(pending)
      for (const { asker } of part) asker.failed(error)
      return
    }
    const smaller = divided(part, error)
    // What comes after releases waits for them; all else need not wait for one that is not answered.
    const isMixed = isRelease(part[0]!) && !isRelease(part.at(-1)!)
    if (isMixed) for (const one of smaller) await this.#send(one, together)
    else await Promise.all(smaller.map((one) => this.#send(one, together)))
  }
}

/** What one makes of it is no concern of the others'. */
function tell(asker: Asker<Outcome>, outcome: Outcome): void {
  try {
    asker.answered(outcome)
  } catch (error) {
    asker.failed(error)
  }
}

function isRelease({ step }: Pending): boolean {
  return step.kind === 'release'
}

/** Of a claim: of those in one directory one is on its way at a time. */
function directoryOf({ step: { kind, directory } }: Pending): Directory | undefined {
  return kind === 'claim' ? directory : undefined
}

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
