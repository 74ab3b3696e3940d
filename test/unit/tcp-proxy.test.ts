import { once } from 'node:events'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { byFrame, encodeCommand, FrameSplitter } from '../support/resp.js'
import { sends, startProxy, type Proxy, type ProxyOptions } from '../support/tcp-proxy.js'

/** What must not happen gets this long to happen. */
const QUIET_MS = 60

class Client {
  received = ''
  ended = false
  closed = false
  errorCode: string | undefined
  readonly socket: Socket

  constructor(port: number) {
    this.socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true })
    this.socket.on('data', (chunk: Buffer) => (this.received += chunk.toString('latin1')))
    this.socket.on('end', () => (this.ended = true))
    this.socket.on('close', () => (this.closed = true))
    this.socket.on('error', (error: NodeJS.ErrnoException) => (this.errorCode = error.code))
  }

  send(text: string): void {
    this.socket.write(text)
  }

  async receives(text: string): Promise<void> {
    await vi.waitFor(() => expect(this.received).toBe(text), { timeout: 5_000, interval: 2 })
  }

  async receivesNoMoreThan(text: string): Promise<void> {
    await sleep(QUIET_MS)
    expect(this.received).toBe(text)
    expect(this.closed).toBe(false)
  }

  async closes(): Promise<void> {
    await vi.waitFor(() => expect(this.closed).toBe(true), { timeout: 5_000, interval: 2 })
  }
}

let echo: Server
let heard: string
let serverSockets: Set<Socket>
let serverErrors: (string | undefined)[]
let proxies: Proxy[]
let clients: Client[]

beforeEach(async () => {
  heard = ''
  serverSockets = new Set()
  serverErrors = []
  proxies = []
  clients = []
  echo = createServer({ noDelay: true }, (socket) => {
    serverSockets.add(socket)
    socket.on('data', (chunk: Buffer) => {
      heard += chunk.toString('latin1')
      socket.write(chunk)
    })
    socket.on('error', (error: NodeJS.ErrnoException) => serverErrors.push(error.code))
    socket.on('close', () => serverSockets.delete(socket))
  })
  echo.listen(0, '127.0.0.1')
  await once(echo, 'listening')
})

afterEach(async () => {
  for (const { socket } of clients) socket.destroy()
  for (const proxy of proxies) await proxy.close()
  for (const socket of serverSockets) socket.destroy()
  await new Promise((resolve) => echo.close(resolve))
})

async function proxied(options: Omit<ProxyOptions, 'to'> = {}): Promise<Proxy> {
  const proxy = await startProxy({ to: { port: (echo.address() as AddressInfo).port }, ...options })
  proxies.push(proxy)
  return proxy
}

/** Connected through to the server: a first word has been there and back. */
async function client(proxy: Proxy, word = '.'): Promise<Client> {
  const one = fresh(proxy)
  one.send(word)
  await one.receives(word)
  one.received = ''
  return one
}

function fresh(proxy: Proxy): Client {
  const one = new Client(proxy.port)
  clients.push(one)
  return one
}

describe('without faults', () => {
  test('bytes, ends and half-closed connections go through', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    a.send('hello')
    await a.receives('hello')
    a.socket.end('bye')
    await a.receives('hellobye')
    await a.closes()
    expect(a.ended).toBe(true)
    expect(a.errorCode).toBeUndefined()
    await vi.waitFor(() => expect(proxy.connections).toEqual([]))
  })

  test('8 MiB go through unharmed, also to a reader that pauses', async () => {
    const proxy = await proxied()
    const a = fresh(proxy)
    const megabyte = Buffer.alloc(1 << 20, 'holdfast')
    let length = 0
    a.socket.removeAllListeners('data')
    a.socket.on('data', (chunk: Buffer) => (length += chunk.length))
    a.socket.pause()
    for (let i = 0; i < 8; i++) a.socket.write(megabyte)
    await sleep(QUIET_MS)
    a.socket.resume()
    await vi.waitFor(() => expect(length).toBe(8 << 20), { timeout: 10_000 })
    expect(proxy.connections[0]?.bytes).toEqual({ up: 8 << 20, down: 8 << 20 })
  })

  test('a server that is not there ends the connection', async () => {
    const proxy = await proxied()
    await new Promise((resolve) => echo.close(resolve))
    const a = fresh(proxy)
    await a.closes()
    echo.listen(0, '127.0.0.1')
    await once(echo, 'listening')
  })
})

