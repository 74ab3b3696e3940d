/**
 * The call chain: what the callbacks around the running code hold. Only a callback can carry it: marking the context of
 * whoever called `lock()` would leak into its siblings.
 */
import { AsyncLocalStorage } from 'node:async_hooks'

interface Link {
  readonly held: object
  readonly outer: Link | undefined
}

const chain = new AsyncLocalStorage<Link>()

export function runInChain<T>(held: object, fn: () => T): T {
  return chain.run({ held, outer: chain.getStore() }, fn)
}

/** The innermost thing in the chain that `matches`. */
export function findInChain<H extends object>(matches: (held: object) => held is H): H | undefined {
  for (let link = chain.getStore(); link; link = link.outer) {
    if (matches(link.held)) return link.held
  }
  return undefined
}
