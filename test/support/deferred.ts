/** A promise that is settled from outside. */
export function deferred(): { promise: Promise<void>; resolve: () => void; reject: (reason: unknown) => void } {
  let resolve!: () => void
  let reject!: (reason: unknown) => void
  const promise = new Promise<void>((done, failed) => ([resolve, reject] = [done, failed]))
  return { promise, resolve, reject }
}
