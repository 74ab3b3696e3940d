/** What we need of a client for PostgreSQL, whichever it is. */
export interface PostgresClient {
  /** One statement that gives one row with one column, a text. If anything else comes back, '': it may be the answer to another one. */
  query(text: string, values: readonly string[], about?: About): Promise<string>
  /** Several statements at once, without values. */
  script(text: string): Promise<void>
  /** On a connection of its own. Not there where the client has none. */
  readonly listen?: ((channel: string, onNews: (news: string) => void, onEnd: () => void) => Promise<Channel>) | undefined
  /** Closes only what it opened itself. */
  close(): Promise<void>
}

/** About a statement. */
export interface About {
  /**
   * The server may keep it, and need not read it anew each time: it is the same for as long as the client lives, and nothing is between
   * us and the server. Not all clients can have that done safely.
   */
  readonly keep?: boolean
  /** Its values are our users' data, and none of the server's log. */
  readonly isPrivate?: boolean
}

export interface Channel {
  /** The process of the server that serves the connection, as it was told. */
  readonly pid: number
  close(): Promise<void>
}

/** Of the first row the first column: its name may have been changed by the client. */
export function resultOf(rows: unknown): string {
  const [row] = Array.isArray(rows) ? (rows as unknown[]) : []
  const [value] = Object.values(row ?? {}) as unknown[]
  return typeof value === 'string' ? value : ''
}
