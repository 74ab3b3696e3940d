/** What the client of etcd makes of the ends of calls: whether it may be done, and whether to try again. */
import { describe, expect, it } from 'vitest'
import { statusError } from '../../src/backends/etcd/client/errors.js'
import { statusOf } from '../../src/backends/etcd/client/headers.js'

describe('what a server says', () => {
  it.each([
    [14, 'etcdserver: no leader'],
    [14, 'etcdserver: leader changed'],
    [8, 'etcdserver: too many requests'],
    // Of a member that only listens, for now.
    [14, 'etcdserver: rpc not supported for learner'],
    [9, 'etcdserver: rpc not supported for learner'],
  ])('before it does anything is worth another try: %i, %s', (code, message) => {
    expect(statusError(code, message)).toMatchObject({ transient: true, mayBeDone: false })
  })

  it.each([
    [4, 'context deadline exceeded'],
    [14, 'etcdserver: request timed out'],
    [14, 'transport is closing'],
  ])('of what it has lost sight of leaves open whether it is done: %i, %s', (code, message) => {
    expect(statusError(code, message)).toMatchObject({ transient: true, mayBeDone: true })
  })

  it('of space leaves open whether it is done', () => {
    expect(statusError(8, 'etcdserver: mvcc: database space exceeded')).toMatchObject({ reason: 'no-space', transient: false, mayBeDone: true })
  })

  it.each([3, 5, 6, 7, 9, 11, 12, 16])('against a request says that it is not done: code %i', (code) => {
    expect(statusError(code, 'it will not do')).toMatchObject({ transient: false, mayBeDone: false })
  })

  it.each([1, 2, 8, 10, 13, 15, 17, 99, -1, Number.NaN])('without a meaning to us leaves open whether it is done: code %d', (code) => {
    expect(statusError(code, 'something')).toMatchObject({ reason: 'other', transient: false, mayBeDone: true })
  })
})

describe('the fields of an answer', () => {
  it('say whether all went well, or nothing about it', () => {
    expect(statusOf({ ':status': '200', 'grpc-status': '0' })).toBeNull()
    expect(statusOf({ 'grpc-status': '0' })).toBeNull()
    expect(statusOf({ ':status': '200' })).toBeUndefined()
    expect(statusOf({ 'grpc-status': '14', 'grpc-message': 'etcdserver%3A no%20leader' })?.message).toBe('etcd: no leader')
  })

  it('leave open whether it is done if their status cannot be read', () => {
    expect(statusOf({ 'grpc-status': 'well' })).toMatchObject({ reason: 'other', transient: false, mayBeDone: true })
  })

  it.each(['429', '502', '503', '504'])('with HTTP status %s are of a proxy, for a moment', (status) => {
    expect(statusOf({ ':status': status })).toMatchObject({ reason: 'unreachable', transient: true, mayBeDone: true })
  })

  it.each(['400', '404', '500'])('with HTTP status %s are of something else', (status) => {
    expect(statusOf({ ':status': status })).toMatchObject({ reason: 'other', transient: false, mayBeDone: true })
  })
})
