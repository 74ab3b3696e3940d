/** What the examples guard: a payment that takes its time, and that must not be made twice. */
import { setTimeout as sleep } from 'node:timers/promises'

const BANK_MS = Number(process.env.BANK_MS ?? 3_000)

/** `signal` aborts if the lock is lost, or whoever wanted to pay has gone. The fence goes along, for the bank to refuse a late one. */
export async function pay(order, { signal, fence }) {
  try {
    await sleep(BANK_MS, undefined, { signal })
  } catch {
    // To cancel takes its time, too: until then nobody else may pay.
    await sleep(BANK_MS / 3)
    signal.throwIfAborted()
  }
  return { order, paid: true, fence: String(fence) }
}

export async function pack(order, { signal }) {
  await sleep(BANK_MS / 30, undefined, { signal })
  return { order, packed: true }
}

/** What to try. */
export function announce(url) {
  console.log(`The shop is open at ${url}. A payment takes ${BANK_MS / 1_000} s; try two at once, in two terminals:

  curl -i -X POST ${url}/orders/1/pay     # one pays; the other gets 409, and is told when to try again
  curl -i -X POST ${url}/orders/1/pack    # these wait for each other

Start it once more with PORT=3001: it is the same lock.`)
}

export const port = Number(process.env.PORT ?? 3_000)

/** Calls `close` when the process is told to end: nothing new comes in, and what is under way is finished first. */
export function onEnd(close) {
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => void close())
}
