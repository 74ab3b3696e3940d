/**
 * What a session has of one resource: all its mutexes and elections there share it, as they share one key on etcd.
 *
 *   free → waiting → held → free
 *   free → trying  → held | free
 *
 * Whoever comes while it is held has it, too; whoever comes while others of the session wait joins them. A wait goes on for as long
 * as anybody wants it. One after the other: what is being tried or released is over before the next is asked for.
 */
import { onAbort, orAborted } from '../core/abort.js'
import type { Claims } from '../core/claims.js'
import { LockedError, type HoldfastError } from '../core/errors.js'
import { Hold } from '../core/hold.js'
import { locked } from '../core/refusal.js'
import type { ClaimRequest } from '../core/waiter.js'
import { ONE_OF_ONE } from './lock.js'

/** What kind of use, and what to say to all who look. */
export interface Entry {
  readonly type: 'mutex' | 'election'
  readonly value?: string
}

/** What it needs from its session. */
export interface MemberSurroundings {
  readonly claims: Claims
  /** Throws if the session has ended, as far as can be told at this moment. */
  assertAlive(): void
  isAlive(): boolean
  /** It has ended, and nothing of it was released. */
  isLeft(): boolean
  /** What a claim in its name asks for. */
  request(entry: Entry, waitMs: number, signal?: AbortSignal): ClaimRequest
  /** What the session had of a resource before it was taken up here. */
  takeUp(resource: string): Promise<Hold | undefined>
  /** It may be forgotten, if nobody has it by now. */
  isFree(member: Member): void
}

interface Joiner {
  readonly resolve: (hold: Hold) => void
  readonly reject: (reason: unknown) => void
  stop(): void
}

export class Member {
  readonly resource: string
  readonly #session: MemberSurroundings
  /** What was said last in the name of what it holds. Null if that is not known. */
  said: string | null | undefined
  #hold: Hold | undefined
  #wait: Wait | undefined
  /** What has to be over before anything else is asked for. */
  #trying: Promise<unknown> | undefined
  #callers = 0

  constructor(resource: string, session: MemberSurroundings) {
    this.resource = resource
    this.#session = session
  }

