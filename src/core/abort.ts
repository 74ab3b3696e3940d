/**
 * Callers' abort signals, and our own.
 */
import type { Clock } from './clock.js'

const shared = new WeakMap<AbortSignal, { readonly listeners: Set<() => void>; stop(): void }>()

/**
 * Calls `listener` when `signal` aborts; the result takes that back. However many locks share a caller's signal, it
 * carries one event listener of ours: Node warns of a leak from the eleventh on.
 */
export function onAbort(signal: AbortSignal, listener: () => void): () => void {
  const entry = shared.get(signal) ?? share(signal)
  entry.listeners.add(listener)
  return () => {
    if (!entry.listeners.delete(listener) || entry.listeners.size > 0) return
    entry.stop()
  }
}

function share(signal: AbortSignal) {
  const listeners = new Set<() => void>()
  const tellAll = () => {
    shared.delete(signal)
    for (const listener of listeners) listener()
  }
  const stop = () => {
    shared.delete(signal)
    signal.removeEventListener('abort', tellAll)
  }
  signal.addEventListener('abort', tellAll, { once: true })
  const entry = { listeners, stop }
  shared.set(signal, entry)
  return entry
}

/** What comes of `work`; rejects as soon as `signal` aborts. */
export async function orAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work
  let stop!: () => void
  const aborted = new Promise<never>((_, reject) => (stop = onAbort(signal, () => reject(signal.reason as Error))))
  return Promise.race([work, aborted]).finally(stop)
}

/** A controller that aborts as soon as one of the signals does, and tells the truth if they do; `unlink` when it is over. */
export function linkedController(...signals: readonly (AbortSignal | undefined)[]): { controller: AbortController; unlink: () => void } {
  const look = () => {
    const aborted = signals.find((signal) => signal?.aborted)
    if (aborted) controller.abort(aborted.reason)
  }
  const controller: AbortController = truthfulController(look)
  const stops = signals.flatMap((signal) => (signal ? [onAbort(signal, look)] : []))
  look()
  return { controller, unlink: () => stops.forEach((stop) => stop()) }
}

/** Resolves after so long, or as soon as one of the signals aborts; then it does not keep the process alive any more. */
export function pause(clock: Clock, ms: number, ...signals: readonly (AbortSignal | undefined)[]): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      timer.cancel()
      for (const stop of stops) stop()
      resolve()
    }
    const timer = clock.timer(signals.some((signal) => signal?.aborted) ? 0 : ms, done, 'awaited')
    const stops = signals.flatMap((signal) => (signal ? [onAbort(signal, done)] : []))
  })
}

/**
 * A controller whose signal tells the truth even when the event loop has been blocked: timers fire too late for that, so
 * reading `aborted`, `reason` or calling `throwIfAborted()` looks first. `look` aborts the controller if it has to.
 */
export function truthfulController(look: () => void): AbortController {
  const controller = new AbortController()
  const { signal } = controller
  const read = <K extends 'aborted' | 'reason'>(property: K) => ({
    configurable: true,
    get: (): AbortSignal[K] => {
      look()
      return Reflect.get(AbortSignal.prototype, property, signal) as AbortSignal[K]
    },
  })
  Object.defineProperties(signal, {
    aborted: read('aborted'),
    reason: read('reason'),
    throwIfAborted: {
      configurable: true,
      value: () => {
        if (signal.aborted) throw signal.reason
      },
    },
  })
  return controller
}
