export const sum = (numbers) => numbers.reduce((a, b) => a + b, 0)

function median(numbers) {
  const sorted = numbers.filter((number) => Number.isFinite(number)).sort((a, b) => a - b)
  const middle = sorted.length >> 1
  if (sorted.length === 0) return undefined
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** Of the rounds: the median, and what it is worth. */
export function spread(numbers) {
  const finite = numbers.filter((number) => Number.isFinite(number))
  if (finite.length === 0) return undefined
  return { median: median(finite), min: Math.min(...finite), max: Math.max(...finite), rounds: finite.length }
}

/** Jain's fairness index: 1 if all got the same, 1/n if one got everything. */
export function jain(shares) {
  const squares = sum(shares.map((share) => share * share))
  return squares === 0 ? undefined : sum(shares) ** 2 / (shares.length * squares)
}

const STEPS_PER_OCTAVE = 32
const OCTAVES = 50

/** Waits in milliseconds, on a scale of steps of 2.2 %: millions of them cost nothing to keep, and can be added up. */
export class Histogram {
  counts = new Float64Array(STEPS_PER_OCTAVE * OCTAVES)
  max = 0

  record(ms) {
    // From a nanosecond on.
    const step = Math.log2(ms * 1e6) * STEPS_PER_OCTAVE
    this.counts[step > 0 ? step | 0 : 0]++
    if (ms > this.max) this.max = ms
  }

  add({ counts, max }) {
    counts.forEach((count, step) => (this.counts[step] += count))
    this.max = Math.max(this.max, max)
  }

  percentiles() {
    return { waitP50Ms: this.percentile(0.5), waitP99Ms: this.percentile(0.99), waitMaxMs: this.max }
  }

  percentile(share) {
    const total = sum(this.counts)
    let seen = 0
    for (let step = 0; step < this.counts.length; step++) {
      seen += this.counts[step]
      // The middle of the step, on its scale; never more than was seen.
      if (seen > 0 && seen >= total * share) return Math.min(this.max, 2 ** ((step + 0.5) / STEPS_PER_OCTAVE) / 1e6)
    }
    return undefined
  }
}
