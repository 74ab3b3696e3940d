/** Whether a client has gone, on servers that give Node's own responses. */

/** Of Node's HTTP/1 and HTTP/2 servers. */
export interface ServerResponse {
  readonly writableEnded: boolean
  readonly destroyed?: boolean
  once(event: 'close', listener: () => void): unknown
}

/** Aborts when the connection ends before the whole answer was given: after that, its end is what happens to all of them. */
export function goneSignal(response: ServerResponse): AbortSignal {
  const controller = new AbortController()
  const look = () => {
    if (!response.writableEnded) controller.abort(new DOMException('The client has gone before it was answered.', 'AbortError'))
  }
  // It may have gone while whatever came before this was at work.
  if (response.destroyed) look()
  else response.once('close', look)
  return controller.signal
}
