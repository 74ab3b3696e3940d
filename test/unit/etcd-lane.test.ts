/** Servers that do not want us, and proxies that have lost theirs. */
import { createServer as createHttp2, type ServerHttp2Stream } from 'node:http2'
import { createServer, type AddressInfo, type Server } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient, type EtcdOptions } from '../../src/backends/etcd/client/client.js'
import { frame } from '../../src/backends/etcd/client/frames.js'
import { startProxy, type Proxy } from '../support/tcp-proxy.js'
import { until } from '../support/until.js'

const SETTINGS = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0])
const GO_AWAY = Buffer.from([0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
const NOTHING = frame(undefined, () => {})
const TOKEN = frame('token', (writer, token) => writer.text(2, token))
const key = Buffer.from('a')

/** Where it listens. */
async function started(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => void server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

function serving(onStream: (stream: ServerHttp2Stream, call: string) => void): Promise<string> {
  const server = createHttp2()
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => {})
    stream.resume()
    onStream(stream, headers[':path']!.split('/').at(-1)!)
  })
  return started(server as unknown as Server)
}

function connect(options: EtcdOptions): EtcdClient {
  const client = createEtcdClient(options)
  onTestFinished(() => client.close())
  return client
}

function answer(stream: ServerHttp2Stream, message: Buffer): void {
  stream.respond({ ':status': 200 }, { waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
  stream.end(message)
}

function refuse(stream: ServerHttp2Stream, code: number, message: string): void {
  stream.respond({ ':status': 200, 'grpc-status': String(code), 'grpc-message': message }, { endStream: true })
}

/** So far away that whatever it says takes that long. */
async function farAway(endpoint: string, delayMs: number): Promise<Proxy> {
  const proxy = await startProxy({ to: { port: Number(new URL(endpoint).port) } })
  onTestFinished(() => proxy.close())
  proxy.delay(delayMs, { direction: 'down' })
  return proxy
}

it('is not besieged if it says hello and goodbye in one breath', async () => {
  let connections = 0
  const endpoint = await started(createServer((socket) => {
    connections++
    socket.on('error', () => {})
    socket.write(Buffer.concat([SETTINGS, GO_AWAY]))
  }))
  const client = connect({ endpoints: [endpoint], callTimeoutMs: 1_000 })
  await expect(client.range({ key })).rejects.toThrow('cannot be reached')
  expect(connections).toBeLessThan(20)
})

it.each([
  ['nobody', {}],
  ['a user', { username: 'root', password: 'canary' }],
])('is not besieged if it refuses streams of %s for want of a token', async (_, user) => {
  let streams = 0
  const endpoint = await serving((stream, call) => {
    if (call === 'Authenticate') return answer(stream, TOKEN)
    streams++
    refuse(stream, 16, 'jwt missing')
  })
  connect({ endpoints: [endpoint], ...user }).watch({ key }, { onCreated() {}, onEvents() {}, onLost() {} })
  await sleep(1_000)
  expect(streams).toBeGreaterThan(1)
  expect(streams).toBeLessThan(30)
})

it('is not besieged if it knows the user no more', async () => {
  let [isKnown, isCreated, asked] = [true, false, 0]
  const watches: ServerHttp2Stream[] = []
  const endpoint = await serving((stream, call) => {
    if (call === 'Watch') {
      watches.push(stream)
      stream.respond({ ':status': 200 }, { waitForTrailers: true })
      stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '14', 'grpc-message': 'etcdserver: no leader' }))
      stream.write(frame(undefined, (writer) => writer.flag(3, true)))
    } else if (isKnown) answer(stream, call === 'Authenticate' ? TOKEN : NOTHING)
    else if (call === 'Authenticate') {
      asked++
      refuse(stream, 3, 'etcdserver: authentication failed, invalid user ID or password')
    } else refuse(stream, 16, 'etcdserver: invalid auth token')
  })
  const client = connect({ endpoints: [endpoint], username: 'root', password: 'canary' })
  client.watch({ key }, { onCreated: () => (isCreated = true), onEvents() {}, onLost() {} })
  await until('the watch', async () => isCreated)
  isKnown = false
  await expect(client.range({ key })).rejects.toMatchObject({ reason: 'unauthenticated' })
  asked = 0
  // That would pass, but what it needs a token for would not.
  watches[0]!.end()
  await sleep(1_000)
  expect(asked).toBeGreaterThan(1)
  expect(asked).toBeLessThan(30)
})

