/**
 * How often clients waited for an answer, whatever they speak: each time that one sends after it was sent something. What several
 * calls of one connection send together counts once, and what is said when a connection begins counts too.
 */
import type { Direction, Proxy } from './tcp-proxy.js'

export interface RoundTrips {
  readonly count: number
}

/** Takes the proxy's hook. */
export function countRoundTrips(proxy: Proxy): RoundTrips {
  const last = new Map<number, Direction>()
  const roundTrips = { count: 0 }
  proxy.onData = (direction, _chunk, connection) => {
    if (direction === 'up' && last.get(connection) !== 'up') roundTrips.count++
    last.set(connection, direction)
    return 'pass'
  }
  return roundTrips
}
