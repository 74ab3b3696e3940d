/** The report of a run, as one file that needs nothing else: no script, no font, no network. */
import type { Run, Violation } from '../history.js'
import { lanes } from './lanes.js'
import { logOf } from './log.js'
import { overview } from './overview.js'
import { chosen, sceneOf, type Scene } from './scene.js'
import { MARKS, STYLE } from './style.js'
import { summaryOf, verdictOf, type Summary } from './summary.js'
import { tag } from './svg.js'
import { count, escape, perSecond, plural, relative, shown, time } from './text.js'
import { timelineOf, type Operation, type Span, type Timeline } from './timeline.js'

const MOST_VIOLATIONS = 20
/** All drawings share it, so that the file stays one that can be sent. */
const MOST_OPERATIONS = 1_600
/** A longer text is folded up. */
const SHORT_LOG = 40

export function htmlReport(run: Run): string {
  const timeline = timelineOf(run)
  const summary = summaryOf(run, timeline)
  const kinds = summary.faults.map(({ name }) => name)
  const numbered = chosen(run, MOST_VIOLATIONS)
  const title = `${shown(run.backend)}, seed ${run.seed}: ${verdictOf(summary)}`
  const body = [
    MARKS,
    head(summary),
    tag('h2', {}, 'The whole run'),
    overview({ timeline, violations: run.violations, numbered, kinds }),
    violations(run, numbered, timeline, kinds),
  ]
  // Nothing runs and nothing is fetched, whatever a key says: the policy is the second lock on that door.
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>${title}</title>
<style>${STYLE}</style>
</head>
<body>
${body.join('\n')}
</body>
</html>
`
}

function head(summary: Summary): string {
  const { backend, seed, ttlMs, durationMs, violations, grants } = summary
  const kind = violations > 0 ? 'bad' : grants > 0 ? 'good' : 'soft'
  const sign = violations > 0 ? '✗ ' : grants > 0 ? '✓ ' : ''
  return [
    `<h1>Nemesis: ${shown(backend)}, seed ${seed}</h1>`,
    `<p class="verdict ${kind}">${sign}${verdictOf(summary)}</p>`,
    `<p>TTL ${time(ttlMs)} · ran for ${time(durationMs)} · again: <code>${replayOf(summary)}</code></p>`,
    `<div class="tables">${figures(summary)}${faults(summary)}${guarantees(summary)}</div>`,
  ].join('\n')
}

const replayOf = ({ backend, seed }: Summary): string => `npm run nemesis -- --backend ${shown(backend)} --seed ${seed}`

function figures(summary: Summary): string {
  const { longestRecoveryMs } = summary
  return table(
    ['what', 'number'],
    [
      ['workers', count(summary.workers)],
      ['operations', count(summary.operations)],
      ['grants', count(summary.grants)],
      ['losses', count(summary.losses)],
      ['refusals', count(summary.refusals)],
      ['operations per second before the faults', perSecond(summary.before.perS)],
      ['during', perSecond(summary.during.perS)],
      ['after', perSecond(summary.after.perS)],
      ['longest wait after healing', longestRecoveryMs === null ? '–' : time(longestRecoveryMs)],
      ['refused by the gate', count(summary.gateRefusals)],
      ['lost updates without a gate', count(summary.lostUpdates)],
    ],
  )
}

function faults({ faults }: Summary): string {
  const rows = faults.map(({ name, count: number, ms }) => [shown(name), count(number), ms > 0 ? time(ms) : '–'])
  return faults.length === 0 ? '<p class="soft">no faults</p>' : table(['fault', 'times', 'lasted, in all'], rows)
}

function guarantees({ guarantees }: Summary): string {
  if (guarantees.length === 0) return ''
  return table(['violated', 'times'], guarantees.map(({ invariant, count: number }) => [shown(invariant), count(number)]))
}

/** Cells are markup. The first column has words, and so may the last one have; all others numbers. */
function table(names: readonly string[], rows: readonly (readonly string[])[], endsInWords = false): string {
  const isNumber = (column: number): boolean => column > 0 && !(endsInWords && column === names.length - 1)
  const line = (cell: 'th' | 'td', cells: readonly string[]): string => {
    const written = cells.map((text, column) => `<${cell}${isNumber(column) ? ' class="number"' : ''}>${text}</${cell}>`)
    return `<tr>${written.join('')}</tr>`
  }
  return `<table><thead>${line('th', names)}</thead><tbody>${rows.map((row) => line('td', row)).join('')}</tbody></table>`
}

function violations(run: Run, numbered: readonly Violation[], timeline: Timeline, kinds: readonly string[]): string {
  if (numbered.length === 0) return ''
  const left = run.violations.length - numbered.length
  const most = Math.min(300, Math.floor(MOST_OPERATIONS / numbered.length))
  return [
    tag('h2', {}, 'What went wrong'),
    legend(),
    ...numbered.map((violation, index) => section(sceneOf(timeline, violation, most), index + 1, kinds)),
    left > 0 ? `<p class="soft">… and ${count(left)} more.</p>` : '',
  ].join('\n')
}

function section(scene: Scene, number: number, kinds: readonly string[]): string {
  const { violation, atMs, span, closeUp } = scene
  const key = violation.key === undefined ? '' : `key <code>${shown(violation.key)}</code>, `
  const { text, lines, left } = logOf(scene)
  const size = `${plural(lines, 'event')}${left > 0 ? `, ${count(left)} left out` : ''}`
  return [
    `<section id="violation-${number}">`,
    `<h3>${number}. ${shown(violation.invariant)}</h3>`,
    `<p class="message">${shown(violation.message, 600)}</p>`,
    `<p class="meta">${key}${time(Math.max(0, atMs))} into the run. Times below are from this moment.</p>`,
    involvedTable(scene),
    closeUp ? figure(scene, closeUp, kinds, 'Close up') : '',
    figure(scene, span, kinds, closeUp ? 'Before and after' : ''),
    `<details${lines <= SHORT_LOG ? ' open="open"' : ''}><summary>The same as text (${size})</summary>`,
    `<pre>${escape(text)}</pre></details>`,
    '</section>',
  ].join('\n')
}

function figure(scene: Scene, part: Span, kinds: readonly string[], name: string): string {
  const ranks = scene.fencesAreNumbered ? 'f1, f2, …: fences, numbered by size' : ''
  const caption = [name ? `${name}: ${time(part.toMs - part.fromMs)}` : '', ranks].filter((text) => text !== '').join(' · ')
  return `<figure><figcaption>${caption}</figcaption>${lanes(scene, part, kinds)}</figure>`
}

const MOST_INVOLVED = 8

function involvedTable(scene: Scene): string {
  const { involved, violation } = scene
  const missing = new Set(violation.ops).size - involved.length
  const rows = involved.slice(0, MOST_INVOLVED).map((operation, index) => involvedRow(scene, operation, index))
  const names = ['worker', 'fence', 'asked', 'granted', 'until', 'how it ended']
  const left = involved.length - rows.length
  const notes = [
    left > 0 ? `<p class="soft">… and ${plural(left, 'more operation', 'more operations')}.</p>` : '',
    missing > 0 ? `<p class="soft">${plural(missing, 'operation is', 'operations are')} not in the log.</p>` : '',
  ]
  if (rows.length === 0) return notes.join('')
  return `<div class="scroll">${table(names, rows, true)}</div>${notes.join('')}`
}

function involvedRow(scene: Scene, operation: Operation, index: number): string[] {
  const { worker, fence, askedMs, grantedMs, endMs, ending, why } = operation
  const at = (ms: number | undefined): string => (ms === undefined ? '–' : `${relative(ms - scene.atMs, 3)} ms`)
  const name = fence === undefined ? '–' : scene.fencesAreNumbered ? `${scene.fenceName(fence)} = ${fence}` : String(fence)
  const reason = why === undefined ? '' : `: ${shown(why, 100)}`
  const swatch = `<span class="swatch op${index % 4}"></span>`
  return [swatch + shown(worker, 40), name, at(askedMs), at(grantedMs), at(endMs), ENDINGS[ending] + reason]
}

const ENDINGS = {
  released: 'released',
  lost: 'told of its loss',
  killed: 'process killed',
  failed: 'process failed',
  closed: 'process ended',
  refused: 'refused',
  open: 'not before the log did',
} as const

const WAIT = '<line class="wait" x1="1" x2="31" y1="9" y2="9"/><line class="asked" x1="1" x2="1" y1="5" y2="13"/>'

function legend(): string {
  const item = (width: number, drawing: string, text: string): string =>
    `<li><svg width="${width}" height="18" aria-hidden="true">${drawing}</svg>${text}</li>`
  const bar = (kind: string): string => `<g class="${kind}"><rect class="hold" x="1" y="2" width="30" height="14" rx="2"/></g>`
  const sign = (name: string): string => `<use href="#${name}" x="9" y="9" class="op0"/>`
  const items = [
    item(32, `<g class="op0">${WAIT}</g>`, 'waits'),
    item(32, bar('op0'), 'holds, and shows the violation'),
    item(32, bar('other'), 'holds'),
    item(32, `${bar('other')}<rect class="clash" x="1" y="2" width="30" height="14"/>`, 'while another has the same key'),
    item(32, `${bar('op0')}<circle class="confirmed op0" cx="16" cy="14.5" r="3"/>`, 'says that it holds'),
    item(32, '<g class="op0"><rect class="releasing" x="1" y="6" width="30" height="6"/></g>', 'release is under way'),
    item(18, sign('lost'), 'told of its loss'),
    item(18, sign('refused'), 'refused'),
    item(18, sign('cut'), 'its process was killed or failed'),
    item(18, sign('read-accepted'), 'gate: read'),
    item(18, sign('wrote-accepted'), 'gate: write'),
    item(18, sign('read-refused'), 'read refused'),
    item(18, sign('wrote-refused'), 'write refused'),
  ]
  return `<ul class="legend">${items.join('')}</ul>`
}
