/** Does something with 0 … count - 1, so many at a time. */
export async function many(count, inFlight, body) {
  let next = 0
  const worker = async () => {
    while (next < count) await body(next++)
  }
  await Promise.all(Array.from({ length: Math.min(inFlight, count) }, worker))
}
