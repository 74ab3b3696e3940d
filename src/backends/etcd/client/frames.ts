/** A message of gRPC: a byte that says it is not compressed, four with its length, and the message. */
import { Writer } from './wire.js'

const PREFIX = 5

export function frame<T>(value: T, write: (writer: Writer, value: T) => void): Buffer {
  const writer = new Writer(PREFIX)
  write(writer, value)
  const bytes = writer.finish()
  bytes[0] = 0
  bytes.writeUInt32BE(bytes.length - PREFIX, 1)
  return bytes
}

/** Cuts what comes in into messages. They may be split anywhere, and several may come at once. */
export class Deframer {
  #rest: Buffer | undefined
  /** Chunks that only make the rest longer are gathered, not joined each time. */
  #more: Buffer[] = []
  #missing = 0

  push(chunk: Buffer, onMessage: (message: Buffer) => void): void {
    let bytes = chunk
    if (this.#rest) {
      this.#more.push(chunk)
      this.#missing -= chunk.length
      if (this.#missing > 0) return
      bytes = Buffer.concat([this.#rest, ...this.#more])
      this.#rest = undefined
      this.#more = []
    }
    let at = 0
    while (bytes.length - at >= PREFIX) {
      const end = at + PREFIX + bytes.readUInt32BE(at + 1)
      if (end > bytes.length) break
      onMessage(bytes.subarray(at + PREFIX, end))
      at = end
    }
    if (at < bytes.length) this.#keep(bytes.subarray(at))
  }

  #keep(rest: Buffer): void {
    this.#rest = rest
    const wanted = rest.length < PREFIX ? PREFIX : PREFIX + rest.readUInt32BE(1)
    this.#missing = wanted - rest.length
  }
}
