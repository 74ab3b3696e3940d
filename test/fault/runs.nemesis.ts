/** The nemesis. `npm run nemesis` says for how long and on what, and gets a report of each run. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import type { Event } from './history.js'
import { htmlReport, progressLine, summaryOf, withSummary, type Summary } from './report.js'
import { run, type RunOptions } from './run.js'

interface Orders {
  readonly plans: readonly Pick<RunOptions, 'backend' | 'seed' | 'faultsMs' | 'faults' | 'work' | 'failovers'>[]
  /** Where reports go. */
  readonly folder?: string
  /** Whether the page in the docs is to be written. */
  readonly docs?: boolean
}

/** What each run of the tests has time for: three, and one of the others in turn by the day. */
function short(): Orders {
  const others = [
    { backend: 'sqlite', seed: 5, faultsMs: 6_000 },
    { backend: 'mariadb', seed: 8, faultsMs: 6_000 },
    { backend: 'sentinel', seed: 3, faultsMs: 9_000 },
    { backend: 'cluster', seed: 4, faultsMs: 9_000 },
  ] as const
  return {
    plans: [
      { backend: 'postgres', seed: 6, faultsMs: 8_000 },
      { backend: 'redis', seed: 2, faultsMs: 10_000 },
      { backend: 'etcd', seed: 56, faultsMs: 4_000 },
      others[Math.floor(Date.now() / 86_400_000) % others.length]!,
    ],
  }
}

const asked = process.env['HOLDFAST_NEMESIS']
const { plans, folder, docs } = asked === undefined ? short() : (JSON.parse(asked) as Orders)
const PAGE = new URL('../../docs/nemesis.md', import.meta.url)
const SLACK_MS = 240_000
/** A TTL and what the store keeps it for beyond that, with a machine that is busy. */
const FAILOVER_MS = 6_000

describe('the nemesis', () => {
  const summaries: Summary[] = []

  const cases = plans.map((plan) => [plan.backend, plan.seed, plan] as const)
  it.each(cases)('on %s, seed %i', { timeout: longest() + SLACK_MS }, async (backend, seed, plan) => {
    const result = await run({ ...plan, ...(folder !== undefined && { onProgress: progressOf(plan) }) })
    const { violations } = result
    const summary = summaryOf(result)
    summaries.push(summary)
    if (folder !== undefined) {
      const name = plan.failovers === undefined ? `${backend}-${seed}` : `${backend}-${seed}-failovers`
      writeFileSync(join(folder, `${name}.json`), JSON.stringify(summary, undefined, 2))
      writeReport(join(folder, `${name}.html`), htmlReport(result), violations.length)
      // The page shows what is near it; the cause may be further away.
      if (violations.length > 0) writeFileSync(join(folder, `${name}.jsonl`), linesOf(result.events))
    }
    expect(violations.map(({ invariant, message }) => `${invariant}: ${message}`)).toEqual([])
  })

  it.runIf(docs === true)('is told of in the docs', () => {
    writeFileSync(PAGE, withSummary(readFileSync(PAGE, 'utf8'), summaries))
  })
})

function longest(): number {
  return Math.max(0, ...plans.map(({ faultsMs, failovers = 0 }) => faultsMs + failovers * FAILOVER_MS))
}

function linesOf(events: readonly Event[]): string {
  return events.map((event) => `${JSON.stringify(event, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value))}\n`).join('')
}

function writeReport(file: string, html: string, violations: number): void {
  writeFileSync(file, html)
  process.stderr.write(`\n${violations} violations: ${file}\n`)
}

/** Every ten seconds a line, or the same line again on a terminal. */
function progressOf({ backend, faultsMs }: { readonly backend: string; readonly faultsMs: number }): (events: readonly Event[]) => void {
  const startedAt = performance.now()
  let [grants, faults, seen, ticks] = [0, 0, 0, 0]
  return (events) => {
    const before = grants
    for (; seen < events.length; seen++) {
      if (events[seen]!.type === 'granted') grants++
      if (events[seen]!.type === 'fault') faults++
    }
    const leftMs = Math.max(0, startedAt + faultsMs - performance.now())
    const line = progressLine({ backend, leftMs, opsPerS: grants - before, grants, faults, violations: 0 })
    if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${line}`)
    else if (ticks++ % 10 === 0) process.stderr.write(`${line}\n`)
  }
}
