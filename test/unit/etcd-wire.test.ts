/**
 * How messages of etcd are encoded, and cut out of a stream. That etcd understands them is for
 * test/process/etcd-client.test.ts.
 */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Deframer, frame } from '../../src/backends/etcd/client/frames.js'
import * as messages from '../../src/backends/etcd/client/messages.js'
import { Reader, WireError, Writer } from '../../src/backends/etcd/client/wire.js'

type Field =
  | { readonly int64: bigint }
  | { readonly bytes: Uint8Array }
  | { readonly text: string }
  | { readonly message: readonly Field[] }

const int64 = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n })
const bytes = fc.uint8Array({ minLength: 1, maxLength: 400 })

const { fields } = fc.letrec<{ field: Field; fields: Field[] }>((tie) => ({
  field: fc.oneof(
    { depthSize: 'small' },
    int64.map((value) => ({ int64: value })),
    bytes.map((value) => ({ bytes: value })),
    fc.string({ minLength: 1, unit: 'grapheme' }).map((value) => ({ text: value })),
    tie('fields').map((value) => ({ message: value })),
  ),
  fields: fc.array(tie('field'), { maxLength: 6 }),
}))

function write(writer: Writer, all: readonly Field[]): void {
  for (const [i, field] of all.entries()) {
    if ('int64' in field) writer.int64Always(i + 1, field.int64)
    else if ('bytes' in field) writer.bytes(i + 1, field.bytes)
    else if ('text' in field) writer.text(i + 1, field.text)
    else writer.message(i + 1, field.message, write)
  }
}

/** `like` tells what kind each field is: bytes alone do not. */
function read(reader: Reader, like: readonly Field[]): Field[] {
  const all: Field[] = []
  while (reader.next()) {
    const field = like[reader.field - 1]!
    if ('int64' in field) all.push({ int64: reader.int64() })
    else if ('bytes' in field) all.push({ bytes: Uint8Array.from(reader.bytes()) })
    else if ('text' in field) all.push({ text: reader.text() })
    else all.push({ message: reader.message((inner) => read(inner, field.message)) })
  }
  return all
}

function written(work: (writer: Writer) => void): Buffer {
  const writer = new Writer()
  work(writer)
  return writer.finish()
}

const hex = (work: (writer: Writer) => void) => written(work).toString('hex')
const key = Buffer.from('k')

describe('fields', () => {
  it('come back as they were', () => {
    fc.assert(
      fc.property(fields, (all) => {
        const encoded = written((writer) => write(writer, all))
        expect(read(new Reader(encoded), all)).toEqual(all)
      }),
    )
  })

  it('can be passed over', () => {
    fc.assert(
      fc.property(fields, (all) => {
        const reader = new Reader(written((writer) => write(writer, all)))
        let count = 0
        while (reader.next()) count++
        expect(count).toBe(all.length)
      }),
    )
  })

  it('that are cut off are an error, never nonsense', () => {
    fc.assert(
      fc.property(fields, fc.nat(), (all, n) => {
        const encoded = written((writer) => write(writer, all))
        const cut = encoded.subarray(0, n % (encoded.length + 1))
        try {
          const some = read(new Reader(cut), all)
          expect(some).toEqual(all.slice(0, some.length))
        } catch (error) {
          expect(error).toBeInstanceOf(WireError)
        }
      }),
    )
  })

  it.each([
    [1n, '0801'],
    [127n, '087f'],
    [128n, '088001'],
    [150n, '089601'],
    [2n ** 32n, '088080808010'],
    [2n ** 63n - 1n, '08ffffffffffffffff7f'],
    [-1n, '08ffffffffffffffffff01'],
  ])('%s is what protobuf makes of it', (value, expected) => {
    expect(hex((writer) => writer.int64(1, value))).toBe(expected)
    const reader = new Reader(Buffer.from(expected, 'hex'))
    expect([reader.next(), reader.int64()]).toEqual([true, value])
  })

  it('with their default are left out', () => {
    const nothing = hex((writer) => {
      writer.int64(1, 0n)
      writer.int64(2, undefined)
      writer.number(3, 0)
      writer.flag(4, false)
      writer.bytes(5, new Uint8Array())
    })
    expect(nothing).toBe('')
  })

  it('of another type than expected are an error', () => {
    const reader = new Reader(written((writer) => writer.text(1, 'text')))
    reader.next()
    expect(() => reader.int64()).toThrow(WireError)
  })

  it('with a number of too many bytes are an error', () => {
    const reader = new Reader(Buffer.from('08ffffffffffffffffffff01', 'hex'))
    reader.next()
    expect(() => reader.int64()).toThrow(WireError)
  })
})

