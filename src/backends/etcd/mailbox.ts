/** What is put into the mailbox of a lease, for the process that it belongs to. */

/** About which of its claims. The key alone may be that of a later one by the time it is read. */
export type Message = readonly [kind: 'contended' | 'revoked' | 'lost', key: string, createRevision: string]

const KINDS: readonly unknown[] = ['contended', 'revoked', 'lost']

export function writeMessage(message: Message): Buffer {
  return Buffer.from(JSON.stringify(message))
}

/** Undefined for what others may have put there. */
export function readMessage(text: string): Message | undefined {
  try {
    const message = JSON.parse(text) as unknown
    return isMessage(message) ? message : undefined
  } catch {
    return undefined
  }
}

function isMessage(read: unknown): read is Message {
  if (!Array.isArray(read)) return false
  const [kind, key, createRevision] = read as unknown[]
  return KINDS.includes(kind) && typeof key === 'string' && typeof createRevision === 'string'
}
