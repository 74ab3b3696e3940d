/** docs/nemesis.md: what runs have shown, as tables. Only what stands between the markers is made here. */
import type { Rate, Summary } from './summary.js'
import { count, perSecond, plural, round, time, visible } from './text.js'

const BEGIN = '<!-- Made by `npm run nemesis -- --docs`. What is written between these two lines is lost. -->'
const END = '<!-- End of what is made. -->'
const NEW_PAGE = `# Under faults\n\n${BEGIN}\n${END}\n`

/** The page with its tables made anew, and all that is written by hand as it was. No page: a new one. */
export function withSummary(page: string | undefined, summaries: readonly Summary[]): string {
  const text = page ?? NEW_PAGE
  const begin = text.indexOf(BEGIN)
  const end = text.indexOf(END, begin)
  // To guess a place could cost somebody a paragraph.
  if (begin === -1 || end === -1) throw new Error(`The page needs these lines, for the tables:\n${BEGIN}\n${END}`)
  return text.slice(0, begin) + markdownSummary(summaries) + text.slice(end + END.length)
}

/** The generated part, with its markers. */
export function markdownSummary(summaries: readonly Summary[]): string {
  const backends = [...new Set(summaries.map(({ backend }) => backend))]
  const groups = backends.map((backend) => ({
    name: backend,
    runs: summaries.filter((summary) => summary.backend === backend),
  }))
  const tables = summaries.length === 0 ? ['No run yet.'] : [runTable(groups, summaries), faultTable(groups, summaries)]
  return [BEGIN, '', ...tables.flatMap((table) => [table, '']), END].join('\n')
}

interface Group {
  readonly name: string
  readonly runs: readonly Summary[]
}

const RUN_HEAD = [
  'backend',
  'runs',
  'minutes',
  'faults',
  'grants',
  'losses',
  'violations',
  'ops/s without faults',
  'ops/s with',
  'longest recovery',
  'lost updates without a gate',
]

function runTable(groups: readonly Group[], all: readonly Summary[]): string {
  const total = groups.length > 1 ? [runRow('**all**', all)] : []
  const violations = sum(all, (run) => run.violations)
  const verdict = violations === 0 ? 'No violation' : `**${plural(violations, 'violation')}**`
  const seeds = all.map(({ backend, seed }) => `${cell(backend)} ${seed}`).join(', ')
  const rows = [...groups.map(({ name, runs }) => runRow(cell(name), runs)), ...total]
  return `${verdict} in ${plural(all.length, 'run')}. Seeds: ${seeds}.\n\n${table(RUN_HEAD, rows)}`
}

function runRow(name: string, runs: readonly Summary[]): string[] {
  const violations = sum(runs, (run) => run.violations)
  const recoveries = runs.map((run) => run.longestRecoveryMs).filter((ms) => ms !== null)
  return [
    name,
    count(runs.length),
    String(round(sum(runs, (run) => run.durationMs) / 60_000, 1)),
    count(sum(runs, faultsOf)),
    count(sum(runs, (run) => run.grants)),
    count(sum(runs, (run) => run.losses)),
    violations === 0 ? '0' : `**${count(violations)}**`,
    perSecond(overall(runs.map((run) => run.before))),
    perSecond(overall(runs.map((run) => run.during))),
    recoveries.length === 0 ? '–' : time(Math.max(...recoveries)),
    count(sum(runs, (run) => run.lostUpdates)),
  ]
}

function faultTable(groups: readonly Group[], all: readonly Summary[]): string {
  const names = [...new Set(all.flatMap(({ faults }) => faults.map(({ name }) => name)))].toSorted()
  const total = groups.length > 1
  const row = (first: string, counted: (run: Summary) => number): string[] => [
    first,
    ...groups.map(({ runs }) => countOrDash(sum(runs, counted))),
    ...(total ? [countOrDash(sum(all, counted))] : []),
  ]
  const rows = names.map((name) => row(cell(name), (run) => run.faults.find((fault) => fault.name === name)?.count ?? 0))
  const head = ['fault', ...groups.map(({ name }) => cell(name)), ...(total ? ['all'] : [])]
  return table(head, [...rows, row('**all**', faultsOf)])
}

const faultsOf = (run: Summary): number => sum(run.faults, (fault) => fault.count)
const countOrDash = (number: number): string => (number === 0 ? '–' : count(number))

/** A long run counts for more than a short one. */
function overall(rates: readonly Rate[]): number | null {
  const ms = sum(rates, (rate) => rate.ms)
  return ms > 0 ? (sum(rates, (rate) => rate.grants) * 1_000) / ms : null
}

function sum<T>(items: readonly T[], number: (item: T) => number): number {
  return items.reduce((total, item) => total + number(item), 0)
}

/** Names are ours, but a bar in one of them would move all that follows it into the next column. */
const cell = (text: string): string => visible(text).replace(/[|<>&*_`\\[\]]/g, (character) => `&#${character.charCodeAt(0)};`)

/** The first column to the left, numbers to the right; as wide as needed, so that it reads as text too. */
function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((_, column) => Math.max(3, ...[head, ...rows].map((row) => row[column]?.length ?? 0)))
  const line = (cells: readonly string[]): string => {
    const padded = cells.map((text, column) => {
      return column === 0 ? text.padEnd(widths[column] ?? 0) : text.padStart(widths[column] ?? 0)
    })
    return `| ${padded.join(' | ')} |`
  }
  const dashes = widths.map((width, column) => (column === 0 ? '-'.repeat(width + 2) : `${'-'.repeat(width + 1)}:`))
  return [line(head), `|${dashes.join('|')}|`, ...rows.map(line)].join('\n')
}
