/**
 * Joins steps into transactions of etcd: what is asked for in one turn of the event loop travels together.
 *
 * - Releases go first. A claim that came before them would be told that what is about to go is still in its way, and no watch that
 *   begins after the transaction would ever tell it otherwise.
 * - All that is created in one transaction has one revision. So two claims on one resource never share one: both would be first.
 * - Conditions are joined, too: the common case is that all of them are true. If one is not, nothing has happened, and each step is
 *   sent with its own, in a transaction within the transaction, or in a way that is certain; and so is what comes next, for a while.
 * - What is wrong with one step (a lease that is gone, a key that is forbidden) fails the whole: then releases are sent by themselves,
 *   claims by their leases, and at last each alone. What fails for want of space may all have been carried out: of that only what takes
 *   none is sent again, and what has a condition of its own.
 */
import { promised, type Asker } from './askers.js'
import type { EtcdClient } from './client/client.js'
import { CODE, EtcdError } from './client/errors.js'
import type { Compare, RequestOp, ResponseOp, TxnRequest, TxnResponse } from './client/messages.js'
import type { Directories, Directory } from './directories.js'
import { isNoSpace } from './errors.js'
import type { OwnClaim } from './own-claim.js'

export interface Step {
  readonly kind: 'release' | 'claim' | 'other'
  readonly compare?: readonly Compare[] | undefined
  readonly success: readonly RequestOp[]
  readonly failure?: readonly RequestOp[]
  /** Whether its condition is nearly always true, so that it can be joined with others'. */
  readonly isLikely?: boolean
  /** Whether it is only false if the step itself was carried out before. */
  readonly isCertain?: boolean
  /** What is asked where others' conditions are not to be joined. */
  readonly otherwise?: () => Step
  /** Of a claim: where its key is, and whether it is still wanted. */
  readonly directory?: Directory
  readonly own?: Pick<OwnClaim, 'isLeaving'>
  readonly lease?: bigint
}

export interface Outcome {
  /** Whether its condition was true. */
  readonly succeeded: boolean
  readonly responses: readonly ResponseOp[]
  readonly revision: bigint
  /** What came of an earlier try is not known. */
  readonly isRepeated?: boolean
}

export interface Pending {
  readonly step: Step
  readonly asker: Asker<Outcome>
}

/** What a server takes by default. What is within counts, too: as many with conditions of their own are halved when it refuses them. */
const MOST_OPERATIONS = 128

/** So many are sent without joined conditions after one whose were not all true: where many are at the same keys, most would be sent twice. */
const WARY_FOR = 10

/** Which conditions are joined: those that are likely, only those that are certain, or none. */
type Joining = 'likely' | 'certain' | 'none'

const UNWANTED = new EtcdError('It was let go of before it was sent.', { code: CODE.cancelled, reason: 'other', transient: true })

const RESOLVED = Promise.resolve()

