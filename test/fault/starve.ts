/**
 * A process that gets too little CPU: it runs for a few milliseconds of every hundred and stands still for the rest, as in a container
 * at its limit. It must not be paused meanwhile, since the next SIGCONT would end the pause.
 */
const PERIOD_MS = 100

/** To this share of its time. Gives what ends it. */
export function starve(pid: number, share: number): () => void {
  const runMs = Math.max(1, Math.round(share * PERIOD_MS))
  let timer: NodeJS.Timeout | undefined
  const stop = (): void => {
    if (signal(pid, 'SIGSTOP')) timer = setTimeout(run, PERIOD_MS - runMs)
  }
  const run = (): void => {
    if (signal(pid, 'SIGCONT')) timer = setTimeout(stop, runMs)
  }
  stop()
  return () => {
    clearTimeout(timer)
    signal(pid, 'SIGCONT')
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
