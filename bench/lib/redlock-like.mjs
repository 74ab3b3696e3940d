/** redlock 5 and its fork have the same interface. */
import { holdInside } from './hold-inside.mjs'

export function openRedlock(Redlock, client, { ttlMs, prefix, redlock: settings }) {
  const redlock = new Redlock([client], settings)
  return {
    acquire: (key) => redlock.acquire([`${prefix}:${key}`], ttlMs),
    release: (lock) => lock.release(),
    // `acquire` renews nothing; `using` does.
    hold: (key) => holdInside((routine) => redlock.using([`${prefix}:${key}`], ttlMs, routine))
  }
}
