/** Watches on a stream that is lost at the wrong moment. What the server says is made by hand: real ones take seconds to lose a leader. */
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it, onTestFinished } from 'vitest'
import { Auth } from '../../src/backends/etcd/client/auth.js'
import type { Connection } from '../../src/backends/etcd/client/connection.js'
import { CODE, EtcdError } from '../../src/backends/etcd/client/errors.js'
import { frame } from '../../src/backends/etcd/client/frames.js'
import type { Http2Stream, StreamListener } from '../../src/backends/etcd/client/http2.js'
import type { Lane } from '../../src/backends/etcd/client/lane.js'
import type { WatchRequest } from '../../src/backends/etcd/client/messages.js'
import { Watches } from '../../src/backends/etcd/client/watch.js'
import type { Writer } from '../../src/backends/etcd/client/wire.js'
import { until } from '../support/until.js'

class ServerStream implements Http2Stream {
  readonly id = 1
  readonly requests: Buffer[] = []
  pieces = 0
  onRequest: (() => void) | undefined
  readonly #listener: StreamListener

  constructor(listener: StreamListener) {
    this.#listener = listener
  }

  hears(piece: Buffer): void {
    this.pieces++
    for (let rest = piece; rest.length > 0; ) {
      const end = 5 + rest.readUInt32BE(1)
      this.requests.push(rest.subarray(0, end))
      rest = rest.subarray(end)
      this.onRequest?.()
    }
  }

  close(): void {
    this.#listener.onClosed(false)
  }

  says(response: (writer: Writer) => void): void {
    this.#listener.onData(frame(undefined, response))
  }

  created(id: bigint): void {
    this.says((writer) => {
      writer.int64(2, id)
      writer.flag(3, true)
    })
  }

  refuses(reason: string): void {
    this.says((writer) => {
      writer.flag(3, true)
      writer.flag(4, true)
      writer.text(6, reason)
    })
  }

  put(id: bigint, key: string): void {
    this.says((writer) => {
      writer.int64(2, id)
      writer.message(11, key, (event) => event.message(2, key, (kv) => kv.bytes(1, Buffer.from(key, 'latin1'))))
    })
  }
}

/** One connection, which can be missing for a while. */
class FakeLane {
  readonly streams: ServerStream[] = []
  onStream: ((stream: ServerStream) => void) | undefined
  #isThere = true
  #whenThere: (() => void)[] = []

  get connection(): Connection | undefined {
    return this.#isThere ? this.#connection : undefined
  }

