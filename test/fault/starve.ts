/**
 * A process that gets too little CPU: it runs for a few milliseconds of every hundred and stands still for the rest, as in a container
 * at its limit. It must not be paused meanwhile, since the next SIGCONT would end the pause.
 */
import { childrenOf } from '../../scripts/lib/children.mjs'

const PERIOD_MS = 100

/** To this share of its time. Gives what ends it. */
export function starve(pid: number, share: number): () => void {
  return starveAll(() => [pid], share)
}

/** Together with the processes that it has started. */
export function starveFamily(pid: number, share: number): () => void {
  return starveAll(() => [pid, ...childrenOf(pid)], share)
}

function starveAll(pids: () => readonly number[], share: number): () => void {
  const runMs = Math.max(1, Math.round(share * PERIOD_MS))
  let stopped: readonly number[] = []
  let timer: NodeJS.Timeout | undefined
  const stop = (): void => {
    stopped = pids().filter((pid) => signal(pid, 'SIGSTOP'))
    if (stopped.length > 0) timer = setTimeout(run, PERIOD_MS - runMs)
  }
  const run = (): void => {
    goOn()
    timer = setTimeout(stop, runMs)
  }
  const goOn = (): void => {
    for (const pid of stopped) signal(pid, 'SIGCONT')
    stopped = []
  }
  stop()
  return () => {
    clearTimeout(timer)
    goOn()
  }
}

/** False if it is gone. */
function signal(pid: number, name: 'SIGSTOP' | 'SIGCONT'): boolean {
  try {
    return process.kill(pid, name)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ESRCH') return false
    throw error
  }
}
