/**
 * The encoding of protobuf, as far as etcd's messages need it: varints and byte strings, each after a tag that has the
 * number of its field. A 64-bit number is handled as two halves, since arithmetic on bigints is several times slower.
 */

const VARINT = 0
const FIXED_64 = 1
const BYTES = 2
const FIXED_32 = 5

const FIRST_SIZE = 512
const HALF = 2 ** 32
/** The high half of the largest integer that a number holds exactly. */
const SAFE_HIGH = 2 ** 21

/**
 * Of one message, after `reserved` bytes that are left for whatever goes in front of it. Fields with their default are
 * left out.
 */
export class Writer {
  #bytes: Buffer
  #length: number
  /** The last 64-bit number, and its halves. */
  #divided = 0n
  #low = 0
  #high = 0

  constructor(reserved = 0) {
    this.#bytes = Buffer.allocUnsafe(FIRST_SIZE)
    this.#length = reserved
  }

  /** Of text, the last byte of each character. */
  bytes(field: number, value: Uint8Array | string | undefined): void {
    if (value === undefined || value.length === 0) return
    this.#makeRoom(value.length + 15)
    this.#varint(field * 8 + BYTES)
    this.#varint(value.length)
    if (typeof value === 'string') this.#bytes.write(value, this.#length, 'latin1')
    else this.#bytes.set(value, this.#length)
    this.#length += value.length
  }

  text(field: number, value: string): void {
    if (value === '') return
    const length = Buffer.byteLength(value)
    this.#makeRoom(length + 15)
    this.#varint(field * 8 + BYTES)
    this.#varint(length)
    this.#length += this.#bytes.write(value, this.#length, 'utf8')
  }

  flag(field: number, value: boolean | undefined): void {
    if (value === true) this.number(field, 1)
  }

  /** A natural one below 2^32: an enumeration, say. */
  number(field: number, value: number | undefined): void {
    if (value === undefined || value === 0) return
    this.#makeRoom(15)
    this.#varint(field * 8 + VARINT)
    this.#varint(value)
  }

  int64(field: number, value: bigint | undefined): void {
    if (value !== undefined && value !== 0n) this.int64Always(field, value)
  }

  /** One of a choice says by being there which one it is. */
  int64Always(field: number, value: bigint): void {
    this.#makeRoom(20)
    this.#varint(field * 8 + VARINT)
    // One lease is named many times.
    if (value !== this.#divided) {
      this.#divided = value
      this.#low = Number(BigInt.asUintN(32, value))
      this.#high = Number(BigInt.asUintN(32, value >> 32n))
    }
    let low = this.#low
    let high = this.#high
    while (high > 0 || low > 0x7f) {
      this.#bytes[this.#length++] = (low & 0x7f) | 0x80
      low = ((low >>> 7) | (high << 25)) >>> 0
      high >>>= 7
    }
    this.#bytes[this.#length++] = low
  }

  /** A message within this one, which `write` writes. */
  message<T>(field: number, value: T, write: (writer: Writer, value: T) => void): void {
    this.#makeRoom(10)
    this.#varint(field * 8 + BYTES)
    // Most are short enough for a length of one byte; the others are moved.
    const at = this.#length++
    write(this, value)
    const length = this.#length - at - 1
    if (length > 0x7f) this.#moveBy(at, varintSize(length) - 1)
    const end = this.#length
    this.#length = at
    this.#varint(length)
    this.#length = end
  }

  finish(): Buffer {
    return this.#bytes.subarray(0, this.#length)
  }

  #varint(value: number): void {
    let rest = value
    while (rest > 0x7f) {
      this.#bytes[this.#length++] = (rest & 0x7f) | 0x80
      rest >>>= 7
    }
    this.#bytes[this.#length++] = rest
  }

  #moveBy(at: number, distance: number): void {
    this.#makeRoom(distance)
    this.#bytes.copyWithin(at + 1 + distance, at + 1, this.#length)
    this.#length += distance
  }

  #makeRoom(size: number): void {
    if (this.#length + size <= this.#bytes.length) return
    const larger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.#length + size))
    this.#bytes.copy(larger, 0, 0, this.#length)
    this.#bytes = larger
  }
}

