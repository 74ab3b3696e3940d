/** Our HTTP/2 with Node's on the other side, and what Node's never says made by hand. */
import { createServer as createHttp2, type Http2Server, type ServerHttp2Stream, type SessionOptions } from 'node:http2'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { Duplex } from 'node:stream'
import { describe, expect, it, onTestFinished } from 'vitest'
import { encodeFields, FieldsDecoder, HpackError, type Fields } from '../../src/backends/etcd/client/hpack.js'
import { Http2, type StreamListener } from '../../src/backends/etcd/client/http2.js'
import { until } from '../support/until.js'

const FIELDS = encodeFields([[':method', 'POST'], [':scheme', 'http'], [':path', '/'], [':authority', 'here']])
const EVERY_BYTE = String.fromCharCode(...Array.from({ length: 256 }, (_, byte) => byte))

class Answer implements StreamListener {
  readonly fields: Fields[] = []
  readonly chunks: Buffer[] = []
  closed: 'ended' | 'refused' | undefined

  onFields(fields: Fields): void {
    this.fields.push(fields)
  }

  onData(chunk: Buffer): void {
    this.chunks.push(chunk)
  }

  onClosed(isRefused: boolean): void {
    this.closed = isRefused ? 'refused' : 'ended'
  }

  get size(): number {
    return this.chunks.reduce((sum, { length }) => sum + length, 0)
  }
}

class Client {
  readonly http2: Http2
  isOpened = false
  closed: { readonly error: Error | undefined } | undefined

  constructor(socket: Socket) {
    this.http2 = new Http2(socket, {
      onOpen: () => (this.isOpened = true),
      onClosed: (error) => (this.closed = { error }),
    })
    onTestFinished(() => this.http2.destroy())
  }

  ask(data?: Buffer): Answer {
    const answer = new Answer()
    this.http2.request(FIELDS, answer, data)
    return answer
  }
}

async function connected(server: Http2Server | ReturnType<typeof createServer>): Promise<Client> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => void server.close())
  return new Client(connect((server.address() as AddressInfo).port, '127.0.0.1'))
}

async function withNode(onStream: (stream: ServerHttp2Stream) => void, options: SessionOptions = {}): Promise<Client> {
  const server = createHttp2(options)
  server.on('stream', (stream: ServerHttp2Stream) => {
    stream.on('error', () => {})
    onStream(stream)
  })
  const client = await connected(server)
  await until('it to be open', async () => client.http2.isOpen)
  return client
}

/** Says what it is told to, to whoever has said hello. */
async function withBytes(...frames: readonly Buffer[]): Promise<Client> {
  return connected(createServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', () => socket.write(Buffer.concat(frames)))
  }))
}

function frame(type: number, flags: number, id: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(9)
  head.writeUIntBE(payload.length, 0, 3)
  head.writeUIntBE(type, 3, 1)
  head.writeUIntBE(flags, 4, 1)
  head.writeUInt32BE(id, 5)
  return Buffer.concat([head, payload])
}

const SETTINGS = frame(4, 0, 0, Buffer.alloc(0))
const done = (...answers: readonly Answer[]) => until('the answers', async () => answers.every(({ closed }) => closed !== undefined))

function echo(stream: ServerHttp2Stream): void {
  stream.respond({ ':status': 200 }, { waitForTrailers: true })
  stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
  stream.pipe(stream)
}

