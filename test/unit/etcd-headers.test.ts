/** What goes before each request of the client of etcd, as Node's HTTP/2 reads it on the other side. */
import { createServer, type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient } from '../../src/backends/etcd/client/client.js'
import { frame } from '../../src/backends/etcd/client/frames.js'
import { until } from '../support/until.js'

const TIMEOUT_MS = 1_234
const CALLS = ['KV/Range', 'KV/Txn', 'Lease/LeaseGrant', 'Lease/LeaseRevoke', 'Lease/LeaseTimeToLive', 'Auth/Authenticate']
const STREAMS = ['Lease/LeaseKeepAlive', 'Watch/Watch']
const TOKEN = 'canary-token'
const key = Buffer.from('key')

/** In answer to a name and a password; to all else there is nothing to say. */
const LET_IN = frame(TOKEN, (writer, token) => writer.text(2, token))
const NOTHING = frame(undefined, () => {})

interface Noted {
  readonly call: string
  readonly headers: IncomingHttpHeaders
}

/** To a server that notes what it is asked. */
async function connected(answer = accept): Promise<{ readonly client: EtcdClient; readonly noted: readonly Noted[] }> {
  const noted: Noted[] = []
  const server = createServer()
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    const call = headers[':path']!.replace('/etcdserverpb.', '')
    noted.push({ call, headers })
    stream.on('error', () => {})
    stream.resume()
    answer(stream, call)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => void server.close())
  const endpoints = [`http://127.0.0.1:${(server.address() as AddressInfo).port}`]
  const client = createEtcdClient({ endpoints, username: 'root', password: 'canary', callTimeoutMs: TIMEOUT_MS })
  onTestFinished(() => client.close())
  return { client, noted }
}

function accept(stream: ServerHttp2Stream, call: string): void {
  if (STREAMS.includes(call)) return stream.respond({ ':status': 200 })
  stream.respond({ ':status': 200 }, { waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
  stream.end(call === 'Auth/Authenticate' ? LET_IN : NOTHING)
}

async function askEverything(client: EtcdClient): Promise<void> {
  await client.range({ key })
  await client.txn({ success: [{ kind: 'put', key, value: key }] })
  await client.leaseGrant(60)
  await client.leaseRevoke(1n)
  await client.leaseTimeToLive(1n, false)
  client.watch({ key }, { onCreated: () => {}, onEvents: () => {}, onLost: () => {} })
  // Nobody answers it: it ends with the client.
  client.keepAlive(1n, TIMEOUT_MS).catch(() => {})
}

/** In milliseconds; NaN without one. */
function limitMs({ headers }: Noted): number {
  return Number(/^(\d+)m$/.exec(String(headers['grpc-timeout']))?.[1])
}

it('every call and every stream wants a leader, is gRPC, and says who asks', async () => {
  const { client, noted } = await connected()
  await askEverything(client)
  await until('all of them', async () => noted.length === CALLS.length + STREAMS.length)
  expect(noted.map(({ call }) => call).toSorted()).toEqual([...CALLS, ...STREAMS].toSorted())
  for (const { call, headers } of noted) {
    expect(headers, call).toMatchObject({ ':method': 'POST', te: 'trailers', 'content-type': 'application/grpc' })
    // Also of who only wants to be let in: a member that has lost the others knows no user.
    expect(headers['hasleader'], call).toBe('true')
    expect(headers['token'], call).toBe(call === 'Auth/Authenticate' ? undefined : TOKEN)
  }
})

it('every call has a deadline, which is not beyond our own, and streams have none', async () => {
  const { client, noted } = await connected()
  await askEverything(client)
  await until('all of them', async () => noted.length === CALLS.length + STREAMS.length)
  for (const one of noted) {
    if (STREAMS.includes(one.call)) {
      expect(one.headers['grpc-timeout'], one.call).toBeUndefined()
    } else {
      expect(limitMs(one), one.call).toBeGreaterThan(0)
      expect(limitMs(one), one.call).toBeLessThanOrEqual(TIMEOUT_MS)
    }
  }
})

it('what is asked again has only what is left of the time', async () => {
  const SLOW_MS = 300
  const { client, noted } = await connected((stream, call) => {
    if (call !== 'KV/Txn' || noted.filter((one) => one.call === call).length > 1) return accept(stream, call)
    const noLeader = { ':status': 200, 'grpc-status': '14', 'grpc-message': 'etcdserver: no leader' }
    void sleep(SLOW_MS).then(() => stream.respond(noLeader, { endStream: true }))
  })
  await client.txn({ success: [{ kind: 'put', key, value: key }] })
  const [first, second, ...more] = noted.filter(({ call }) => call === 'KV/Txn').map(limitMs)
  expect(more).toEqual([])
  expect(first).toBeLessThanOrEqual(TIMEOUT_MS)
  // Timers may be a moment early.
  expect(first! - second!).toBeGreaterThanOrEqual(SLOW_MS - 10)
})
