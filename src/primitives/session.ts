/**
 * A session is what mutexes and elections live by: a claim of its own that is renewed for as long as the process lives, under a
 * number (`lease`) by which another process can take it up. What the session holds are claims with its TTL; they end when it does.
 *
 *   alive → closed     all that it holds is released
 *         → orphaned   all that it holds is left to expire, or to whoever takes the session up by its lease
 *         → expired    the same, since it could not be renewed in time, or was taken up by another process
 *         → over       with its manager, which releases all that there is
 */
import { randomBytes } from 'node:crypto'
import { onAbort, truthfulController } from '../core/abort.js'
import type { Board, Leased } from '../core/backend.js'
import type { Claims } from '../core/claims.js'
import { ConfigurationError, OwnershipLostError, SessionExpiredError, type HoldfastError } from '../core/errors.js'
import type { Hold } from '../core/hold.js'
import { checkKey } from '../core/key.js'
import { checkNames, checkSignal, checkTtl } from '../core/options.js'
import { ONE_OF_ONE } from './lock.js'
import { Member, type MemberSurroundings } from './member.js'
import { requestOf, takeUp } from './session-note.js'

export interface SessionOptions {
  /** How long it lives without renewal: if this process dies, others get what it held after that. Default: 60,000. */
  readonly ttlMs?: number
  /** Takes up the session that has this lease, with all that it holds. */
  readonly lease?: bigint
  /** Closes the session when it aborts. */
  readonly signal?: AbortSignal
}

const SESSION_OPTIONS: readonly (keyof SessionOptions)[] = ['ttlMs', 'lease', 'signal']
const TTL_MS = 60_000
const LARGEST_LEASE = 2n ** 63n - 1n

/** What sessions and elections need of their manager. */
export interface ManagerSurroundings {
  readonly claims: Claims
  readonly board: Board
  readonly retryMs: number
  /** Aborts when the manager closes. */
  readonly closing: AbortSignal
}

/** The sessions of one manager. */
export class Sessions {
  readonly #around: ManagerSurroundings
  readonly #live = new Map<bigint, Session>()
  /** Who comes meanwhile has the same. */
  readonly #takingUp = new Map<bigint, Promise<Session>>()

  constructor(around: ManagerSurroundings) {
    this.#around = around
  }

  async open(options: SessionOptions = {}): Promise<Session> {
    checkNames('session', options, SESSION_OPTIONS)
    const { lease, signal } = options
    // Not positive is the default, as etcd's own client has it.
    const ttlMs = typeof options.ttlMs === 'number' && options.ttlMs <= 0 ? TTL_MS : (options.ttlMs ?? TTL_MS)
    checkTtl(ttlMs)
    if (signal !== undefined) checkSignal(signal)
    if (lease !== undefined) checkLease(lease)
    signal?.throwIfAborted()
    const session = lease === undefined ? await this.#begin(newLease(), ttlMs, signal) : await this.#takeUpOnce(lease)
    if (signal) session.follow(signal)
    return session
  }

  /** One of whose end somebody else takes care: `signal` ends the wait for it, and nothing more. */
  begin(ttlMs: number, signal: AbortSignal): Promise<Session> {
    return this.#begin(newLease(), ttlMs, signal)
  }

  async #begin(lease: bigint, ttlMs: number, signal: AbortSignal | undefined, isTakenUp = false): Promise<Session> {
    const { claims, retryMs } = this.#around
    const leased: Leased = { id: lease, role: 'session', isTakenUp }
    const request = requestOf(claims.owner, leased, { ttlMs, retryMs, type: 'session', waitMs: Infinity, signal })
    const use = (result: Hold | object) => this.#keep(new Session(this.#around, lease, result as Hold, isTakenUp))
    return claims.acquire(resourceOf(lease), ONE_OF_ONE, request, use)
  }

  #takeUpOnce(lease: bigint): Promise<Session> {
    let taking = this.#takingUp.get(lease)
    if (!taking) {
      taking = this.#takeUp(lease).finally(() => this.#takingUp.delete(lease))
      this.#takingUp.set(lease, taking)
    }
    return taking
  }

  /** A lease that is there no more is no error: the session has ended before it began. */
  async #takeUp(lease: bigint): Promise<Session> {
    const { claims } = this.#around
    const over = () => new Session(this.#around, lease)
    const live = this.#live.get(lease)
    // One that was left is forgotten a moment later only.
    if (live && !Session.isLeft(live)) return live
    if (claims.backend.leaseTtlMs) {
      claims.assertOpen()
      const ttlMs = await claims.answers.inTime(claims.backend.leaseTtlMs(lease))
      return ttlMs === undefined ? over() : this.#begin(lease, ttlMs, undefined, true)
    }
    const hold = await takeUp(claims, resourceOf(lease), { id: lease, role: 'session' })
    return hold ? this.#keep(new Session(this.#around, lease, hold, true)) : over()
  }

  #keep(session: Session): Session {
    const { lease } = session
    this.#live.set(lease, session)
    void session.done.then(() => {
      if (this.#live.get(lease) === session) this.#live.delete(lease)
    })
    return session
  }
}

