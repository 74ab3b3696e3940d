/**
 * Which slot of a cluster a key is in, and for each slot a short tag that is in it, so that the keys of one resource can be kept
 * together whatever the resource is called.
 */
const SLOTS = 16_384

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
