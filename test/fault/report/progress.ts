/** What a run says of itself while it goes on. */
import { count, plural } from './text.js'

export interface Progress {
  readonly backend: string
  readonly leftMs: number
  /** Of late, not of the whole run: one sees it fall and rise. */
  readonly opsPerS: number
  readonly grants: number
  readonly faults: number
  readonly violations: number
}

/** One line, without its end, short enough for 80 columns. What changes least comes last, so that little jumps. */
export function progressLine({ backend, leftMs, opsPerS, grants, faults, violations }: Progress): string {
  const found = violations === 0 ? 'no violation' : plural(violations, 'VIOLATION', 'VIOLATIONS')
  const parts = [`${clock(leftMs)} left`, `${count(opsPerS)} ops/s`, plural(grants, 'grant'), plural(faults, 'fault'), found]
  return `${backend}: ${parts.join(' · ')}`
}

/** `1:05`: whole seconds, and the last one begins at 0:01. */
function clock(ms: number): string {
  const seconds = Math.max(0, Math.ceil(ms / 1_000))
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`
}
