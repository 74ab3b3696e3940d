/** What Redis and its clients say when something is wrong, in our words. */
import { BackendError, ConnectorError, type HoldfastError } from '../../core/errors.js'

export function isNoScript(error: unknown): boolean {
  return error instanceof Error && error.message.startsWith('NOSCRIPT')
}

/** What the server says while it cannot serve for a moment. */
const TRANSIENT_REPLIES =
  /^(LOADING|BUSY|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|NOREPLICAS|OOM|MISCONF|UNBLOCKED)\b/
/** What the server says for good. Anything that is not a reply is the connection's, and may be over in a moment. */
const REPLY = /^[A-Z]+ /
/** node-redis, of a client that was never opened or has been closed. */
const CLIENT_CLOSED = 'The client is closed'

export function redisError(error: unknown): HoldfastError {
  const message = error instanceof Error ? error.message : String(error)
  const cause = withoutSecrets(error)
  if (message === CLIENT_CLOSED) {
    return new ConnectorError('The Redis client is not open. Call `await client.connect()` first, and close it last.', { cause })
  }
  const transient = TRANSIENT_REPLIES.test(message) || !REPLY.test(message)
  return new BackendError(`Redis failed: ${message}`, { cause, transient })
}

/** Whether the server has said so: what it refuses it has not begun. */
export function isReply({ message }: BackendError): boolean {
  return REPLY.test(message.replace(/^Redis failed: /, ''))
}

/** Whether a script was refused because its slot is on the way to another node: a driver tries that for a while, in vain. */
export function isMigrating(error: unknown): boolean {
  return error instanceof BackendError && /\bTRYAGAIN\b|Too many Cluster redirections/.test(error.message)
}

/** An error of one item of a script. */
export function redisItemError(message: string): HoldfastError {
  return redisError(new Error(message))
}

/** Drivers put the command with its arguments, tokens and passwords among them, onto their errors. */
export function withoutSecrets(error: unknown): Error {
  const plain = new Error(error instanceof Error ? error.message : String(error))
  if (error instanceof Error) {
    plain.name = error.name
    if (error.stack !== undefined) plain.stack = error.stack
  }
  return plain
}