it('is left for another endpoint if it is a proxy without servers', async () => {
  let refused = 0
  const proxy = await serving((stream) => {
    refused++
    stream.respond({ ':status': 503 }, { endStream: true })
  })
  const etcd = await serving((stream) => answer(stream, NOTHING))
  // Each begins at one of them.
  for (let i = 0; i < 100 && refused < 3; i++) await connect({ endpoints: [proxy, etcd] }).range({ key })
  expect(refused).toBe(3)
})

it('is left for another endpoint if it refuses a token that is new, too', async () => {
  let refused = 0
  const unfit = await serving((stream, call) => {
    if (call === 'Authenticate') return answer(stream, TOKEN)
    refused++
    refuse(stream, 16, 'etcdserver: invalid auth token')
  })
  const etcd = await serving((stream, call) => answer(stream, call === 'Authenticate' ? TOKEN : NOTHING))
  const user = { username: 'root', password: 'canary' }
  // Each begins at one of them, and asks there with two tokens.
  for (let i = 0; i < 100 && refused < 6; i++) await connect({ endpoints: [unfit, etcd], ...user }).range({ key })
  expect(refused).toBe(6)
})

it('is asked again if users are changed time and again', async () => {
  let tokens = 0
  const refused: string[] = []
  const endpoint = await serving((stream, call) => {
    if (call === 'Authenticate') answer(stream, frame(String(++tokens), (writer, token) => writer.text(2, token)))
    else if (refused.length === 4) answer(stream, NOTHING)
    else {
      refused.push(String(tokens))
      refuse(stream, 3, 'etcdserver: revision of auth store is old')
    }
  })
  await connect({ endpoints: [endpoint], username: 'root', password: 'canary' }).txn({ success: [{ kind: 'put', key, value: key }] })
  expect(refused).toEqual(['1', '2', '3', '4'])
})

it('is connected to also if it is further away than its share of the time, as one of many', async () => {
  const etcd = await serving((stream) => answer(stream, NOTHING))
  const doors = await Promise.all(Array.from({ length: 8 }, () => farAway(etcd, 300)))
  const client = connect({ endpoints: doors.map((door) => door.url('http')), callTimeoutMs: 1_000 })
  await until('an answer', () => client.range({ key }).then(() => true))
  await client.range({ key })
})

it.each<[string, (client: EtcdClient) => Promise<unknown>]>([
  ['a read', (client) => client.range({ key })],
  ['a lease', (client) => client.leaseGrant(9)],
])('is not taken for silent by %s that was sent a moment ago', async (_, ask) => {
  const etcd = await serving((stream) => answer(stream, NOTHING))
  const door = await farAway(etcd, 400)
  await ask(connect({ endpoints: [door.url('http')], callTimeoutMs: 1_000 }))
  expect(door.connections).toHaveLength(1)
})

it('is asked for a renewal of a lease of which nobody knows when it was granted', async () => {
  const calls: string[] = []
  const endpoint = await serving((stream, call) => {
    calls.push(call)
    if (call === 'LeaseKeepAlive') {
      stream.respond({ ':status': 200 }, { waitForTrailers: true })
      stream.write(frame(undefined, (writer) => (writer.int64(2, 7n), writer.int64(3, 9n))))
    } else if (calls.length === 1) stream.close(8)
    else refuse(stream, 9, 'etcdserver: lease already exists')
  })
  expect(await connect({ endpoints: [endpoint] }).leaseGrant(9, 7n)).toEqual({ id: 7n, ttlS: 9 })
  expect(calls).toEqual(['LeaseGrant', 'LeaseGrant', 'LeaseKeepAlive'])
})

it('is waited for by whoever needs a token for as long as each has, and nothing of theirs was sent', async () => {
  const endpoint = await serving((stream, call) => {
    if (call !== 'Authenticate') answer(stream, NOTHING)
  })
  const client = connect({ endpoints: [endpoint], username: 'root', password: 'canary', callTimeoutMs: 1_000 })
  const put = () => client.txn({ success: [{ kind: 'put', key, value: key }] }).then(() => 'done', (error: unknown) => error)
  const first = put()
  await sleep(700)
  const beganAt = performance.now()
  const errors = await Promise.all([first, put()])
  expect(performance.now() - beganAt).toBeGreaterThan(900)
  for (const error of errors) expect(error).toMatchObject({ mayBeDone: false, transient: true })
})

it.each([0, -1, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 31])('is not waited for a time that makes no sense: %s', (callTimeoutMs) => {
  expect(() => createEtcdClient({ endpoints: ['http://127.0.0.1:1'], callTimeoutMs })).toThrow('callTimeoutMs')
})
