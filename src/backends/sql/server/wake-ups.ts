/**
 * What the database tells this process: by a connection that listens, or, where that cannot be had or as long as it is not
 * there, left in a table that is looked at while something waits.
 *
 *   off     → nothing has waited yet, and nothing was held for long
 *   opening → a connection is being made; meanwhile it polls
 *   on      → it listens
 *   deaf    → there is no way to listen: it polls, for good
 *
 *   off → opening → on → opening → …;  opening → deaf
 *
 * Each time it comes on, something may have been missed, and everything that waits looks again.
 */
import type { Scope } from '../../../core/backend.js'
import type { ServerClock, Timer } from '../../../core/clock.js'
import { CannotListen, type Database, type Listening } from './database.js'
import { readNews } from './news.js'
import type { OwnClaims } from './own-claims.js'
import type { StepListener } from './steps.js'

const SOON_MS = 1_000
const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 2_000
/** A poll that finds nothing makes the next one later; the heartbeat looks, too. */
const SLOWER = 1.5
const SLOWEST_POLL_MS = 500
/** A grant that is not for the whole TTL has to last until it is renewed. If it is for less than this, it is asked for again instead. */
const ENOUGH_MS = 1_000

export class WakeUps implements StepListener {
  readonly #database: Database
  readonly #scope: Scope
  readonly #claims: OwnClaims
  readonly #serverClock: ServerClock
  readonly #readNews: () => Promise<readonly string[]>
  #state: 'off' | 'opening' | 'on' | 'deaf' = 'off'
  #listening: Listening | undefined
  #pauseMs = FIRST_PAUSE_MS
  #timer: Timer | undefined
  #poll: Timer | undefined
  #pollMs: number
  #isClosed = false

  constructor(database: Database, scope: Scope, claims: OwnClaims, serverClock: ServerClock, readNews: () => Promise<readonly string[]>) {
    this.#database = database
    this.#scope = scope
    this.#claims = claims
    this.#serverClock = serverClock
    this.#readNews = readNews
    this.#pollMs = scope.retryMs
    if (!database.listen) this.#state = 'deaf'
  }

  get hears(): boolean {
    return this.#state === 'on'
  }

  queued(resource: string, saidSo: boolean, isNearer: boolean): void {
    if (this.#state === 'off') this.#open()
    if (this.#state !== 'on') {
      // That somebody asks again at its heartbeat makes news no likelier, but that the line moves does.
      if (isNearer || !this.#poll) this.#startPolling()
    } else if (!saidSo) {
      // It came on while this was on its way: the database does not know, and would leave news that nobody reads any more.
      queueMicrotask(() => this.#wake(resource))
    }
  }

  /** Whoever holds a lock should hear when it is revoked; but a process that locks once and ends need not open a connection for that. */
  held(): void {
    if (this.#state !== 'off' || this.#timer || this.#isClosed) return
    this.#timer = this.#scope.clock.timer(SOON_MS, () => this.#open(), 'background')
  }

  passedOver(resource: string): void {
    queueMicrotask(() => this.#wake(resource))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#timer?.cancel()
    this.#poll?.cancel()
    await this.#listening?.close().catch(() => {})
  }

  #open(): void {
    this.#timer?.cancel()
    this.#timer = undefined
    if (this.#isClosed) return
    this.#state = 'opening'
    const listener = {
      onNews: (news: string) => this.#receive(news),
      onEnd: () => {
        if (this.#state === 'on') this.#openAgain()
      },
    }
    this.#database.listen!(this.#scope.owner, listener).then(
      (listening) => this.#opened(listening),
      (error: unknown) => {
        if (error instanceof CannotListen) this.#state = 'deaf'
        else this.#openAgain()
      },
    )
  }

  #opened(listening: Listening): void {
    if (this.#isClosed) return void listening.close().catch(() => {})
    this.#listening = listening
    this.#state = 'on'
    this.#pauseMs = FIRST_PAUSE_MS
    // With that they say that they can be told; and what was left for us until now is read once more.
    if (this.#claims.someWait) this.#wake()
    void this.#look()
  }

  /** The connection is gone. Perhaps it will be another server, with another clock. */
  #openAgain(): void {
    if (this.#isClosed) return
    this.#state = 'opening'
    this.#serverClock.forget()
    this.#timer = this.#scope.clock.timer(this.#pauseMs * (0.5 + Math.random() / 2), () => this.#open(), 'background')
    this.#pauseMs = Math.min(LONGEST_PAUSE_MS, this.#pauseMs * 2)
    if (this.#claims.someWait) this.#startPolling()
  }

  /** Somebody has come to wait, or nearer: it may be served soon. */
  #startPolling(): void {
    if (this.#poll && this.#pollMs <= this.#scope.retryMs) return
    this.#pollMs = this.#scope.retryMs
    this.#pollLater()
  }

  #pollLater(): void {
    this.#poll?.cancel()
    this.#poll = undefined
    if (this.#isClosed || this.#state === 'on' || !this.#claims.someWait) return
    // Never sooner than it was asked for, and not all processes at once.
    this.#poll = this.#scope.clock.timer(this.#pollMs * (1 + Math.random() / 4), () => void this.#look().then(() => this.#pollLater()), 'background')
  }

  async #look(): Promise<void> {
    try {
      const news = await this.#readNews()
      this.#pollMs = news.length > 0 ? this.#scope.retryMs : Math.min(Math.max(SLOWEST_POLL_MS, this.#scope.retryMs), this.#pollMs * SLOWER)
      for (const each of news) this.#receive(each)
    } catch {
      // Whoever waits asks by itself at the next heartbeat, and hears what is wrong.
      this.#pollMs = Math.max(SLOWEST_POLL_MS, this.#scope.retryMs)
    }
  }

  #wake(resource?: string): void {
    if (!this.#isClosed) this.#scope.wake({ kind: 'look', ...(resource !== undefined && { resource }) })
  }

  /** Anybody may notify a channel: what does not look like ours is nothing to us. */
  #receive(text: string): void {
    const news = readNews(text)
    const claim = news && this.#claims.named(news.name)
    if (!claim || this.#isClosed) return
    const { id: claimId, resource, ttlMs } = claim
    if (news.kind !== 'granted') return this.#scope.wake({ kind: news.kind, resource, claimId })
    const { epoch, at, forMs, waiting } = news
    // Times with fractions, whose last digits get lost.
    const isWhole = forMs > ttlMs - 1
    const since = isWhole || forMs >= ENOUGH_MS ? this.#serverClock.toLocal(at, this.#scope.clock.now()) : undefined
    this.#scope.wake({ kind: 'granted', resource, claimId, epoch, since, ...(!isWhole && { forMs }), waiting })
  }
}
