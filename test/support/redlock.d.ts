/** What the tests use of redlock 5.0.0-beta.2. Its own types are not reachable through its `exports`. */
declare module 'redlock' {
  import type { Redis } from 'ioredis'

  interface Settings {
    retryCount?: number
    retryDelay?: number
    retryJitter?: number
  }

  export default class Redlock {
    constructor(clients: Iterable<Redis>, settings?: Settings)
    acquire(resources: string[], durationMs: number, settings?: Settings): Promise<unknown>
    using<T>(resources: string[], durationMs: number, routine: (signal: AbortSignal) => Promise<T>): Promise<T>
  }
}