describe('HTTP/2', () => {
  it('asks and is answered, also by more than fits into a window', async () => {
    const client = await withNode(echo)
    const sizes = [0, 1, 16_384, 16_385, 65_536, 5_000_000]
    const answers = sizes.map((size) => client.ask(Buffer.alloc(size, size % 251)))
    await done(...answers)
    expect(answers.map(({ size }) => size)).toEqual(sizes)
    expect(Buffer.concat(answers[5]!.chunks).every((byte) => byte === 5_000_000 % 251)).toBe(true)
    for (const { fields } of answers) expect(fields).toMatchObject([{ ':status': '200' }, { 'grpc-status': '0' }])
    expect(client.http2.streams).toBe(0)
  })

  it('keeps to small windows and few streams at a time', async () => {
    let [now, most] = [0, 0]
    const client = await withNode((stream) => {
      most = Math.max(most, ++now)
      stream.on('close', () => now--)
      echo(stream)
    }, { settings: { initialWindowSize: 100, maxConcurrentStreams: 3 } })
    const answers = Array.from({ length: 20 }, () => client.ask(Buffer.alloc(1_000)))
    await done(...answers)
    expect(answers.map(({ size }) => size)).toEqual(answers.map(() => 1_000))
    expect(most).toBe(3)
  })

  it('speaks and listens on a stream that goes on for long', async () => {
    const client = await withNode(echo)
    const answer = new Answer()
    const stream = client.http2.request(FIELDS, answer)
    for (let i = 1; i <= 60; i++) {
      client.http2.send(stream, Buffer.alloc(100_000))
      await until('the echo', async () => answer.size === i * 100_000)
    }
    client.http2.cancel(stream)
    expect([answer.closed, client.http2.streams]).toEqual([undefined, 0])
  })

  it.each([0, 1_024])('tells a server that keeps %i bytes of header fields that it needs none of them', async (headerTableSize) => {
    const client = await withNode(echo, { settings: { headerTableSize } })
    for (let i = 0; i < 3; i++) {
      const answer = client.ask(Buffer.alloc(10))
      await done(answer)
      expect(answer.fields).toMatchObject([{ ':status': '200' }, { 'grpc-status': '0' }])
    }
    expect(client.http2.isOpen).toBe(true)
  })

  it('reads all fields, whichever way they are written', async () => {
    const long = 'x'.repeat(40_000)
    const client = await withNode((stream) => {
      stream.respond({ ':status': 404, 'x-text': 'Quite (ordinary) text: 100 %, {"a":1}', 'x-again': 'again', 'x-long': long }, { endStream: true })
    }, { paddingStrategy: 2 })
    for (let i = 0; i < 3; i++) {
      const answer = client.ask(Buffer.alloc(1))
      await done(answer)
      expect(answer.fields).toMatchObject([{ ':status': '404', 'x-text': 'Quite (ordinary) text: 100 %, {"a":1}', 'x-again': 'again', 'x-long': long }])
    }
  })

  it('reads every byte in Huffman’s code that a server may send', async () => {
    // So much that is short in it that all of it is written in it.
    const texts = [...EVERY_BYTE].filter((character) => /\P{Cc}/u.test(character)).map((character) => `${'a'.repeat(40)}${character}`)
    const sent = Object.fromEntries(texts.map((text, i) => [`x-${i}`, text]))
    const client = await withNode((stream) => stream.respond(sent, { endStream: true }))
    const answer = client.ask(Buffer.alloc(1))
    await done(answer)
    expect(answer.fields).toMatchObject([sent])
  })

  it('tells what was refused from what may have been done', async () => {
    const codes = [7, 8]
    const client = await withNode((stream) => stream.close(codes.shift()))
    const answers = [client.ask(Buffer.alloc(1)), client.ask(Buffer.alloc(1))]
    await done(...answers)
    expect(answers.map(({ closed }) => closed)).toEqual(['refused', 'ended'])
  })

  it('leaves when it is told to, after what was begun', async () => {
    const streams: ServerHttp2Stream[] = []
    const client = await withNode((stream) => {
      streams.push(stream)
      // The second one comes too late.
      if (streams.length === 1) stream.session!.goaway(0, stream.id!)
    })
    const [first, second] = [client.ask(Buffer.alloc(1)), client.ask(Buffer.alloc(1))]
    await done(second)
    expect([first.closed, second.closed, client.http2.isOpen]).toEqual([undefined, 'refused', false])
    echo(streams[0]!)
    await done(first)
    expect(first.fields.at(-1)).toEqual({ 'grpc-status': '0' })
    expect(client.closed).toEqual({ error: undefined })
  })

  it('ends with an error of the server, and with the connection', async () => {
    const client = await withNode((stream) => stream.session!.goaway(11, stream.id!, Buffer.from('too_many_pings')))
    const answer = client.ask(Buffer.alloc(1))
    await done(answer)
    expect([answer.closed, client.closed?.error?.message]).toEqual(['ended', expect.stringContaining('too_many_pings')])

    const another = await withNode((stream) => stream.session!.destroy())
    const lost = another.ask(Buffer.alloc(1))
    await done(lost)
    expect([lost.closed, another.http2.isOpen]).toEqual(['ended', false])
  })

  it('answers pings, and has its own answered', async () => {
    let wasAnswered = false
    const client = await withNode((stream) => stream.session!.ping((error) => (wasAnswered = error === null)))
    client.ask(Buffer.alloc(1))
    await until('the answer to the server', async () => wasAnswered)
    await new Promise<void>((resolve) => client.http2.ping(resolve))
  })

  it('retires when nothing is on it any more', async () => {
    const client = await withNode(echo, { settings: { maxConcurrentStreams: 1 } })
    const answers = [client.ask(Buffer.alloc(1)), client.ask(Buffer.alloc(2))]
    client.http2.retire()
    expect([client.http2.isOpen, client.closed]).toEqual([false, undefined])
    await done(...answers)
    expect([answers.map(({ size }) => size), client.closed]).toEqual([[1, 2], { error: undefined }])
  })

  it('retires when what has not begun is cancelled', async () => {
    const client = await withNode(echo, { settings: { maxConcurrentStreams: 0 } })
    const streams = [client.http2.request(FIELDS, new Answer()), client.http2.request(FIELDS, new Answer())]
    client.http2.retire()
    client.http2.cancel(streams[0]!)
    expect(client.closed).toBeUndefined()
    client.http2.cancel(streams[1]!)
    expect(client.closed).toEqual({ error: undefined })
  })

  it('ends with a mistake of a listener, which is not kept quiet', () => {
    const socket = Object.assign(new Duplex({ read() {}, write: (_chunk, _encoding, done) => done() }), { setNoDelay() {} }) as unknown as Socket
    const client = new Client(socket)
    const mistake = new Error('of a listener')
    const onFields = () => {
      throw mistake
    }
    socket.emit('data', SETTINGS)
    client.http2.request(FIELDS, Object.assign(new Answer(), { onFields }), Buffer.alloc(1))
    const another = client.ask(Buffer.alloc(1))
    // What is behind it would be read again, or never.
    const frames = [frame(1, 4, 1, FIELDS), frame(1, 5, 3, FIELDS)]
    expect(() => socket.emit('data', Buffer.concat(frames))).toThrow(mistake)
    expect([client.closed, another.closed, socket.destroyed]).toEqual([{ error: mistake }, 'ended', true])
  })

  it.each([
    ['HTTP/1.1', [Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n')]],
    ['no settings', [frame(6, 0, 0, Buffer.alloc(8))]],
    ['a push', [SETTINGS, frame(5, 4, 1, Buffer.alloc(8))]],
    ['too much padding', [SETTINGS, frame(1, 12, 1, Buffer.from([9, 0]))]],
    ['settings that are cut off', [frame(4, 0, 0, Buffer.alloc(5))]],
    ['a frame that is too short', [SETTINGS, frame(8, 0, 0, Buffer.alloc(3))]],
    ['header fields that go on from nowhere', [SETTINGS, frame(9, 4, 1, Buffer.alloc(1))]],
    ['another frame within header fields', [SETTINGS, frame(1, 0, 1, Buffer.alloc(1)), SETTINGS]],
    ['header fields without an end', [SETTINGS, frame(1, 0, 1, Buffer.alloc(1)), ...Array.from({ length: 20 }, () => frame(9, 0, 1, Buffer.alloc(16_384)))]],
    ['header fields that are none', [SETTINGS, frame(1, 4, 1, Buffer.from([0xff, 0x7f]))]],
  ])('does not go on with %s', async (_what, frames) => {
    const client = await withBytes(...frames)
    await until('the end', async () => client.closed !== undefined)
    expect(client.closed?.error).toBeInstanceOf(Error)
  })
})

describe('header fields', () => {
  it('are read as they were written', () => {
    const fields: [string, string][] = [['a', ''], ['b', EVERY_BYTE], ['c', 'x'.repeat(127)], ['d', 'y'.repeat(128)], ['e', 'z'.repeat(70_000)]]
    expect(new FieldsDecoder().decode(encodeFields(fields))).toEqual(Object.fromEntries(fields))
  })

  /** RFC 7541, C.6: answers of one connection, with a table of 256 bytes. */
  it('are read in Huffman’s code, and from the table', () => {
    const decoder = new FieldsDecoder()
    const decode = (hex: string) => decoder.decode(Buffer.from(hex.replaceAll(' ', ''), 'hex'))
    const common = { 'cache-control': 'private', location: 'https://www.example.com' }
    expect(decode('3fe101 488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3'))
      .toEqual({ ...common, ':status': '302', date: 'Mon, 21 Oct 2013 20:13:21 GMT' })
    expect(decode('4883640effc1c0bf')).toEqual({ ...common, ':status': '307', date: 'Mon, 21 Oct 2013 20:13:21 GMT' })
    expect(decode('88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007'))
      .toEqual({
        ...common, ':status': '200', date: 'Mon, 21 Oct 2013 20:13:22 GMT', 'content-encoding': 'gzip',
        'set-cookie': 'foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1',
      })
    // What was there at first had to make room.
    expect(() => decode('c1')).toThrow(HpackError)
  })

  it.each([
    ['a number that is cut off', 'ff'],
    ['a number that is too long', 'ffffffffffffff'],
    ['text that is cut off', '000561'],
    ['a field that is not there', 'be'],
    ['a field without a number', '80'],
    ['a table that is too large', '3fe21f'],
    ['an end of text within it', '0001618 4ffffffff'],
    ['a code that is filled up with other than ones', '000161 8100'],
  ])('are refused: %s', (_what, hex) => {
    expect(() => new FieldsDecoder().decode(Buffer.from(hex.replaceAll(' ', ''), 'hex'))).toThrow(HpackError)
  })
})
