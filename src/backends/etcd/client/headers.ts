/** What goes before a message of gRPC, and what comes after the last one. */
import { CODE, EtcdError, statusError } from './errors.js'
import { encodeFields, type Fields } from './hpack.js'

export interface RequestAbout {
  readonly path: string
  /** '' for none. */
  readonly token: string
  /** Without it, it may last for ever. */
  readonly timeoutMs?: number
}

/** Those of the requests on one connection. */
export class RequestFields {
  readonly #scheme: string
  readonly #authority: string
  /** Nearly all requests are like one that was made before: by path, and those of the latest token and time limits only. */
  readonly #made = new Map<string, { readonly token: string; readonly limit: string; readonly block: Buffer }>()

  constructor({ protocol, host }: URL) {
    this.#scheme = protocol.slice(0, -1)
    this.#authority = host
  }

  /** As a block that can be sent. */
  of({ path, token, timeoutMs }: RequestAbout): Buffer {
    const limit = timeoutMs === undefined ? '' : `${Math.max(1, Math.ceil(timeoutMs))}m`
    const made = this.#made.get(path)
    if (made?.token === token && made.limit === limit) return made.block
    const block = encodeFields([
      [':method', 'POST'],
      [':scheme', this.#scheme],
      [':path', path],
      [':authority', this.#authority],
      ['te', 'trailers'],
      ['content-type', 'application/grpc'],
      // Else a server that has lost the others accepts what it cannot do, and says nothing.
      ['hasleader', 'true'],
      ...(limit === '' ? [] : [['grpc-timeout', limit] as const]),
      ...(token === '' ? [] : [['token', token] as const]),
    ])
    this.#made.set(path, { token, limit, block })
    return block
  }
}

/** By these, a proxy that has lost its servers for a moment. */
const PASSING = ['429', '502', '503', '504']
const UNAVAILABLE = { code: CODE.unavailable, reason: 'unreachable', mayBeDone: true, transient: true } as const

/** The status that ends a call: undefined if that is not said here, null if all went well. */
export function statusOf(fields: Fields): EtcdError | null | undefined {
  const status = fields['grpc-status']
  if (status === '0') return null
  if (status !== undefined) return statusError(Number(status), decode(fields['grpc-message'] ?? ''))
  const http = fields[':status']
  if (http === undefined || http === '200') return undefined
  if (PASSING.includes(http)) return new EtcdError(`Before etcd something answers with HTTP status ${http}`, UNAVAILABLE)
  const options = { code: CODE.unknown, reason: 'other', mayBeDone: true } as const
  return new EtcdError(`This is no etcd: it answers with HTTP status ${http}`, options)
}

function decode(message: string): string {
  try {
    return decodeURIComponent(message)
  } catch {
    return message
  }
}
