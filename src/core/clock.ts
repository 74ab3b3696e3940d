/**
 * Time as this process sees it. Local deadlines are counted on a monotonic clock that goes on during a suspend; no wall
 * clock decides anything.
 */
import { uptime } from 'node:os'

export interface Timer {
  cancel(): void
}

export interface Clock {
  /** Milliseconds from an arbitrary start, never going back. */
  now(): number
  /**
   * Runs `task` once, no earlier than `delayMs` from now. What runs in the background does not keep the process alive; what a
   * caller waits for does.
   */
  timer(delayMs: number, task: () => void, purpose: 'background' | 'awaited'): Timer
}

/** Where the system clock takes its readings from; all in milliseconds. */
export interface ClockSources {
  monotonic(): number
  wall(): number
  /** Time since boot, suspends included. */
  uptime(): number
}

const MAX_TIMER_MS = 2 ** 31 - 1

/** Uptime is read in steps of 10 ms, and a suspend takes much longer than this. */
const SUSPEND_MS = 100

const systemSources: ClockSources = {
  monotonic: () => performance.now(),
  wall: () => Date.now(),
  uptime: () => uptime() * 1000,
}

/**
 * The monotonic clock stands still while the machine is suspended, but leases on a server do not. The wall clock jumps
 * then, as it also does when somebody sets it: so a jump only makes us look at the uptime, which tells the two apart.
 */
export function systemClock(sources: ClockSources = systemSources): Clock {
  const uptimeAhead = () => sources.uptime() - sources.monotonic()
  const wallAhead = () => sources.wall() - sources.monotonic()
  const uptimeAheadAtStart = uptimeAhead()
  let lastWallAhead = wallAhead()
  let suspendedMs = 0

  return {
    now() {
      const monotonic = sources.monotonic()
      const ahead = sources.wall() - monotonic
      if (Math.abs(ahead - lastWallAhead) > SUSPEND_MS) {
        lastWallAhead = ahead
        const missed = uptimeAhead() - uptimeAheadAtStart
        if (missed > suspendedMs + SUSPEND_MS) suspendedMs = missed
      }
      return monotonic + suspendedMs
    },
    timer(delayMs, task, purpose) {
      const timer = setTimeout(task, Math.min(Math.max(0, delayMs), MAX_TIMER_MS))
      if (purpose === 'background') timer.unref()
      return { cancel: () => clearTimeout(timer) }
    },
  }
}

/** How much faster than ours a server's clock may run. */
export const DRIFT = 0.001

/**
 * What we know of a server's clock from one exchange with it: at the local moment `sentAt` it showed no more than
 * `serverMs`. From that follows a safe (early) local moment for anything the server dates later.
 */
export class ServerClock {
  #sentAt = Number.NaN
  #serverMs = Number.NaN

  observe(sentAt: number, serverMs: number): void {
    this.#sentAt = sentAt
    this.#serverMs = serverMs
  }

  /** After a reconnect it may be another server, with another clock. */
  forget(): void {
    this.#sentAt = Number.NaN
  }

  /** A local moment not after the server's `serverMs`, which is past; undefined if no exchange tells. */
  toLocal(serverMs: number, now: number): number | undefined {
    if (Number.isNaN(this.#sentAt)) return undefined
    const elapsed = serverMs - this.#serverMs
    // The server counts whole milliseconds: one may be missing.
    const moment = this.#sentAt + elapsed - Math.abs(elapsed) * DRIFT - 1
    // Something past that seems to be still to come: the server's clock was set back.
    return moment > now ? undefined : moment
  }

  /** What the server's clock shows at most at the local moment `now`; undefined if no exchange tells. */
  atMost(now: number): number | undefined {
    if (Number.isNaN(this.#sentAt)) return undefined
    return Math.ceil(this.#serverMs + (now - this.#sentAt) * (1 + DRIFT) + 1)
  }
}
