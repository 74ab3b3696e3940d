/**
 * Names that the code blocks of the documentation use without saying where they come from. The blocks are type-checked
 * against these in test/process/examples.test.ts.
 */
declare const locks: import('holdfast').LockManager
declare const orderId: string
declare const orders: readonly string[]

/** A client of an SQL database, and an HTTP server. */
declare const db: { query(sql: string, values: readonly unknown[]): Promise<{ rows: Record<string, string>[]; rowCount: number }> }
declare const server: { close(done: () => void): void }
declare const metrics: { timing(name: string, ms: number): void; count(name: string): void }

/** Work that somebody wants to guard. */
declare function charge(orderId: string, signal?: AbortSignal): Promise<number>
declare function exportRows(options: { signal: AbortSignal; fence: bigint }): Promise<void>
declare function nextPage(): Promise<readonly string[] | undefined>
declare function writePage(page: readonly string[], fence: bigint): Promise<void>
declare function sendToWorker(text: string): Promise<void>
declare function receiveFromParent(): Promise<string>
