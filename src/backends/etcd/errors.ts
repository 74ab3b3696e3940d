/** What etcd and our client of it say when something is wrong, in our words. */
import type { Failed } from '../../core/backend.js'
import { BackendError, HoldfastError } from '../../core/errors.js'
import { EtcdError } from './client/errors.js'

export function etcdError(error: unknown): HoldfastError {
  if (error instanceof HoldfastError) return error
  const message = error instanceof Error ? error.message : String(error)
  const what = message.startsWith('etcd: ') ? message.slice('etcd: '.length) : message
  const hint = isNoSpace(error)
    ? '. Until somebody compacts and defragments it and disarms the alarm (etcdctl compact, defrag, alarm disarm), what is held can be released, and little is given'
    : ''
  // Whoever asks again gets another lease.
  const transient = isLeaseGone(error) || (error instanceof EtcdError && error.transient)
  return new BackendError(`etcd failed: ${what}${hint}`, { cause: error, transient })
}

export function asFailed(error: unknown): Failed {
  return { status: 'failed', error: etcdError(error) }
}

export function isNoSpace(error: unknown): boolean {
  return error instanceof EtcdError && error.reason === 'no-space'
}

export function isLeaseGone(error: unknown): boolean {
  return error instanceof EtcdError && error.reason === 'lease-not-found'
}

export function mayBeDone(error: unknown): boolean {
  return !(error instanceof EtcdError) || error.mayBeDone
}