  readonly #connection = {
    endpoint: 'http://127.0.0.1:1', isOpen: true, trouble: undefined, heard() {}, destroy: () => this.streams.at(-1)!.close(),
    request: (_about: unknown, listener: StreamListener) => {
      const stream = new ServerStream(listener)
      this.streams.push(stream)
      this.onStream?.(stream)
      return stream
    },
    send: (stream: ServerStream, request: Buffer) => stream.hears(request),
    cancel() {},
  } as unknown as Connection

  ready(): Promise<Connection> {
    return new Promise((resolve) => this.#whenThere.push(() => resolve(this.#connection)))
  }

  cut(): void {
    this.#isThere = false
    this.streams.at(-1)!.close()
  }

  mend(): void {
    this.#isThere = true
    for (const tell of this.#whenThere.splice(0)) tell()
  }

  leave(): void {}
  worked(): void {}
}

describe('a watch', () => {
  it('that was refused while the stream was lost does not mix up what the others hear', async () => {
    const lane = new FakeLane()
    const unreachable = new EtcdError('no leader', { code: CODE.unavailable, reason: 'unreachable', transient: true })
    const watches = new Watches(lane as unknown as Lane, new Auth(undefined, async () => ''), 2_000, () => Promise.reject(unreachable))
    onTestFinished(() => watches.close())
    const heard: string[] = []
    const watch = (name: string) => watches.watch({ key: Buffer.from(name) }, {
      onCreated: () => heard.push(`${name} is there`),
      onEvents: (events) => heard.push(...events.map(({ key }) => `${name}: ${key.toString()}`)),
      onLost: () => {},
    })
    watch('a')
    watch('b')
    await until('it to be asked for', async () => lane.streams[0]?.requests.length === 2)
    lane.streams[0]!.created(1n)
    lane.streams[0]!.refuses('etcdserver: permission denied')
    lane.cut()
    // By then it is tried again.
    await sleep(800)
    lane.mend()
    await until('it to be asked for again', async () => lane.streams[1]?.requests.length === 2)
    heard.length = 0
    lane.streams[1]!.created(1n)
    lane.streams[1]!.created(2n)
    lane.streams[1]!.put(1n, 'a')
    lane.streams[1]!.put(2n, 'b')
    expect(heard).toEqual(['a is there', 'b is there', 'a: a', 'b: b'])
  })

  it('is given no more time than any other, once a server that was slow has answered', async () => {
    const lane = new FakeLane()
    const watches = new Watches(lane as unknown as Lane, new Auth(undefined, async () => ''), 100, () => Promise.resolve())
    onTestFinished(() => watches.close())
    const listener = { onCreated() {}, onEvents() {}, onLost() {} }
    watches.watch({ key: Buffer.from('a') }, listener)
    // It has had 50, 100, 200 and 400 ms, and would have 800.
    await until('the fifth stream', async () => lane.streams.length === 5)
    lane.streams.at(-1)!.created(1n)
    const askedAt = performance.now()
    watches.watch({ key: Buffer.from('b') }, listener)
    await until('the next one', async () => lane.streams.length === 6)
    expect(performance.now() - askedAt).toBeLessThan(400)
  })

  const inAll = { key: Buffer.from('b'), rangeEnd: Buffer.alloc(1) }
  const inSome = { key: Buffer.from('b'), rangeEnd: Buffer.from('d') }
  it.each<[string, WatchRequest, string[], string[]]>([
    ['a key', { key: Buffer.from('b') }, ['b'], ['a', 'b0', 'c', '']],
    ['a range', inSome, ['b', 'b0', 'c', 'czz'], ['a', 'd', 'd0', '']],
    ['a range without an end', inAll, ['b', 'c', '\xff\xff'], ['a', 'azz', '']],
  ])('of %s that hears of another’s is made anew', async (_, request, own, others) => {
    for (const other of others) {
      const lane = new FakeLane()
      const watches = new Watches(lane as unknown as Lane, new Auth(undefined, async () => ''), 2_000, () => Promise.resolve())
      onTestFinished(() => watches.close())
      const heard: string[] = []
      watches.watch(request, {
        onCreated: () => heard.push('created'),
        onEvents: (events) => heard.push(...events.map(({ key }) => key.toString('latin1'))),
        onLost: () => heard.push('lost'),
      })
      await until('it to be asked for', async () => lane.streams[0]?.requests.length === 1)
      lane.streams[0]!.created(1n)
      for (const key of own) lane.streams[0]!.put(1n, key)
      lane.streams[0]!.put(1n, other)
      expect(heard, other).toEqual(['created', ...own, 'lost'])
      await until('it to be asked for again', async () => lane.streams[1]?.requests.length === 1)
      lane.streams[1]!.created(1n)
      for (const key of own) lane.streams[1]!.put(1n, key)
      expect(heard, other).toEqual(['created', ...own, 'lost', 'created', ...own])
    }
  })

  it('that is refused although it may be read is not asked for without a pause', async () => {
    const lane = new FakeLane()
    const watches = new Watches(lane as unknown as Lane, new Auth(undefined, async () => ''), 2_000, () => Promise.resolve())
    onTestFinished(() => watches.close())
    let asked = 0
    lane.onStream = (stream) => {
      stream.onRequest = () => {
        asked++
        setImmediate(() => stream.refuses('etcdserver: permission denied'))
      }
    }
    watches.watch({ key: Buffer.from('a') }, { onCreated() {}, onEvents() {}, onLost() {} })
    await sleep(1_000)
    // Once more with a new token.
    expect(asked).toBeGreaterThan(1)
    expect(asked).toBeLessThan(10)
  })

  it('that is refused with a new token, too, is not forbidden if it may be read', async () => {
    const lane = new FakeLane()
    let tokens = 0
    const auth = new Auth({ username: 'app', password: '' }, async () => `token ${++tokens}`)
    const watches = new Watches(lane as unknown as Lane, auth, 2_000, () => Promise.resolve())
    onTestFinished(() => watches.close())
    const heard: string[] = []
    lane.onStream = (stream) => {
      stream.onRequest = () => {
        if (tokens < 3) stream.refuses('rpc error: code = Unauthenticated desc = etcdserver: invalid auth token')
        else stream.created(1n)
      }
    }
    watches.watch({ key: Buffer.from('a') }, {
      onCreated: () => heard.push('created'), onEvents() {}, onLost() {}, onRefused: ({ message }) => heard.push(message),
    })
    await until('it to be there', async () => heard.length > 0)
    expect(heard).toEqual(['created'])
    expect(lane.streams).toHaveLength(3)
  })

  it('is asked for in one piece with all others when the stream is there again: what cannot be sent yet is copied for each piece', async () => {
    const lane = new FakeLane()
    const watches = new Watches(lane as unknown as Lane, new Auth(undefined, async () => ''), 2_000, () => Promise.resolve())
    onTestFinished(() => watches.close())
    for (let i = 0; i < 1_000; i++) watches.watch({ key: Buffer.from(`${i}`) }, { onCreated() {}, onEvents() {}, onLost() {} })
    lane.cut()
    lane.mend()
    await until('all to be asked for', async () => lane.streams[1]?.requests.length === 1_000)
    expect(lane.streams[1]!.pieces).toBe(1)
  })
})
