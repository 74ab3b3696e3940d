/** What we need of a client for PostgreSQL, whichever it is. */
export interface PostgresClient {
  /**
   * One statement that gives one row with one column, `result`. If the server may `keep` it, it need not read it anew each time: it is
   * the same for as long as the client lives, and nothing is between us and the server. Not all clients can have that done safely.
   */
  query(text: string, values: readonly string[], keep?: boolean): Promise<string>
  /** Several statements at once, without values. */
  script(text: string): Promise<void>
  /** On a connection of its own. Not there where the client has none. */
  readonly listen?: ((channel: string, onNews: (news: string) => void, onEnd: () => void) => Promise<Channel>) | undefined
  /** Closes only what it opened itself. */
  close(): Promise<void>
}

export interface Channel {
  /** The process of the server that serves the connection, as it was told. */
  readonly pid: number
  close(): Promise<void>
}
