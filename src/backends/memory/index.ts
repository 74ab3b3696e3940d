import type { BackendFactory } from '../../core/backend.js'
import { MemoryBackend } from './backend.js'
import { MemoryStore } from './store.js'

export interface MemoryOptions {
  /** The clock that judges expiry, in milliseconds; a test can set it. */
  readonly now?: () => number
}

/** A store in this process's memory. Managers made from the same factory share it; each counts as a process of its own. */
export function memoryBackend(options: MemoryOptions = {}): BackendFactory {
  const store = new MemoryStore(options.now)
  return (scope) => new MemoryBackend(store, scope)
}
