/**
 * Milliseconds on a clock that all processes of a machine share. `performance.now()` counts from the start of its own
 * process, but is several times cheaper than `hrtime`, so inside a process times are local and only what goes to
 * another one is shifted.
 */
let offset = -Infinity
// What passes between the two readings makes it smaller, never larger.
for (let attempt = 0; attempt < 100; attempt++) {
  offset = Math.max(offset, Number(process.hrtime.bigint()) / 1e6 - performance.now())
}

export const toShared = (localMs) => localMs + offset
export const toLocal = (sharedMs) => sharedMs - offset
export const sharedNow = () => toShared(performance.now())
