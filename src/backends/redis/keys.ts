/**
 * What the keys on Redis are called; `lua/_store.lua` says what is in them. The lock itself is a plain key that clients in any
 * language can share. Its siblings must live in the same cluster slot; since no rule about braces works for every key, they
 * carry a short tag that hashes to the lock's slot.
 */
const SLOTS = 16_384

export class Keys {
  readonly fence: string
  /** Owners are appended. */
  readonly wake: string
  readonly #prefix: string
  readonly #lock: string

  constructor(prefix: string) {
    this.#prefix = prefix
    this.#lock = `${prefix}:lock:`
    this.fence = `${prefix}:fence`
    this.wake = `${prefix}:wake:`
  }

  /** Lock, queue, heard, meta: in the order that the scripts expect. */
  of(resource: string): readonly [lock: string, queue: string, heard: string, meta: string] {
    const lock = this.#lock + resource
    const place = `{${tagOf(slotOf(lock))}}:${resource}`
    return [lock, `${this.#prefix}:q1:${place}`, `${this.#prefix}:w1:${place}`, `${this.#prefix}:m1:${place}`]
  }

  resourceOf(lock: string): string {
    return lock.slice(this.#lock.length)
  }

  /** A pattern for SCAN: the resource's own characters stand for themselves. */
  patternFor(resourcePrefix: string): string {
    return `${escapeGlob(this.#lock + resourcePrefix)}*`
  }
}

function escapeGlob(text: string): string {
  return text.replace(/[\\*?[\]]/g, '\\$&')
}

/** The slot that Redis Cluster gives a key: CRC16 of the first non-empty {…} part, else of all of it. */
export function slotOf(key: string): number {
  const open = key.indexOf('{')
  const close = open < 0 ? -1 : key.indexOf('}', open + 1)
  return crc16(close > open + 1 ? key.slice(open + 1, close) : key) % SLOTS
}

let tags: string[] | undefined

/** The shortest text found that hashes to the slot. */
export function tagOf(slot: number): string {
  return (tags ??= makeTags())[slot]!
}

function makeTags(): string[] {
  const found = new Array<string>(SLOTS)
  for (let n = 0, missing = SLOTS; missing > 0; n++) {
    const tag = n.toString(36)
    const slot = crc16(tag) % SLOTS
    if (found[slot] !== undefined) continue
    found[slot] = tag
    missing--
  }
  return found
}

const CRC_TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc
})

/** CRC16/XMODEM over the UTF-8 bytes. */
function crc16(text: string): number {
  let crc = 0
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code > 0x7f) return crc16Bytes(Buffer.from(text))
    crc = ((crc << 8) & 0xffff) ^ CRC_TABLE[(crc >> 8) ^ code]!
  }
  return crc
}

function crc16Bytes(bytes: Uint8Array): number {
  let crc = 0
  for (const byte of bytes) crc = ((crc << 8) & 0xffff) ^ CRC_TABLE[(crc >> 8) ^ byte]!
  return crc
}