describe('requests', () => {
  it('of a range', () => {
    const sort = { by: 'create', order: 'descend' } as const
    const request = { key, rangeEnd: Buffer.from('l'), limit: 5, sort, maxCreateRevision: 9n }
    expect(hex((writer) => messages.writeRange(writer, request))).toBe('0a016b12016c1805280230026809')
  })

  it('of a comparison with zero, which says by being there what it is about', () => {
    const compare = [{ target: 'create', key, value: 0n }] as const
    expect(hex((writer) => messages.writeTxn(writer, { compare }))).toBe('0a0710011a016b2800')
  })

  it('of a comparison of a range', () => {
    const compare = [{ target: 'mod', result: 'less', key, rangeEnd: Buffer.from('l'), value: 7n }] as const
    expect(hex((writer) => messages.writeTxn(writer, { compare }))).toBe('0a0d080210021a016b30078204016c')
  })

  it('of transactions within one', () => {
    const inner = { kind: 'txn', failure: [{ kind: 'put', key, ignoreValue: true, ignoreLease: true }] } as const
    const outer = { success: [{ kind: 'delete', key, prevKv: true }, inner] } as const
    expect(hex((writer) => messages.writeTxn(writer, outer))).toBe('12071a050a016b1801120d220b1a0912070a016b28013001')
  })

  it('of a watch', () => {
    const request = { key, filters: ['noput', 'nodelete'], prevKv: true, startRevision: 3n } as const
    expect(hex((writer) => messages.writeWatchCreate(writer, request))).toBe('0a0d0a016b18032a02000130014001')
  })
})

describe('answers', () => {
  const header = (writer: Writer) => writer.message(1, 42n, (inner, revision) => inner.int64(3, revision))
  const keyValue = (writer: Writer, [name, revision]: readonly [string, bigint]) => {
    writer.text(1, name)
    writer.int64(2, revision)
    writer.int64(3, revision + 1n)
    writer.int64(4, 2n)
    writer.text(5, 'value')
    writer.int64(6, -7n)
  }

  it('with fields that only newer servers have', () => {
    const encoded = written((writer) => {
      header(writer)
      writer.message(2, ['a', 5n] as const, keyValue)
      writer.int64(3, 1n)
      writer.int64(4, 1_000n)
      writer.text(99, 'new')
    })
    const numbers = { createRevision: 5n, modRevision: 6n, version: 2n, lease: -7n }
    const kvs = [{ key: Buffer.from('a'), value: Buffer.from('value'), ...numbers }]
    const answer = messages.readRange(new Reader(encoded))
    expect(answer).toEqual({ kind: 'range', revision: 42n, kvs, more: true, count: 1_000 })
  })

  it('to an empty transaction within one', () => {
    const encoded = written((writer) => writer.message(3, undefined, () => {}))
    const { responses } = messages.readTxn(new Reader(encoded))
    expect(responses).toEqual([{ kind: 'txn', revision: 0n, succeeded: true, responses: [] }])
  })

  it('about a lease that is not there', () => {
    const encoded = written((writer) => writer.int64(3, -1n))
    expect(messages.readLeaseTimeToLive(new Reader(encoded))).toEqual({ ttlS: -1, grantedTtlS: 0, keys: [] })
  })

  it('of a watch that is refused', () => {
    const encoded = written((writer) => {
      writer.int64(2, -1n)
      writer.flag(3, true)
      writer.flag(4, true)
      writer.text(6, 'why')
    })
    const answer = messages.readWatchResponse(new Reader(encoded))
    expect(answer).toMatchObject({ watchId: -1n, created: true, canceled: true, cancelReason: 'why' })
  })
})

describe('frames', () => {
  it('come out whole, however they are split', () => {
    fc.assert(
      fc.property(fc.array(bytes), fc.array(fc.integer({ min: 1, max: 300 })), (all, sizes) => {
        const stream = Buffer.concat(all.map((value) => frame(value, (writer, content) => writer.bytes(1, content))))
        const expected = all.map((value) => written((writer) => writer.bytes(1, value)).toString('hex'))
        const deframer = new Deframer()
        const found: string[] = []
        for (let at = 0, i = 0; at < stream.length; i++) {
          const size = sizes[i % Math.max(1, sizes.length)] ?? stream.length
          deframer.push(stream.subarray(at, at + size), (message) => found.push(message.toString('hex')))
          at += size
        }
        expect(found).toEqual(expected)
      }),
    )
  })
})
