/** What clients ask of a database. */
export interface Statement {
  /** Of PostgreSQL the pid of the process that serves it, of MariaDB the id of the connection. */
  readonly connection: number
  /** `query` for text in one go. PostgreSQL does not tell of a `prepare`, which is then part of the same round trip or not. */
  readonly kind: 'query' | 'prepare' | 'execute'
  readonly text: string
}

export interface SqlMonitor {
  /** Everything that was answered before this call, without what the server itself asks for a test. */
  statements(): Promise<Statement[]>
  stop(): Promise<void>
}