export class Txns {
  readonly #client: Pick<EtcdClient, 'txn'>
  readonly #directories: Pick<Directories, 'tidy'>
  #pending: Pending[] = []
  #wary = 0

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
    const pending = this.#wanted()
    if (pending.length === 0) return
    if (pending.length === 1) return void this.#send(pending.map(carefully), 'certain')
    const releases = pending.filter(isRelease)
    const isMixed = releases.length > 0 && releases.length < pending.length
    const ordered = isMixed ? [...releases, ...pending.filter((one) => !isRelease(one))] : pending
    if (this.#wary > 0) {
      this.#wary--
      void this.#sendCarefully(ordered, false)
    } else {
      for (const part of parts(ordered)) void this.#send(part, 'likely')
    }
  }

  /** What was let go of while it waited for others is not sent any more: it would come after its own release. */
  #wanted(): Pending[] {
    const pending = this.#pending
    this.#pending = []
    if (!pending.some(isUnwanted)) return pending
    this.#fail(pending.filter(isUnwanted), UNWANTED)
    return pending.filter((one) => !isUnwanted(one))
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

  async #sendCarefully(pending: readonly Pending[], isRepeated: boolean): Promise<void> {
    await Promise.all(parts(pending.map(carefully)).map((part) => this.#send(part, 'certain', isRepeated)))
  }

  async #send(part: readonly Pending[], joined: Joining, isRepeated = false): Promise<void> {
    let answer: TxnResponse
    try {
      answer = await this.#client.txn(requestOf(part, joined))
    } catch (error) {
      return this.#failed(part, error, joined, isRepeated)
    }
    if (!answer.succeeded) {
      if (joined === 'certain') return this.#send(part, 'none', isRepeated)
      this.#wary = WARY_FOR
      return this.#sendCarefully(part, isRepeated)
    }
    for (const pending of part) this.#isOver(pending)
    let at = 0
    for (const { step, asker } of part) {
      const ops = opsOf(step, joined)
      const responses = answer.responses.slice(at, at + ops.length)
      at += ops.length
      const [own] = responses
      const { revision } = answer
      tell(asker, own?.kind === 'txn' ? { ...own, revision, isRepeated } : { succeeded: true, responses, revision, isRepeated })
    }
  }

  async #failed(part: readonly Pending[], error: unknown, joined: Joining, isRepeated: boolean): Promise<void> {
    if (isNoSpace(error)) {
      // 3.4 does not look for it within the transactions of a transaction.
      const isFlat = ({ step }: Pending) => isJoined(step, joined) && takesSpace(step.success)
      const isRefused = part.some(isFlat) ? isFlat : ({ step }: Pending) => takesSpace(step.success)
      const rest = part.filter((one) => !isRefused(one))
      if (rest.length > 0 && rest.length < part.length) void this.#send(rest, joined, true)
      return this.#fail(rest.length < part.length ? part.filter(isRefused) : part, error)
    }
    const isRefused = error instanceof EtcdError && !error.mayBeDone && !error.transient
    if (!isRefused || part.length === 1) return this.#fail(part, error)
    const smaller = divided(part, error)
    // What comes after releases waits for them; all else need not wait for one that is not answered.
    const isMixed = isRelease(part[0]!) && !isRelease(part.at(-1)!)
    if (isMixed) for (const one of smaller) await this.#send(one, joined, isRepeated)
    else await Promise.all(smaller.map((one) => this.#send(one, joined, isRepeated)))
  }

  #fail(part: readonly Pending[], error: unknown): void {
    for (const pending of part) this.#isOver(pending)
    for (const { asker } of part) asker.failed(error)
  }
}

function requestOf(part: readonly Pending[], joined: Joining): TxnRequest {
  const compare: Compare[] = []
  const success: RequestOp[] = []
  for (const { step } of part) {
    if (step.compare && isJoined(step, joined)) for (const one of step.compare) compare.push(one)
    for (const one of opsOf(step, joined)) success.push(one)
  }
  return { compare, success }
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

function isUnwanted({ step: { own } }: Pending): boolean {
  return own !== undefined && own.isLeaving
}

function takesSpace(ops: readonly RequestOp[]): boolean {
  return ops.some((op) => op.kind === 'put' || (op.kind === 'txn' && takesSpace(op.success ?? [])))
}

/** Of a claim: of those in one directory one is on its way at a time. */
function directoryOf({ step: { kind, directory } }: Pending): Directory | undefined {
  return kind === 'claim' ? directory : undefined
}

function carefully(pending: Pending): Pending {
  const { step: { otherwise }, asker } = pending
  return otherwise ? { step: otherwise(), asker } : pending
}

function isJoined({ compare, isLikely = false, isCertain = false }: Step, joined: Joining): boolean {
  return !compare || (joined === 'likely' && isLikely) || (joined === 'certain' && isCertain)
}

/** What is sent of it. */
function opsOf(step: Step, joined: Joining): readonly RequestOp[] {
  const { compare = [], success, failure = [] } = step
  return isJoined(step, joined) ? success : [{ kind: 'txn', compare, success, failure }]
}

function parts(pending: readonly Pending[]): Pending[][] {
  const all: Pending[][] = []
  let size = MOST_OPERATIONS
  for (const one of pending) {
    const its = sizeOf(one.step)
    if (size + its > MOST_OPERATIONS) {
      all.push([])
      size = 0
    }
    all.at(-1)!.push(one)
    size += its
  }
  return all
}

/** Comparisons are counted by themselves. */
function sizeOf({ success, compare = [], failure = [] }: Step): number {
  return Math.max(success.length, compare.length, failure.length)
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