export class Session implements AsyncDisposable {
  /** By which another process can take it up. On etcd it is a lease of etcd's. */
  readonly lease: bigint
  /** Resolves when the session has ended, whatever the reason. */
  readonly done: Promise<void>
  /** Aborts when the session has ended, with the reason. */
  readonly signal: AbortSignal
  readonly #around: ManagerSurroundings
  /** None if its lease was over when it was taken up. */
  readonly #hold: Hold | undefined
  readonly #isTakenUp: boolean
  readonly #members = new Map<string, Member>()
  readonly #controller: AbortController
  #isDone!: () => void
  #error: HoldfastError | undefined
  #ending: Promise<void> | undefined
  readonly #stopListening: (() => void)[] = []

  /** @internal */
  constructor(around: ManagerSurroundings, lease: bigint, hold?: Hold, isTakenUp = false) {
    this.lease = lease
    this.#around = around
    this.#hold = hold
    this.#isTakenUp = isTakenUp
    this.#controller = truthfulController(() => hold?.look())
    this.signal = this.#controller.signal
    this.done = new Promise((resolve) => (this.#isDone = resolve))
    if (hold) this.#live(hold)
    else this.#expired(new SessionExpiredError(`There is no session with the lease ${lease.toString(16)} any more.`))
  }

  /** What it has of a resource, or could have. Not a member, so that users do not see it. */
  static member(session: Session, resource: string): Member {
    let member = session.#members.get(resource)
    if (!member) session.#members.set(resource, (member = new Member(resource, session.#forMembers())))
    return member
  }

  #live(hold: Hold): void {
    hold.holder = this
    this.#stopListening.push(hold.onEnd((reason) => this.#lost(reason)))
    if (hold.error) this.#lost(hold.error)
  }

  #forMembers(): MemberSurroundings {
    const { claims, retryMs } = this.#around
    const { lease: id } = this
    return {
      claims,
      assertAlive: () => Session.assertAlive(this),
      isAlive: () => Session.isAlive(this),
      isLeft: () => Session.isLeft(this),
      request: ({ type, value }, waitMs, signal) => {
        const leased: Leased = { id, role: 'member', ...(value !== undefined && { value }) }
        const { ttlMs } = this.#hold!.claim
        return requestOf(claims.owner, leased, { ttlMs, retryMs, type, waitMs, signal })
      },
      // A store with leases of its own finds it when it is asked.
      takeUp: async (resource) => {
        return this.#isTakenUp && !claims.backend.leaseTtlMs ? takeUp(claims, resource, { id, role: 'member' }) : undefined
      },
      isFree: (member) => {
        if (member.isFree && this.#members.get(member.resource) === member) this.#members.delete(member.resource)
      },
    }
  }

  static around(session: Session): ManagerSurroundings {
    return session.#around
  }

  /** Timers can be late: whoever asks for the state of what it holds has it look first. */
  static look(session: Session): void {
    session.#hold?.look()
  }

  /** For what it holds: aborts when that is lost, or the session ends. */
  static controllerOf(session: Session, hold: Hold | undefined): AbortController {
    const controller = truthfulController(() => {
      Session.look(session)
      hold?.look()
    })
    const ended = session.signal.aborted ? (session.signal.reason as unknown) : undefined
    if (hold?.error ?? ended) controller.abort(hold?.error ?? ended)
    else if (hold) hold.onEnd((reason) => controller.abort(reason))
    else onAbort(session.signal, () => controller.abort(session.signal.reason))
    return controller
  }

  /** Throws if it has ended, as far as can be told at this moment. */
  static assertAlive(session: Session): void {
    Session.look(session)
    if (session.#error) throw session.#error
  }

  static isAlive(session: Session): boolean {
    Session.look(session)
    return session.#error === undefined
  }

  /** It has ended, and nothing of it was released. */
  static isLeft(session: Session): boolean {
    return !Session.isAlive(session) && !session.#ending
  }

  /** @internal Ends when `signal` aborts. */
  follow(signal: AbortSignal): void {
    const close = () => void this.close()
    if (signal.aborted) close()
    else this.#stopListening.push(onAbort(signal, close))
  }

  /** Leaves the session, and all that it holds, to expire: or to whoever takes it up by its lease. */
  orphan(): Promise<void> {
    if (!this.#error) {
      const reason = new SessionExpiredError('The session was orphaned.')
      this.#expired(reason, true)
      this.#hold!.orphan(reason)
    }
    return this.done
  }

  /** Releases all that the session holds, and ends it. A store that does not answer is not waited for long; then the TTL does it. */
  close(): Promise<void> {
    this.#ending ??= this.#error ? this.done : this.#close()
    return this.#ending
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #close(): Promise<void> {
    const reason = new SessionExpiredError('The session was closed.')
    const members = [...this.#members.values()]
    this.#end(reason)
    const hold = this.#hold!
    hold.closing(reason)
    const free = async (one: Hold) => {
      try {
        await one.release()
      } catch (error) {
        this.#around.claims.events.emit('release-failed', one.key, { error: error as HoldfastError })
        one.abandon()
      }
    }
    await Promise.all(members.map((member) => member.close(reason, free)))
    await free(hold)
    this.#isDone()
  }

  #lost(reason: HoldfastError): void {
    if (reason instanceof OwnershipLostError) {
      const message = `The session ${this.lease.toString(16)} has ended: it could not be renewed in time, or was taken away.`
      return this.#expired(new SessionExpiredError(message, { cause: reason }))
    }
    // The manager closes, and releases all that it holds by itself.
    this.#ended(reason, (member) => member.cancel(reason))
  }

  /** What it holds is not released: it may be another's by now, who has taken the session up. */
  #expired(reason: HoldfastError, isOurs = false): void {
    if (this.#error) return
    // First: whoever is told lets go of what it waits for. Nobody can tell that the session is not another's by now, unless it is we who leave it.
    const left = this.#hold && this.#around.claims.backend.leaveLease?.(this.lease, isOurs ? 'goes' : 'stays')
    this.#ended(reason, (member) => member.orphan(reason), left)
  }

  /** `left`: when that is so, others may take it up. */
  #ended(reason: HoldfastError, tell: (member: Member) => void, left?: Promise<void>): void {
    if (this.#error) return
    const members = [...this.#members.values()]
    this.#end(reason)
    for (const member of members) tell(member)
    if (left) void left.then(() => this.#isDone())
    else this.#isDone()
  }

  #end(reason: HoldfastError): void {
    this.#error = reason
    for (const stop of this.#stopListening) stop()
    this.#members.clear()
    this.#controller.abort(reason)
  }
}

function resourceOf(lease: bigint): string {
  return `session/${lease.toString(16)}`
}

function newLease(): bigint {
  return BigInt.asUintN(63, randomBytes(8).readBigUInt64BE()) || 1n
}

export interface WaitOptions {
  /** Ends the wait, and leaves nothing behind. */
  readonly signal?: AbortSignal
}

/** Of a call that waits. → its signal */
export function checkWaiting(options?: WaitOptions): AbortSignal | undefined {
  const signal = checkSignalIn(options)
  signal?.throwIfAborted()
  return signal
}

export function checkSignalIn(options: WaitOptions = {}): AbortSignal | undefined {
  checkNames('wait', options, ['signal'])
  if (options.signal !== undefined) checkSignal(options.signal)
  return options.signal
}

/** What a mutex or an election is made of. → the resource that it names */
export function checkPrefix(kind: 'Mutex' | 'Election', session: Session, prefix: string): string {
  if (!(session instanceof Session)) throw new ConfigurationError(`A ${kind} takes a session: new ${kind}(await locks.session(), prefix).`)
  const resource = `${prefix}/`
  checkKey(prefix)
  checkKey(resource)
  return resource
}

/** The name of what a session has of a resource; on etcd it is that of the key. */
export function memberKey(resource: string, lease: bigint): string {
  return `${resource}${lease.toString(16)}`
}

function checkLease(lease: unknown): void {
  if (typeof lease === 'bigint' && lease > 0n && lease <= LARGEST_LEASE) return
  throw new ConfigurationError(`lease is the lease of another session: a bigint, such as ${7587848390012345678n}n, not ${String(lease)}.`)
}