describe('delay', () => {
  test('one direction is slower, and heals', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.delay(150, { direction: 'down' })
    const from = performance.now()
    a.send('x')
    await vi.waitFor(() => expect(heard).toBe('.x'), { interval: 2 })
    expect(a.received).toBe('')
    await a.receives('x')
    expect(performance.now() - from).toBeGreaterThanOrEqual(150)

    fault.heal()
    proxy.delay(150, { direction: 'up' })
    a.send('y')
    await sleep(QUIET_MS)
    expect(heard).toBe('.x')
    await a.receives('xy')

    await proxy.heal()
    const healedAt = performance.now()
    a.send('z')
    await a.receives('xyz')
    expect(performance.now() - healedAt).toBeLessThan(150)
  })

  test('what is on its way is still late when it is healed, and how late is known', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    expect(proxy.behindMs).toBe(0)
    const rule = proxy.delay(1_000, { direction: 'up' })
    a.send('late')
    await vi.waitFor(() => expect(proxy.behindMs).toBeGreaterThan(0), { interval: 2 })
    rule.heal()
    expect(proxy.behindMs).toBeLessThanOrEqual(1_000)
    await sleep(Math.ceil(proxy.behindMs))
    expect(proxy.behindMs).toBe(0)
    await a.receives('late')
  })

  test('jitter changes the times and not the order', async () => {
    const proxy = await proxied({ seed: 7 })
    const a = await client(proxy)
    proxy.delay(1, { jitterMs: 30 })
    const letters = 'abcdefghijklmnopqrstuvwxyz'
    for (const letter of letters) {
      a.send(letter)
      await sleep(1)
    }
    await a.receives(letters)
    expect(heard).toBe(`.${letters}`)
  })

  test('delays add up, and an end waits behind the bytes before it', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.delay(60, { direction: 'up' })
    proxy.delay(60, { direction: 'up' })
    const from = performance.now()
    a.socket.end('last words')
    await a.receives('last words')
    expect(performance.now() - from).toBeGreaterThanOrEqual(120)
    await a.closes()
  })
})

describe('lose', () => {
  test('what is lost is sent again, later and in order', async () => {
    const proxy = await proxied({ seed: 7 })
    const a = await client(proxy)
    const fault = proxy.lose(0.5, { direction: 'up' })
    const from = performance.now()
    for (const letter of 'abcdefgh') {
      a.send(letter)
      await sleep(5)
    }
    await a.receives('abcdefgh')
    expect(performance.now() - from).toBeGreaterThanOrEqual(200)

    fault.heal()
    proxy.lose(0)
    const healedAt = performance.now()
    a.send('i')
    await a.receives('abcdefghi')
    expect(performance.now() - healedAt).toBeLessThan(200)
  })
})

describe('drop', () => {
  test('up: the server hears nothing, and what was swallowed stays swallowed', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.drop({ direction: 'up' })
    a.send('gone')
    await a.receivesNoMoreThan('')
    expect(heard).toBe('.')
    fault.heal()
    a.send('here')
    await a.receives('here')
    expect(heard).toBe('.here')
  })

  test('down: the server hears and answers, the client does not get it', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.drop({ direction: 'down' })
    a.send('applied')
    await vi.waitFor(() => expect(heard).toBe('.applied'))
    await a.receivesNoMoreThan('')
    fault.heal()
    a.send('!')
    await a.receives('!')
  })

  test('takes what a delay or a hold still has in the proxy', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.delay(30, { direction: 'up' })
    const hold = proxy.hold({ direction: 'up' })
    a.send('in flight')
    await vi.waitFor(() => expect(proxy.connections[0]?.bytes.up).toBe(10))
    const drop = proxy.drop({ direction: 'up' })
    hold.heal()
    drop.heal()
    a.send('later')
    await a.receives('later')
    expect(heard).toBe('.later')
  })

  test('an end is held back, not lost', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.drop()
    a.socket.end()
    await sleep(QUIET_MS)
    expect(serverSockets.size).toBe(1)
    fault.heal()
    await a.closes()
    await vi.waitFor(() => expect(serverSockets.size).toBe(0))
  })
})

