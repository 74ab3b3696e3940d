/** What is asked of etcd about a claim: the parts of a transaction. */
import type { Compare, RangeResponse, RequestOp } from './client/messages.js'
import type { Directory } from './directories.js'
import { Line, standingsIn } from './line.js'
import type { OwnClaim } from './own-claim.js'
import type { Outcome, Step } from './txns.js'

export function rangeOf({ name, end }: Directory): RequestOp {
  return { kind: 'range', key: name, rangeEnd: end }
}

function putOf({ key, text, lease }: OwnClaim): RequestOp {
  return { kind: 'put', key, value: text, lease: lease.id }
}

/**
 * Whether it is there. What a session has next of the same resource has the same key, on the same lease. And who takes the session up has
 * its key, and writes it once more; but who leads has written what it says.
 */
export function isOn({ claim, key, lease, createRevision, modRevision, hasHeld }: OwnClaim): Compare {
  const mayHaveSpoken = hasHeld && claim.lease?.value !== undefined
  if (claim.lease && createRevision > 0n) return mayHaveSpoken ? { key, target: 'create', value: createRevision } : { key, target: 'mod', value: modRevision }
  return { key, target: 'lease', value: lease.id }
}

export type Asked = { readonly compare?: Compare[]; readonly success: RequestOp[]; readonly failure?: RequestOp[]; readonly isLikely: boolean }

/** That nobody is there costs the server less to compare than to tell. */
export function joining(own: OwnClaim): Step {
  const { directory, lease } = own
  const otherwise = () => joiningFirst(own)
  if (!isQuiet(own)) return otherwise()
  return { kind: 'claim', compare: [isEmpty(directory)], success: [putOf(own)], isLikely: true, otherwise, directory, own, lease: lease.id }
}

/**
 * A key that nobody had before is not there; but once it was asked for again, taken to another lease, or taken over, what is late of the
 * first request must not undo that.
 */
function joiningFirst(own: OwnClaim): Step {
  return { ...joiningOnce(own), isLikely: true, isCertain: true }
}

/** Perhaps it has joined already. Who else is there is read before the key is put: what is our own need not be sent back to us. */
export function joiningOnce(own: OwnClaim): Step {
  const { directory, lease } = own
  const isNew: Compare = { key: own.key, target: 'create', value: 0n }
  const success = [rangeOf(directory), putOf(own)]
  return { kind: 'claim', compare: [isNew, ...isValid(own)], success, failure: [rangeOf(directory)], isLikely: false, directory, own, lease: lease.id }
}

/** Only if nobody is there; and if somebody is, nothing is written. */
export function taking(own: OwnClaim): Step {
  const { directory, lease } = own
  const compare = [isEmpty(directory), ...isValid(own)]
  return { kind: 'claim', compare, success: [putOf(own)], failure: [rangeOf(directory)], isLikely: isQuiet(own), directory, own, lease: lease.id }
}

/** Nobody has let go of it meanwhile. */
function isValid({ voidKey: key }: OwnClaim): Compare[] {
  return key === undefined ? [] : [{ key, target: 'create', value: 0n }]
}

/** With what it says already. */
export function takingUp(own: OwnClaim): Step {
  const { key, createRevision, lease } = own
  const compare: Compare[] = [{ key, target: 'create', value: createRevision }, ...isValid(own)]
  return { kind: 'other', compare, success: [{ kind: 'put', key, lease: lease.id, ignoreValue: true }], isLikely: false, own, lease: lease.id }
}

/** Whatever was asked for it is not carried out any more; what is read with that is all that will have come of it. */
export function voiding({ voidKey, directory, lease }: OwnClaim): Step {
  const success: RequestOp[] = [{ kind: 'put', key: voidKey!, lease: lease.id }, rangeOf(directory)]
  return { kind: 'other', success, isLikely: true, lease: lease.id }
}

function isEmpty({ name, end }: Directory): Compare {
  return { key: name, rangeEnd: end, target: 'create', value: 0n }
}

/** As far as is known here, nobody else is there. (Where there are several slots, mostly somebody is.) */
function isQuiet({ claim, directory: { claims, lookout } }: OwnClaim): boolean {
  return claim.limit === 1 && claims.length === 1 && !lookout
}

export function looking(own: OwnClaim): Asked {
  return { success: [rangeOf(own.directory)], isLikely: true }
}

/** Whether its key was put where no other is. */
export function isAlone({ responses: [first, second] }: Outcome): boolean {
  return first?.kind === 'put' || (first?.kind === 'range' && first.kvs.length === 0 && second?.kind === 'put')
}

/** The line after a claim has asked. */
export function lineAfter(own: OwnClaim, { responses: [before, put], revision }: Outcome): Line {
  const { claim, directory, key, lease } = own
  const standings = standingsIn(directory.name, (before as RangeResponse).kvs)
  if (!put) return new Line(standings)
  const known = standings.find((standing) => standing.key === key)
  const mine = { key, createRevision: known?.createRevision ?? revision, modRevision: revision, lease: lease.id, value: claim.lease ? undefined : own.value }
  return new Line([...standings.filter((standing) => standing !== known), mine])
}

export function lineOf(directory: string, response: unknown): Line {
  return new Line(standingsIn(directory, (response as RangeResponse).kvs))
}
