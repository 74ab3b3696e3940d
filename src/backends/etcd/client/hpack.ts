/**
 * How HTTP/2 writes header fields (RFC 7541). What we send uses no table of our own, so that a block of fields can be made once and be
 * sent again and again. What we receive uses both tables, and Huffman's code.
 */

export type Fields = Readonly<Record<string, string>>

/** What comes is no block of header fields. */
export class HpackError extends Error {}

/** The fields that are known to both sides from the start, numbered from 1. Of most only the name is. */
const STATIC: readonly (readonly [name: string, value: string])[] = `
  :authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204|:status 206
  |:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|accept-language|accept-ranges|accept
  |access-control-allow-origin|age|allow|authorization|cache-control|content-disposition|content-encoding|content-language
  |content-length|content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|if-modified-since
  |if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range
  |referer|refresh|retry-after|server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate`
  .split('|')
  .map((field) => field.trim())
  .map((field) => (field.includes(' ') ? [field.slice(0, field.indexOf(' ')), field.slice(field.indexOf(' ') + 1)] : [field, '']))

const TABLE_BYTES = 4_096
/** What a field counts for in the table, beside its text. */
const FIELD_BYTES = 32

/** Each field with its name and value as they are. */
export function encodeFields(fields: Iterable<readonly [name: string, value: string]>): Buffer {
  return Buffer.concat([...fields].flatMap(([name, value]) => [Buffer.of(0), text(name), text(value)]))
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value, 'latin1')
  return Buffer.concat([Buffer.from(integer(bytes.length, 7)), bytes])
}

/** In the last so many bits of a byte, and in more bytes if it is too large for them. */
function integer(value: number, bits: number): number[] {
  const most = 2 ** bits - 1
  if (value < most) return [value]
  const bytes = [most]
  let rest = value - most
  for (; rest > 0x7f; rest >>>= 7) bytes.push((rest & 0x7f) | 0x80)
  return [...bytes, rest]
}

/** Of one connection: what it has read before counts. */
export class FieldsDecoder {
  /** The latest first. */
  readonly #table: (readonly [name: string, value: string])[] = []
  #tableBytes = 0
  #mostBytes = TABLE_BYTES
  #bytes: Buffer = Buffer.alloc(0)
  #at = 0

  decode(block: Buffer): Fields {
    this.#bytes = block
    this.#at = 0
    const fields: Record<string, string> = {}
    while (this.#at < block.length) {
      const first = block[this.#at]!
      // A new size of the table is no field.
      if (first >= 0x20 && first < 0x40) {
        this.#resize(this.#integer(5))
        continue
      }
      const [name, value] = first >= 0x80 ? this.#known(this.#integer(7)) : this.#literal(first >= 0x40)
      fields[name] = value
    }
    return fields
  }

  #literal(isKept: boolean): readonly [name: string, value: string] {
    const at = this.#integer(isKept ? 6 : 4)
    const name = at === 0 ? this.#text() : this.#known(at)[0]
    const field = [name, this.#text()] as const
    if (isKept) this.#keep(field)
    return field
  }

  #known(at: number): readonly [name: string, value: string] {
    const field = at <= STATIC.length ? STATIC[at - 1] : this.#table[at - STATIC.length - 1]
    if (!field) throw new HpackError(`There is no header field ${at}.`)
    return field
  }

  #keep(field: readonly [name: string, value: string]): void {
    this.#table.unshift(field)
    this.#tableBytes += sizeOf(field)
    this.#evict()
  }

  #resize(mostBytes: number): void {
    if (mostBytes > TABLE_BYTES) throw new HpackError(`A table of ${mostBytes} bytes is too large.`)
    this.#mostBytes = mostBytes
    this.#evict()
  }

  #evict(): void {
    while (this.#tableBytes > this.#mostBytes) this.#tableBytes -= sizeOf(this.#table.pop()!)
  }

  #byte(): number {
    const byte = this.#bytes[this.#at++]
    if (byte === undefined) throw new HpackError('A block of header fields is cut off.')
    return byte
  }

  #integer(bits: number): number {
    const most = 2 ** bits - 1
    let value = this.#byte() & most
    if (value < most) return value
    for (let shift = 0; shift < 28; shift += 7) {
      const byte = this.#byte()
      value += (byte & 0x7f) << shift
      if (byte < 0x80) return value
    }
    throw new HpackError('A number is too long.')
  }

  #text(): string {
    const isCoded = (this.#bytes[this.#at] ?? 0) >= 0x80
    const start = this.#integer(7) + this.#at
    const bytes = this.#bytes.subarray(this.#at, start)
    if (start > this.#bytes.length) throw new HpackError('A block of header fields is cut off.')
    this.#at = start
    return isCoded ? decodeHuffman(bytes) : bytes.toString('latin1')
  }
}

function sizeOf([name, value]: readonly [string, string]): number {
  return name.length + value.length + FIELD_BYTES
}

/** How many bits each byte has in Huffman's code. The code itself follows: in the order of length, and then of the bytes. */
const CODE_LENGTHS = [
  13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
  6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
  13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
  15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
  20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
  22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
  26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
  20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
]
const LONGEST_CODE = 30

/** By length: the bytes that have such a code, and the first of their codes. */
const CODES = Array.from({ length: LONGEST_CODE + 1 }, (_, length) => ({
  bytes: CODE_LENGTHS.flatMap((one, byte) => (one === length ? byte : [])),
  first: CODE_LENGTHS.reduce((sum, one) => (one < length ? sum + 2 ** (length - one) : sum), 0),
}))

function decodeHuffman(coded: Buffer): string {
  const decoded: number[] = []
  let code = 0
  let length = 0
  for (const byte of coded) {
    for (let bit = 7; bit >= 0; bit--) {
      code = code * 2 + ((byte >> bit) & 1)
      if (++length > LONGEST_CODE) throw new HpackError('This is not in Huffman’s code.')
      const { bytes, first } = CODES[length]!
      const found = bytes[code - first]
      if (found === undefined) continue
      decoded.push(found)
      code = 0
      length = 0
    }
  }
  // The last byte is filled up with ones.
  if (length > 7 || code !== 2 ** length - 1) throw new HpackError('This is not in Huffman’s code.')
  return Buffer.from(decoded).toString('latin1')
}