describe('hold', () => {
  test('keeps bytes of one direction and delivers them later, in order', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.hold({ direction: 'down' })
    a.send('1')
    await vi.waitFor(() => expect(heard).toBe('.1'))
    a.send('2')
    await a.receivesNoMoreThan('')
    expect(heard).toBe('.12')
    fault.heal()
    a.send('3')
    await a.receives('123')
  })

  test('more than it likes to keep is not lost', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.hold({ direction: 'up' })
    const megabyte = 'm'.repeat(1 << 20)
    for (let i = 0; i < 8; i++) a.send(megabyte)
    await sleep(QUIET_MS)
    expect(heard).toBe('.')
    fault.heal()
    await vi.waitFor(() => expect(heard.length).toBe(1 + (8 << 20)), { timeout: 10_000 })
  })
})

describe('black hole', () => {
  test('old connections stay open, new ones are accepted, and nobody hears anything', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.blackHole()
    const b = fresh(proxy)
    a.send('a')
    b.send('b')
    await a.receivesNoMoreThan('')
    await b.receivesNoMoreThan('')
    expect(b.socket.connecting).toBe(false)
    expect(heard).toBe('.')
    fault.heal()
    a.send('A')
    b.send('B')
    await a.receives('A')
    await b.receives('B')
  })

  test('with keep, everything arrives afterwards', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.blackHole({ keep: true })
    const b = fresh(proxy)
    a.send('a')
    b.send('b')
    await a.receivesNoMoreThan('')
    await b.receivesNoMoreThan('')
    expect(heard).toBe('.')
    fault.heal()
    await a.receives('a')
    await b.receives('b')
  })

  test('hides that the server reset the connection', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.blackHole()
    for (const socket of serverSockets) socket.resetAndDestroy()
    await a.receivesNoMoreThan('')
    fault.heal()
    await a.closes()
    expect(a.errorCode).toBe('ECONNRESET')
  })
})

describe('the end of connections', () => {
  test('reset: both sides get a RST, and new connections work', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.reset()
    await a.closes()
    expect(a.errorCode).toBe('ECONNRESET')
    await vi.waitFor(() => expect(serverErrors).toEqual(['ECONNRESET']))
    await client(proxy)
  })

  test('reset: also in the moment in which a held back end goes on', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const fault = proxy.hold({ direction: 'up' })
    a.socket.end()
    await sleep(QUIET_MS)
    fault.heal()
    proxy.reset()
    await a.closes()
    await vi.waitFor(() => expect(proxy.connections).toEqual([]))
  })

  test('cut: connections end without an error, and new ones work', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.cut()
    await vi.waitFor(() => expect(a.ended).toBe(true))
    expect(a.errorCode).toBeUndefined()
    await vi.waitFor(() => expect(serverSockets.size).toBe(0))
    await client(proxy)
  })

  test('refuse: new connections fail, old ones go on, and the port comes back', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.refuse()
    const b = fresh(proxy)
    await b.closes()
    expect(b.errorCode).toBe('ECONNREFUSED')
    a.send('still here')
    await a.receives('still here')
    const { port } = proxy
    await proxy.heal()
    expect(proxy.port).toBe(port)
    await client(proxy)
  })

  test('close ends everything, also in the middle of faults', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.delay(60_000)
    proxy.hold({ direction: 'up' })
    a.send('never')
    await vi.waitFor(() => expect(proxy.connections[0]?.bytes.up).toBe(6))
    await proxy.close()
    await vi.waitFor(() => expect(serverSockets.size).toBe(0))
    await vi.waitFor(() => expect(a.ended || a.closed).toBe(true))
    expect(proxy.connections).toEqual([])
    const b = fresh(proxy)
    await b.closes()
    expect(b.errorCode).toBe('ECONNREFUSED')
  })
})

