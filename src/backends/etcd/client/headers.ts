/** What goes before a message of gRPC, and what comes after the last one. */
import type { IncomingHttpHeaders, IncomingHttpStatusHeader, OutgoingHttpHeaders } from 'node:http2'
import { CODE, EtcdError, statusError } from './errors.js'

/** `token`: '' for none. Without `timeoutMs` it may last for ever. */
export function requestHeaders(path: string, token: string, timeoutMs?: number): OutgoingHttpHeaders {
  const headers: OutgoingHttpHeaders = {
    ':method': 'POST',
    ':path': path,
    te: 'trailers',
    'content-type': 'application/grpc',
    // Else a server that has lost the others accepts what it cannot do, and says nothing.
    hasleader: 'true',
  }
  if (timeoutMs !== undefined) headers['grpc-timeout'] = `${Math.max(1, Math.ceil(timeoutMs))}m`
  if (token !== '') headers['token'] = token
  return headers
}

/** The status that ends a call: undefined if that is not said here, null if all went well. */
export function statusOf(headers: IncomingHttpHeaders & IncomingHttpStatusHeader): EtcdError | null | undefined {
  const status = headers['grpc-status']
  if (status === '0') return null
  if (status !== undefined) return statusError(Number(status), decode(String(headers['grpc-message'] ?? '')))
  const http = headers[':status']
  if (http === undefined || http === 200) return undefined
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