  /** As its users know it. */
  get #name(): string {
    return this.resource.slice(0, -1)
  }

  /** Waits for it. */
  enter(entry: Entry, signal: AbortSignal | undefined): Promise<Hold> {
    return this.#use(signal, () => {
      this.#wait ??= this.#startWait(entry)
      return this.#wait.join(signal)
    })
  }

  /** Tries once. */
  tryToEnter(entry: Entry, signal: AbortSignal | undefined): Promise<Hold> {
    return this.#use(signal, async () => {
      if (this.#wait) throw new LockedError(this.#name, `Lock not acquired: "${this.#name}" is held by another, and this session waits for it already.`)
      return this.#alone(this.#try(entry, signal))
    })
  }

  async #alone<T>(trying: Promise<T>): Promise<T> {
    this.#trying = trying
    try {
      return await trying
    } finally {
      this.#trying = undefined
    }
  }

  /** What it holds, or what comes of `ask` if it holds nothing. */
  async #use(signal: AbortSignal | undefined, ask: () => Promise<Hold>): Promise<Hold> {
    this.#callers++
    try {
      for (;;) {
        const found = this.#look(signal)
        if (found instanceof Hold) return found
        // At once, so that nothing comes between.
        if (!found) return await ask()
        await orAborted(found, signal)
      }
    } finally {
      this.#callers--
      this.#session.isFree(this)
    }
  }

  /** Gives back what it held. If that fails, it can be tried again. → whether it was ours */
  async leave(hold: Hold): Promise<boolean> {
    const wasOurs = await hold.release()
    this.#ended(hold)
    return wasOurs
  }

  /** Whether nobody has it, waits for it or asks for it. */
  get isFree(): boolean {
    return !this.#hold && !this.#wait && !this.#trying && this.#callers === 0
  }

  /** What it holds; or what has to be over first; or nothing. */
  #look(signal: AbortSignal | undefined): Hold | Promise<unknown> | undefined {
    this.#session.assertAlive()
    signal?.throwIfAborted()
    const hold = this.#hold
    if (hold?.isHeld) return hold
    if (this.#trying) return this.#trying.catch(() => {})
    // If it was not certainly released it would be in its own way.
    return hold && this.leave(hold)
  }

  #ended(hold: Hold): void {
    if (this.#hold === hold) this.#hold = undefined
    this.#session.isFree(this)
  }

  async #try(entry: Entry, signal: AbortSignal | undefined): Promise<Hold> {
    const before = await this.#session.takeUp(this.resource)
    if (before) return this.#keep(before, 'taken up')
    const { claims } = this.#session
    return claims.acquire(this.resource, ONE_OF_ONE, this.#session.request(entry, 0, signal), (result) => {
      if (result instanceof Hold) return this.#keep(result)
      throw locked(this.#name, result, claims.owner)
    })
  }

  #startWait(entry: Entry): Wait {
    const wait = new Wait(() => this.#isOver(wait))
    this.#pursue(entry, wait).catch((error: unknown) => {
      this.#isOver(wait)
      wait.failed(error)
    })
    return wait
  }

  async #pursue(entry: Entry, wait: Wait): Promise<void> {
    // Two who take it up would have one claim, and one of them might release it.
    const takenUp = this.#session.takeUp(this.resource).then((before) => {
      if (before) this.#held(before, wait, 'taken up')
      return before
    })
    if (await this.#alone(takenUp)) return
    // All who wanted it may have gone meanwhile.
    if (this.#wait !== wait) return this.#session.isFree(this)
    const request = this.#session.request(entry, Infinity, wait.signal)
    await this.#session.claims.acquire(this.resource, ONE_OF_ONE, request, (result) => this.#held(result as Hold, wait))
  }

  #held(hold: Hold, wait: Wait, from?: 'taken up'): void {
    const isWanted = this.#wait === wait
    this.#keep(hold, from)
    this.#isOver(wait)
    if (isWanted) wait.held(hold)
    else this.leave(hold).catch(() => hold.abandon())
  }

  #isOver(wait: Wait): void {
    if (this.#wait === wait) this.#wait = undefined
    this.#session.isFree(this)
  }

  #keep(hold: Hold, from?: 'taken up'): Hold {
    hold.holder = this
    this.#hold = hold
    this.said = undefined
    // The session may have ended while it was asked for.
    try {
      this.#session.assertAlive()
    } catch (error) {
      if (from === 'taken up' && this.#session.isLeft()) this.#leaveAlone(hold, error as HoldfastError)
      else this.#giveBack(hold, error as HoldfastError)
      throw error
    }
    hold.onEnd(() => {
      // Or it would be in the way of others for as long as the session lives, and go on under its fence when that asks again.
      if (hold.isLost && this.#session.isAlive()) hold.letGo()
      this.#ended(hold)
    })
    return hold
  }

  #giveBack(hold: Hold, reason: HoldfastError): void {
    hold.closing(reason)
    this.leave(hold).catch(() => hold.abandon())
  }

  /** It had been the session's before, and is for whoever takes that up next. */
  #leaveAlone(hold: Hold, reason: HoldfastError): void {
    hold.orphan(reason)
    this.#ended(hold)
  }

  /** The session has ended without releasing anything. */
  orphan(reason: HoldfastError): void {
    this.#wait?.cancel(reason)
    this.#hold?.orphan(reason)
  }

  /** The manager is being closed, and releases what it holds. */
  cancel(reason: HoldfastError): void {
    this.#wait?.cancel(reason)
  }

  /** The session is being closed. */
  async close(reason: HoldfastError, free: (hold: Hold) => Promise<void>): Promise<void> {
    this.#wait?.cancel(reason)
    const hold = this.#hold
    if (!hold) return
    // It is forgotten as soon as it ends.
    hold.closing(reason)
    await free(hold)
  }
}

/** Those of a session who wait for the same thing. */
class Wait {
  readonly #joiners = new Set<Joiner>()
  readonly #controller = new AbortController()
  readonly #onDeserted: () => void

  /** `onDeserted`: nobody waits any more. */
  constructor(onDeserted: () => void) {
    this.#onDeserted = onDeserted
  }

  /** Aborts when nobody waits any more. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  join(signal: AbortSignal | undefined): Promise<Hold> {
    return new Promise((resolve, reject) => {
      const joiner: Joiner = { resolve, reject, stop: signal ? onAbort(signal, () => this.#leave(joiner, signal.reason)) : () => {} }
      this.#joiners.add(joiner)
    })
  }

  held(hold: Hold): void {
    for (const joiner of this.#all()) joiner.resolve(hold)
  }

  failed(reason: unknown): void {
    for (const joiner of this.#all()) joiner.reject(reason)
  }

  cancel(reason: unknown): void {
    this.#onDeserted()
    this.failed(reason)
    this.#controller.abort(reason)
  }

  #leave(joiner: Joiner, reason: unknown): void {
    joiner.stop()
    this.#joiners.delete(joiner)
    if (this.#joiners.size === 0) this.cancel(reason)
    joiner.reject(reason)
  }

  #all(): Joiner[] {
    const all = [...this.#joiners]
    this.#joiners.clear()
    for (const joiner of all) joiner.stop()
    return all
  }
}
