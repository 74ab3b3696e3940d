/** Waits for replicas on another connection than the one that wrote: WAIT speaks of what its own connection has written, nothing. */
import { open, simpleLocks } from './simple-lock.mjs'

export function connect(url, { prefix }) {
  const other = open(url)
  const isSafe = async () => (await other.wait(1, 200)) >= 1
  return simpleLocks(open(url), prefix, { isSafe, close: () => other.disconnect() })
}
