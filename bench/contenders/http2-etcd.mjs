/**
 * The least that a lock on etcd costs a client in Node: two requests of node:http2, each by itself. One transaction puts a key and reads
 * who else is there, and one delete lets go. No time limits, no other endpoints, no renewals, and nobody can wait.
 */
import { connect } from 'node:http2'
import { frame } from '../../dist/backends/etcd/client/frames.js'
import { readLease, readTxn, writeLeaseGrant, writeTxn } from '../../dist/backends/etcd/client/messages.js'
import { Reader } from '../../dist/backends/etcd/client/wire.js'

/** Nobody renews it. */
const LEASE_S = 600
const PREFIX = 5

export async function open(url, { prefix }) {
  const session = connect(url.replace('etcd:', 'http:'))
  const grant = caller(session, '/etcdserverpb.Lease/LeaseGrant')
  const txn = caller(session, '/etcdserverpb.KV/Txn')
  const deleteRange = caller(session, '/etcdserverpb.KV/DeleteRange')
  const { id: lease } = readLease(new Reader(await grant(frame({ ttlS: LEASE_S, id: 0n }, writeLeaseGrant))))
  const writeKey = (writer, key) => writer.bytes(1, key)
  const name = lease.toString(16)
  return {
    acquire: async (of) => {
      const directory = `${prefix}/${of}`
      const key = Buffer.from(`${directory}/${name}`)
      const range = { kind: 'range', key: Buffer.from(`${directory}/`), rangeEnd: Buffer.from(`${directory}0`) }
      const answer = await txn(frame({ success: [{ kind: 'put', key, lease }, range] }, writeTxn))
      const { responses: [, { kvs }] } = readTxn(new Reader(answer))
      if (kvs.length !== 1) throw new Error(`${of} is taken`)
      return key
    },
    release: (key) => deleteRange(frame(key, writeKey))
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
