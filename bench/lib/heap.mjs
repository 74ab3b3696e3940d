/** What is alive on the heap of this process, in bytes. */
export function heapUsed() {
  // The second one takes what finalizers of the first let go of.
  globalThis.gc()
  globalThis.gc()
  return process.memoryUsage().heapUsed
}
