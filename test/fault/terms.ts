/** What is promised of elections, beside what is promised of all who hold: one leader in a term, and observers who hear of it in order. */
import { groupBy } from './group.js'
import type { Event, Violation } from './history.js'

/** What a judge needs of a log. */
interface Log {
  readonly events: readonly Event[]
  readonly end: bigint
  phase(name: string): bigint
  healthyNs(from: bigint, to: bigint): bigint
}

type Observed = Extract<Event, { type: 'observed' }>

/** How far behind an observer may be while nothing is broken. */
const BEHIND_NS = 5_000_000_000n

/** Which operations have had one hold, in this order: the others have taken it up. */
class Chains {
  readonly #before = new Map<string, string>()

  constructor(events: readonly Event[]) {
    for (const event of events) if (event.type === 'granted' && event.takesUp !== undefined) this.#before.set(event.op, event.takesUp)
  }

  rootOf(op: string): string {
    const before = this.#before.get(op)
    return before === undefined ? op : this.rootOf(before)
  }

  placeOf(op: string): number {
    const before = this.#before.get(op)
    return before === undefined ? 0 : 1 + this.placeOf(before)
  }
}

/** Of all that was granted, and of all that observers have heard, whatever the store forgets. */
export function* oneLeaderPerTerm({ events }: Log): Generator<Violation> {
  const chains = new Chains(events)
  const leaders = new Map<string, string>()
  for (const event of events) {
    const isLed = (event.type === 'granted' && event.rev !== undefined) || event.type === 'observed'
    if (!isLed) continue
    const { key, at } = event
    const op = event.type === 'observed' ? event.by : event.op
    const term = `${key} ${event.rev}`
    const leader = chains.rootOf(op)
    const other = leaders.get(term)
    if (other === undefined) leaders.set(term, leader)
    else if (other !== leader) {
      const message = `${other} and ${leader} both led ${key} in the term ${event.rev}`
      yield { invariant: 'one leader per term', message, at, key, ops: [other, leader] }
    }
  }
}

/** Each hears only what was said, one term after the other, and in each what was said first, first. */
export function* observersInOrder({ events }: Log): Generator<Violation> {
  const chains = new Chains(events)
  const said = new Set<string>()
  const last = new Map<string, Observed>()
  for (const event of events) {
    if (event.type === 'saying') said.add(`${event.op} ${event.n}`)
    if (event.type !== 'observed') continue
    const { observer, key, by, n, at, rev } = event
    const wrong = (message: string): Violation => ({ invariant: 'observers in order', message: `${observer} ${message}`, at, key, ops: [by] })
    if (!said.has(`${by} ${n}`)) yield wrong(`heard word ${n} of ${by}, which has not said it`)
    const who = `${observer} ${key}`
    const before = last.get(who)
    last.set(who, event)
    if (before && !isAfter(event, before, chains)) yield wrong(`heard word ${n} of ${by} (term ${rev}) after word ${before.n} of ${before.by} (term ${before.rev})`)
    if (before && event.revision <= before.revision) yield wrong(`was told of revision ${event.revision} after ${before.revision}`)
  }
}

type Word = Pick<Observed, 'by' | 'n' | 'rev'>

function isAfter(one: Word, other: Word, chains: Chains): boolean {
  if (one.rev !== other.rev) return one.rev > other.rev
  const [place, before] = [chains.placeOf(one.by), chains.placeOf(other.by)]
  return place === before ? one.n > other.n : place > before
}

/** Who observes has in the end heard the latest, or what was said after it. */
export function* observersKeepUp(log: Log): Generator<Violation> {
  const { events } = log
  const chains = new Chains(events)
  const until = log.phase('end')
  const terms = new Map(events.flatMap((event) => (event.type === 'granted' && event.rev !== undefined ? [[event.op, event.rev]] : [])))
  const words = events.flatMap((event) => {
    const rev = event.type === 'said' ? terms.get(event.op) : undefined
    return event.type === 'said' && rev !== undefined && log.healthyNs(event.at, until) >= BEHIND_NS ? [{ ...event, by: event.op, rev }] : []
  })
  const alive = new Map(events.flatMap((event) => (event.type === 'began' ? [[event.worker, event.at]] : [])))
  for (const event of events) if (event.type === 'ended' && event.at < until) alive.delete(event.worker)
  const heard = groupBy(events.filter((event) => event.type === 'observed'), ({ observer, key }) => `${observer} ${key}`)
  for (const [worker, beganAt] of alive) {
    for (const [key, ofKey] of groupBy(words, (word) => word.key)) {
      // Who comes when nobody leads any more is not told who has.
      const due = ofKey.filter(({ at }) => log.healthyNs(beganAt, at) >= BEHIND_NS)
      const latest = due.reduce<(typeof due)[number] | undefined>((best, word) => (!best || isAfter(word, best, chains) ? word : best), undefined)
      if (!latest) continue
      const mine = [...heard].filter(([who]) => who.startsWith(`${worker}/`) && who.endsWith(` ${key}`)).map(([, list]) => list.at(-1)!)
      for (const last of mine.length > 0 ? mine : [undefined]) {
        if (last && !isAfter(latest, last, chains)) continue
        const message = `${last?.observer ?? worker} has not heard word ${latest.n} of ${latest.by} (term ${latest.rev}), the latest of ${key}`
        yield { invariant: 'observers keep up', message, at: latest.at, key, ops: [latest.by] }
      }
    }
  }
}

/** A store that cannot be asked is no reason to stop listening. */
export function* observersGoOn({ events }: Log): Generator<Violation> {
  for (const event of events) {
    if (event.type !== 'blind') continue
    const { observer, key, error, at } = event
    yield { invariant: 'observers keep up', message: `${observer} hears nothing of ${key} any more: ${error}`, at, key, ops: [] }
  }
}
