/**
 * The black hole: a holder's connection goes silent, its lock expires, and somebody else takes it. The holder is unhurt
 * and goes on working, so the question is whether it knows by then that it holds nothing.
 *
 * Written once for every library, so that what is asked of holdfast is exactly what others are seen to fail.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { startRedis } from './redis-server.js'
import { startProxy, type Proxy } from './tcp-proxy.js'

export interface Holder {
  /** Whether it would tell its user, if asked now, that the lock is lost. */
  lost(): boolean
  /** Ends it, whatever state it is in. */
  dispose(): Promise<void> | void
}

export interface Subject {
  /** Takes a lock with the TTL of the scenario and keeps renewing it. Resolves when it holds. */
  acquire(holderUrl: string, ttlMs: number): Promise<Holder>
  /** Resolves at the moment when another client holds the same lock, or rejects soon after the signal aborts. */
  intrude(directUrl: string, ttlMs: number, signal: AbortSignal): Promise<void>
}

export interface BlackHoleOptions {
  readonly ttlMs?: number
  /** `none` for the counter-check: with a sound network nobody may intrude. */
  readonly fault?: 'drop' | 'hold' | 'none'
  /** How long after the beginning the fault begins. Renewals go on until then. */
  readonly afterMs?: number
  /** How long to look on after the intruder has come. */
  readonly watchMs?: number
  /** How long to wait for the intruder. */
  readonly patienceMs?: number
  /** What the subject goes through; without it, there is a server for this one scenario. */
  readonly on?: Stage
}

interface Stage {
  /** In front of the holder, and not of the intruder. */
  readonly proxy: Proxy
  readonly holderUrl: string
  readonly directUrl: string
}

/** Times are counted from the beginning of the fault. */
export interface BlackHoleReport {
  /** Undefined if it did not get the lock. */
  readonly intruderAtMs: number | undefined
  /** Undefined if it never knew. */
  readonly lostAtMs: number | undefined
  /** What the holder said at the moment when the intruder had the lock. */
  readonly lostWhenIntruded: boolean
}

export async function blackHole(subject: Subject, options: BlackHoleOptions = {}): Promise<BlackHoleReport> {
  if (options.on) return perform(subject, options.on, options)
  await using redis = await startRedis()
  await using proxy = await startProxy({ to: redis })
  return await perform(subject, { proxy, holderUrl: proxy.url(), directUrl: redis.url }, options)
}

async function perform(subject: Subject, stage: Stage, options: BlackHoleOptions): Promise<BlackHoleReport> {
  const { ttlMs = 1_000, fault = 'drop', afterMs = 0, watchMs = ttlMs, patienceMs = ttlMs * 5 } = options
  const { proxy } = stage
  const giveUp = new AbortController()
  const holder = await subject.acquire(stage.holderUrl, ttlMs)
  try {
    await sleep(afterMs)
    if (fault !== 'none') proxy.blackHole({ keep: fault === 'hold' })
    const startedAt = performance.now()

    let lostAtMs: number | undefined
    const look = (): boolean => {
      const lost = holder.lost()
      if (lost) lostAtMs ??= performance.now() - startedAt
      return lost
    }
    const watch = setInterval(look, 1)
    const patience = setTimeout(() => giveUp.abort(), patienceMs)
    try {
      const intruder = await subject.intrude(stage.directUrl, ttlMs, giveUp.signal).then(
        () => ({ atMs: performance.now() - startedAt, lost: look() }),
        (error: unknown) => {
          if (!giveUp.signal.aborted) throw error
          return undefined
        },
      )
      await sleep(intruder ? watchMs : 0)
      look()
      return { intruderAtMs: intruder?.atMs, lostAtMs, lostWhenIntruded: intruder?.lost ?? false }
    } finally {
      clearInterval(watch)
      clearTimeout(patience)
    }
  } finally {
    // Ending must not take long, and how it works in a black hole is another question.
    await proxy.heal()
    proxy.cut()
    await holder.dispose()
  }
}
