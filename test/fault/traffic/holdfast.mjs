/** The package as users get it. */
import { memoryBackend } from '../../../dist/backends/memory/index.js'

export { connect, Election, Mutex } from '../../../dist/index.js'

/** One store in memory, for several managers. */
export const shared = () => memoryBackend()
