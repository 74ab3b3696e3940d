/** What the rows say, in the core's words. */
import type { Holder } from '../../core/backend.js'

/** A blob, as clients give it. */
export type Bytes = Uint8Array | ArrayBuffer

/** A claim that holds. */
export interface HolderRow {
  /** Its epoch. */
  readonly number: string
  id: string
  owner: string
  readonly take: number
  revoked: boolean
  readonly type: Bytes | null
  readonly metadata: Bytes | null
  readonly grantedAt: number
  expiresAt: number
}

/** The same bytes: libsql gives an ArrayBuffer, and takes none. */
export function toView(bytes: Bytes): Uint8Array {
  return bytes instanceof ArrayBuffer ? new Uint8Array(bytes) : bytes
}

export function toText(bytes: Bytes): string {
  const { buffer, byteOffset, byteLength } = toView(bytes)
  return Buffer.from(buffer, byteOffset, byteLength).toString()
}

export function toBytes(text: string | undefined): Buffer | null {
  return text === undefined ? null : Buffer.from(text)
}

export function describeHolder({ owner, number, grantedAt, expiresAt, type, metadata }: HolderRow, now: number): Holder {
  return {
    owner,
    epoch: BigInt(number),
    heldForMs: now - grantedAt,
    expiresInMs: expiresAt - now,
    ...(type === null ? {} : { type: toText(type) }),
    ...(metadata === null ? {} : { metadata: toText(metadata) }),
  }
}