function varintSize(value: number): number {
  let size = 1
  for (let rest = value; rest > 0x7f; rest >>>= 7) size++
  return size
}

/** What it reads is cut off, or not protobuf. */
export class WireError extends Error {}

/**
 * Goes through the fields of a message. After `next()` says that there is one, `field` is its number, and exactly one
 * of the others has to be called. Byte strings are views of the buffer.
 */
export class Reader {
  field = 0
  readonly #bytes: Buffer
  #at: number
  #end: number
  #type = VARINT
  #isUnread = false
  #low = 0
  #high = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
    this.#at = 0
    this.#end = bytes.length
  }

  /** To the next field. One that nobody has read is passed over: servers may be newer than we are. */
  next(): boolean {
    if (this.#isUnread) this.#skip()
    this.#isUnread = this.#at < this.#end
    if (!this.#isUnread) return false
    const tag = this.#number()
    this.field = tag >>> 3
    this.#type = tag & 7
    return true
  }

  bytes(): Buffer {
    const length = this.#lengthOfBytes()
    const start = this.#at
    this.#at += length
    return this.#bytes.subarray(start, this.#at)
  }

  text(): string {
    const length = this.#lengthOfBytes()
    const start = this.#at
    this.#at += length
    return this.#bytes.toString('utf8', start, this.#at)
  }

  flag(): boolean {
    return this.number() !== 0
  }

  /** Of more than 53 bits only as near as a number comes to it. */
  number(): number {
    this.#expect(VARINT)
    this.#varint()
    return this.#high * HALF + this.#low
  }

  int64(): bigint {
    this.#expect(VARINT)
    this.#varint()
    if (this.#high < SAFE_HIGH) return BigInt(this.#high * HALF + this.#low)
    return BigInt.asIntN(64, (BigInt(this.#high) << 32n) | BigInt(this.#low))
  }

  /** A message within this one: `read` goes through its fields with this same reader. */
  message<T>(read: (reader: Reader) => T): T {
    const length = this.#lengthOfBytes()
    const outerEnd = this.#end
    this.#end = this.#at + length
    const value = read(this)
    this.#isUnread = false
    this.#at = this.#end
    this.#end = outerEnd
    return value
  }

  #skip(): void {
    if (this.#type === VARINT) this.#varint()
    else if (this.#type === BYTES) this.#advance(this.#number())
    else if (this.#type === FIXED_64) this.#advance(8)
    else if (this.#type === FIXED_32) this.#advance(4)
    else throw new WireError(`There is no type ${this.#type} of fields.`)
  }

  #lengthOfBytes(): number {
    this.#expect(BYTES)
    const length = this.#number()
    if (this.#at + length > this.#end) throw new WireError('A message is cut off.')
    return length
  }

  #expect(type: number): void {
    this.#isUnread = false
    if (this.#type !== type) throw new WireError(`Field ${this.field} has the type ${this.#type} instead of ${type}.`)
  }

  #advance(size: number): void {
    if (this.#at + size > this.#end) throw new WireError('A message is cut off.')
    this.#at += size
  }

  /** A tag or a length: below 2^32. */
  #number(): number {
    const byte = this.#bytes[this.#at]
    if (byte !== undefined && byte < 0x80 && this.#at < this.#end) {
      this.#at++
      return byte
    }
    this.#varint()
    return this.#low
  }

  /** Into the two halves. */
  #varint(): void {
    let low = 0
    let high = 0
    for (let shift = 0; shift < 70; shift += 7) {
      if (this.#at >= this.#end) throw new WireError('A message is cut off.')
      const byte = this.#bytes[this.#at++]!
      const bits = byte & 0x7f
      if (shift < 28) low |= bits << shift
      else if (shift === 28) {
        low |= bits << 28
        high = bits >>> 4
      } else high |= bits << (shift - 32)
      if (byte < 0x80) {
        this.#low = low >>> 0
        this.#high = high >>> 0
        return
      }
    }
    throw new WireError('A number is too long.')
  }
}
