/** Servers that do not want us, and proxies that have lost theirs. */
import { createServer as createHttp2, type ServerHttp2Stream } from 'node:http2'
import { createServer, type AddressInfo, type Server } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it, onTestFinished } from 'vitest'
import { createEtcdClient, type EtcdClient, type EtcdOptions } from '../../src/backends/etcd/client/client.js'
import { frame } from '../../src/backends/etcd/client/frames.js'
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
