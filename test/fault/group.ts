/** As Map.groupBy, which Node 20 has not. */
export function groupBy<T>(all: Iterable<T>, nameOf: (one: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>()
  for (const one of all) {
    const group = groups.get(nameOf(one))
    if (group) group.push(one)
    else groups.set(nameOf(one), [one])
  }
  return groups
}
