/** Runs Stryker on src/core, and tells what it found. */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { root } from '../scripts/lib/paths.mjs'
import { run, Stop } from '../scripts/lib/run.mjs'

const CORE = 'src/core'
const STRYKER = join(root, 'mutants/node_modules/@stryker-mutator/core/bin/stryker.js')
/** Where Stryker has its copy of the working tree. */
export const SANDBOX = 'mutants/.sandbox'
/** What has to be killed, of a hundred. */
export const WANTED = 80
/** In a quick run, one block of so many lines out of so many. */
const BLOCK_LINES = 12
const BLOCKS_PER_SAMPLE = 4

export function cacheFile(name) {
  const folder = join(root, 'mutants/node_modules/.cache/holdfast')
  mkdirSync(folder, { recursive: true })
  return join(folder, name)
}

/** The files that `only` names, with commas between; all if it names none. */
export function coreFiles(only) {
  const names = only?.split(',').map((name) => basename(name.trim(), '.ts'))
  const all = readdirSync(join(root, CORE)).filter((file) => file.endsWith('.ts'))
  return all.filter((file) => !names || names.some((name) => basename(file, '.ts') === name)).map((file) => `${CORE}/${file}`)
}

/** Mutates the files, or a sample of their lines; gives the report for them. */
export async function mutateCore(files, { seed, force }) {
  const ranges = seed === undefined ? files : files.flatMap((file) => sample(file, seed))
  forgetSurvivors()
  const args = [STRYKER, 'run', 'mutants/stryker.config.mjs', '--mutate', ranges.join(','), ...(force ? ['--force'] : [])]
  try {
    const { code } = await run(process.execPath, args, { stdio: 'inherit' })
    if (code !== 0) throw new Stop()
  } finally {
    // It stays behind when Stryker is stopped.
    rmSync(join(root, SANDBOX), { recursive: true, force: true, maxRetries: 5 })
  }
  const report = JSON.parse(readFileSync(cacheFile('report.json'), 'utf8')).files
  return files.map((file) => read(file, report[file], seed === undefined ? undefined : ranges))
}

/**
 * A survivor is tried anew in each run. Stryker would do so only if a test has changed since the run before, even if that was about
 * other files: then what the test now kills in this one would stay on the list.
 */
function forgetSurvivors() {
  const file = cacheFile('incremental.json')
  if (!existsSync(file)) return
  const report = JSON.parse(readFileSync(file, 'utf8'))
  for (const entry of Object.values(report.files)) entry.mutants = entry.mutants.filter(({ status }) => !isAlive(status))
  writeFileSync(file, JSON.stringify(report))
}

const isAlive = (status) => status === 'Survived' || status === 'NoCoverage'

/** The same blocks of lines for the same seed. */
function sample(file, seed) {
  const lines = text(file).length
  const ranges = []
  for (let from = 1; from <= lines; from += BLOCK_LINES) {
    const digest = createHash('sha256').update(`${seed} ${file} ${from}`).digest()
    if (digest[0] % BLOCKS_PER_SAMPLE === 0) ranges.push(`${file}:${from}-${Math.min(lines, from + BLOCK_LINES - 1)}`)
  }
  return ranges
}

/** What became of a file's mutants. */
function read(file, entry, ranges) {
  // In an incremental run, what earlier runs have found is in the report, too.
  const isAsked = ({ location }) =>
    !ranges || ranges.some((range) => {
      const [, from, to] = /:(\d+)-(\d+)$/.exec(range)
      return range.startsWith(`${file}:`) && location.start.line >= from && location.end.line <= to
    })
  const mutants = (entry?.mutants ?? []).filter(isAsked)
  const count = (...statuses) => mutants.filter(({ status }) => statuses.includes(status)).length
  const killed = count('Killed')
  const timedOut = count('Timeout')
  const survived = count('Survived')
  const uncovered = count('NoCoverage')
  const lines = text(file)
  const alive = mutants.filter(({ status }) => isAlive(status))
  return {
    name: basename(file),
    killed,
    timedOut,
    survived,
    uncovered,
    broken: count('RuntimeError', 'CompileError'),
    ignored: count('Ignored'),
    survivors: alive.map((mutant) => ({ ...mutant, at: `${file}:${mutant.location.start.line}`, was: cut(lines, mutant.location) }))
  }
}

export function scoreOf(results) {
  const sum = (field) => results.reduce((total, result) => total + result[field], 0)
  const dead = sum('killed') + sum('timedOut')
  const all = dead + sum('survived') + sum('uncovered')
  return { score: all === 0 ? undefined : (dead / all) * 100, dead, all, sum }
}

/** A line per file, the whole, and who is left. */
export function show(results) {
  const { sum } = scoreOf(results)
  const fields = ['killed', 'timedOut', 'survived', 'uncovered', 'ignored', 'broken']
  const total = { name: 'in all', ...Object.fromEntries(fields.map((field) => [field, sum(field)])) }
  const rows = [...results, total].map((row) => [row.name, percent(scoreOf([row]).score), ...fields.map((field) => String(row[field]))])
  const head = ['file', 'score', 'killed', 'timed out', 'survived', 'no coverage', 'ignored', 'broken']
  const widths = head.map((_, i) => Math.max(...[head, ...rows].map((row) => row[i].length)))
  for (const row of [head, ...rows]) {
    console.log(row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join('  '))
  }
  const survivors = results.flatMap(({ survivors }) => survivors)
  if (survivors.length > 0) console.log('\nNo test has noticed:')
  for (const { at, mutatorName, was, replacement, status } of survivors) {
    console.log(`${at}  ${mutatorName}${status === 'NoCoverage' ? ', not even run' : ''}`)
    console.log(`    - ${oneLine(was)}\n    + ${oneLine(replacement)}`)
  }
}

const percent = (score) => (score === undefined ? '–' : `${score.toFixed(1)} %`)
const oneLine = (code) => code.replace(/\s+/g, ' ').slice(0, 150)
const text = (file) => readFileSync(join(root, file), 'utf8').split('\n')

function cut(lines, { start, end }) {
  if (start.line === end.line) return lines[start.line - 1].slice(start.column - 1, end.column - 1)
  return [lines[start.line - 1].slice(start.column - 1), ...lines.slice(start.line, end.line - 1), lines[end.line - 1].slice(0, end.column - 1)].join('\n')
}
