/**
 * What a lock on etcd costs at the least with the HTTP/2 that Node comes with: the two requests that holdfast makes, each by itself. One
 * transaction reads who is there and puts a key that says whose it is, and one deletes it. No time limits, no other endpoints, no renewals,
 * and nobody can wait.
 */
import { randomBytes } from 'node:crypto'
import { connect } from 'node:http2'
import { writeValue } from '../../dist/backends/etcd/claim-value.js'
import { frame } from '../../dist/backends/etcd/client/frames.js'
import { readLease, readTxn, writeLeaseGrant, writeTxn } from '../../dist/backends/etcd/client/messages.js'
import { Reader } from '../../dist/backends/etcd/client/wire.js'

/** Nobody renews it. */
const LEASE_S = 600
const PREFIX = 5

export async function open(url, { ttlMs, prefix }) {
  const session = connect(url.replace('etcd:', 'http:').split(',')[0])
  const grant = caller(session, '/etcdserverpb.Lease/LeaseGrant')
  const txn = caller(session, '/etcdserverpb.KV/Txn')
  const { id: lease } = readLease(new Reader(await grant(frame({ ttlS: LEASE_S, id: 0n }, writeLeaseGrant))))
  const name = `${lease.toString(16)}-1`
  const owner = `bench:${process.pid}#00000000`
  return {
    acquire: async (of) => {
      const directory = `${prefix}/${of}`
      const key = Buffer.from(`${directory}/${name}`)
      const range = { kind: 'range', key: Buffer.from(`${directory}/`), rangeEnd: Buffer.from(`${directory}0`) }
      const id = randomBytes(16).toString('hex')
      const value = writeValue({ id, owner, ttl: ttlMs, at: Date.now(), take: 1, limit: 1 })
      const answer = await txn(frame({ success: [range, { kind: 'put', key, value, lease }] }, writeTxn))
      const { responses: [{ kvs }] } = readTxn(new Reader(answer))
      if (kvs.length > 0) throw new Error(`${of} is taken`)
      return key
    },
    release: (key) => txn(frame({ success: [{ kind: 'delete', key }] }, writeTxn))
  }
}

function caller(session, path) {
  const headers = { ':method': 'POST', ':path': path, te: 'trailers', 'content-type': 'application/grpc' }
  return (request) =>
    new Promise((resolve, reject) => {
      const stream = session.request(headers)
      let answer
      stream.on('data', (chunk) => (answer = answer ? Buffer.concat([answer, chunk]) : chunk))
      stream.on('trailers', (trailers) => {
        if (trailers['grpc-status'] === '0') resolve(answer.subarray(PREFIX))
        else reject(new Error(trailers['grpc-message']))
      })
      stream.on('error', reject)
      stream.end(request)
    })
}
