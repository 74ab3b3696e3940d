/** What is asked of etcd about a claim: the parts of a transaction. */
import { writeValue } from './claim-value.js'
import type { Compare, RangeResponse, RequestOp } from './client/messages.js'
import { endOf, toBytes } from './keys.js'
import { Line, standingsIn } from './line.js'
import type { OwnClaim } from './own-claims.js'

export function rangeOf(directory: string): RequestOp {
  return { kind: 'range', key: toBytes(directory), rangeEnd: toBytes(endOf(directory)) }
}

function putOf({ key, value, lease }: OwnClaim): RequestOp {
  return { kind: 'put', key: toBytes(key), value: writeValue(value), lease: lease.id }
}

export function isOn({ key, lease }: OwnClaim): Compare {
  return { key: toBytes(key), target: 'lease', value: lease.id }
}

export type Asked = { readonly compare?: Compare[]; readonly success: RequestOp[]; readonly failure?: RequestOp[]; readonly isLikely: boolean }

/** A key that nobody had before needs no condition. */
export function joining(own: OwnClaim): Asked {
  return { success: [putOf(own), rangeOf(own.directory)], isLikely: true }
}

/** Perhaps it has joined already. */
export function joiningOnce(own: OwnClaim): Asked {
  const isNew: Compare = { key: toBytes(own.key), target: 'create', value: 0n }
  return { compare: [isNew], success: [putOf(own), rangeOf(own.directory)], failure: [rangeOf(own.directory)], isLikely: false }
}

/** Only if nobody is there; and if somebody is, nothing is written. */
export function taking(own: OwnClaim): Asked {
  const { directory } = own
  const isEmpty: Compare = { key: toBytes(directory), rangeEnd: toBytes(endOf(directory)), target: 'create', value: 0n }
  return { compare: [isEmpty], success: [putOf(own)], failure: [rangeOf(directory)], isLikely: false }
}

export function looking(own: OwnClaim): Asked {
  return { success: [rangeOf(own.directory)], isLikely: true }
}

export function lineOf(directory: string, response: unknown): Line {
  return new Line(standingsIn(directory, (response as RangeResponse).kvs))
}
