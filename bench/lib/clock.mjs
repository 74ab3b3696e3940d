/**
 * Milliseconds on a clock that all processes of a machine share. `performance.now()` counts from the start of its own
 * process, but is several times cheaper than `hrtime`, so inside a process times are local and only what goes to another
 * one is shifted.
 */
const offset = Number(process.hrtime.bigint()) / 1e6 - performance.now()

export const toShared = (localMs) => localMs + offset
export const toLocal = (sharedMs) => sharedMs - offset
export const sharedNow = () => toShared(performance.now())
