/**
 * What the backend needs of a Redis client. Each driver is made to fit by a file in `clients/`. A client that a caller made is
 * used, never closed; connections that are opened here, and clients that were made from a URL, are ours.
 */
export interface RedisClient {
  /** A cluster has many masters, and keys of different slots cannot share a script. Otherwise there is one master. */
  readonly isCluster: boolean
  /** Runs a script on the master that owns its first key. All keys are in one slot, and come before the arguments. */
  run(how: 'evalsha' | 'eval', script: string, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown>
  /** WAIT, on the connection that runs the scripts: on any other it speaks of nothing. Absent if the driver cannot promise that. */
  wait?(replicas: number, timeoutMs: number): Promise<number>
  masters(): Promise<readonly RedisNode[]>
  /**
   * Calls back when a connection was lost. What had not been answered may be sent a second time, and whoever answers next may
   * be another server.
   */
  onDisconnect(listener: () => void): () => void
}

/** One master, through whatever connection the client has to it. */
export interface RedisNode {
  call(...command: readonly string[]): Promise<unknown>
  /** Begins to connect to it anew. */
  connect(listener: ConnectionListener): Connection
}

export interface ConnectionListener {
  readonly onMessage: (message: string) => void
  /** It is over, for good. */
  readonly onClose: () => void
}

/** A connection of our own. It does not keep the process alive, and does not come back when it is lost. */
export interface Connection {
  readonly ready: Promise<unknown>
  call(...command: readonly string[]): Promise<unknown>
  subscribe(channel: string): Promise<unknown>
  destroy(): void
}

/** A client that was made for one backend. */
export interface OwnClient {
  readonly client: RedisClient
  /** What there is to check beside the client's own checks. */
  ready(): Promise<void>
  /** What keeps it from the server at the moment. */
  trouble(): Error | undefined
  close(): void
}