describe('one connection out of several', () => {
  test('by what it sent', async () => {
    const proxy = await proxied()
    const a = await client(proxy, 'GET')
    const b = await client(proxy, 'SUBSCRIBE')
    const fault = proxy.blackHole({ only: sends('subscribe') })
    a.send('a')
    b.send('b')
    await a.receives('a')
    await b.receivesNoMoreThan('')
    // It is a matter of what was sent up to now, also for a connection that comes later.
    const c = fresh(proxy)
    c.send('c')
    await c.receives('c')
    c.send('subscribe')
    await c.receivesNoMoreThan('c')
    fault.heal()
    b.send('B')
    await b.receives('B')
  })

  test('by its number, or by any predicate', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    const b = await client(proxy)
    const c = await client(proxy)
    expect(proxy.connections.map(({ id }) => id)).toEqual([0, 1, 2])
    proxy.reset(1)
    await b.closes()
    proxy.cut(({ id }) => id > 1)
    await vi.waitFor(() => expect(c.ended).toBe(true))
    proxy.drop({ only: 7 })
    a.send('a')
    await a.receives('a')
  })
})

describe('the hook', () => {
  test('drops and replaces single chunks', async () => {
    const seen: [string, string, number][] = []
    const proxy = await proxied({
      onData: (direction, chunk, connectionId) => {
        const text = chunk.toString()
        seen.push([direction, text, connectionId])
        if (direction === 'down' && text === 'secret') return 'drop'
        return direction === 'up' && text === 'in' ? Buffer.from('out') : 'pass'
      },
    })
    const a = await client(proxy)
    a.send('secret')
    await vi.waitFor(() => expect(heard).toBe('.secret'))
    await a.receivesNoMoreThan('')
    a.send('in')
    await a.receives('out')
    expect(seen).toContainEqual(['down', 'secret', 0])
    proxy.onData = undefined
    a.send('secret')
    await a.receives('outsecret')
  })

  test('byFrame drops single RESP messages, however TCP cut them', async () => {
    const proxy = await proxied()
    const a = await client(proxy)
    proxy.onData = byFrame((direction, { value }) =>
      direction === 'down' && Array.isArray(value) && value[0] === 'PUBLISH' ? 'drop' : 'pass',
    )
    const kept = [encodeCommand(['GET', 'ä']), '>2\r\n+message\r\n%1\r\n+a\r\n:1\r\n', '$-1\r\n']
    for (const piece of [kept[0], encodeCommand(['PUBLISH', 'c', 'x\r\n']), kept[1], kept[2]].join('').split(/(?<=e)/)) {
      a.socket.write(Buffer.from(piece))
      await sleep(1)
    }
    await a.receives(Buffer.from(kept.join('')).toString('latin1'))
  })

  test('frames are read in both versions of the protocol', () => {
    const simple = '+OK\r\n-ERR no\r\n:42\r\n$5\r\nhe\r\no\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n'
    const values = `${simple}(12345678901234567890\r\n=6\r\ntxt:ab\r\n`
    const nested = '*2\r\n~1\r\n+a\r\n%1\r\n+k\r\n*0\r\n'
    const splitter = new FrameSplitter()
    const frames = [...values, ...nested].flatMap((byte) => splitter.push(Buffer.from(byte)))
    expect(frames.map(({ value }) => value)).toEqual([
      'OK',
      new Error('ERR no'),
      42,
      'he\r\no',
      null,
      null,
      true,
      1.5,
      '12345678901234567890',
      'txt:ab',
      [['a'], ['k', []]],
    ])
    expect(frames.map(({ bytes }) => bytes.toString()).join('')).toBe(values + nested)
  })
})
