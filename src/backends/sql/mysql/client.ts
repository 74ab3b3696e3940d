/** What we need of a client for MySQL and MariaDB, whichever it is. */
export interface MysqlClient {
  /** One statement that gives one row with one column, `result`; or the call of a procedure that does, or gives none. */
  query(text: string, values: readonly string[]): Promise<string | undefined>
  /** Statements without values, one after the other on one connection, and in the end what puts that back as it was. */
  script(statements: readonly string[], after: readonly string[]): Promise<void>
  /** Closes only what it opened itself. */
  close(): Promise<void>
}

/**
 * The one value in what came back: rows, or the rows of each result of a procedure; arrays or objects; text or bytes. None if the
 * procedure gave no rows: then there is only a header that says how it went, or nothing at all.
 */
export function onlyValue(answer: unknown): string | undefined {
  if (typeof answer === 'string') return answer
  if (answer instanceof Uint8Array) return Buffer.from(answer.buffer, answer.byteOffset, answer.byteLength).toString()
  if (typeof answer !== 'object' || answer === null) return undefined
  const { 0: first, result } = answer as { 0?: unknown; result?: unknown }
  return onlyValue(first ?? result)
}
