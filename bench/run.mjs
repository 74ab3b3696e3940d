/**
 * `npm run bench`: measures holdfast beside its peers, on a server and files of its own. What it takes to get there is told on
 * stderr, results on stdout.
 */
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { build } from '../scripts/lib/checks.mjs'
import { ensureInstalled } from '../scripts/lib/install.mjs'
import { root } from '../scripts/lib/paths.mjs'
import { main, Stop } from '../scripts/lib/run.mjs'
import { ensureServers } from '../scripts/lib/servers.mjs'
import { withTestDir } from '../scripts/lib/test-dir.mjs'
import { buildGo } from './lib/go.mjs'

const HELP = `npm run bench -- [options]

  --quick              alone, 64 in flight, convoy 4×4, hot key; two rounds; under three minutes
  --only <names>       these workloads, by name or its beginning, with commas: --only convoy,hot-local
  --contenders <names> only these, by name or its beginning, with commas: --contenders holdfast,ioredis
  --rounds <n>         how often each is measured
  --json <file>        where the results go; default: bench/results/latest.json
  --docs               writes the pages in docs/ of the stores that were measured, with their charts
  --smoke              hardly measures anything: whether it works at all
  --list               the workloads and contenders
`

await main(async () => {
  const options = readOptions()
  if (options.help) return void console.log(HELP)
  await ensureInstalled(console.error)
  if (options.pace !== 'smoke') {
    await ensureInstalled(console.error, join(root, 'bench'))
    // In a smoke run the tests have it built, and must not have it built under their feet.
    await build(console.error)
  }
  // Not before they are installed.
  const { PACES, workloadsAt } = await import('./workloads.mjs')
  const { select } = await import('./lib/select.mjs')
  const { bench } = await import('./lib/bench.mjs')
  const { programsOf } = await import('./lib/stores.mjs')
  const pace = PACES[options.pace]
  const workloads = select(workloadsAt(pace), options)
  if (workloads.length === 0) usage('Nothing is selected. --list shows what there is.')
  if (options.list) return list(workloads)
  const programs = programsOf(workloads)
  await ensureServers(programs)
  if (programs.includes('go')) await buildGo(console.error)
  await withTestDir((folder) => bench(folder, workloads, { rounds: pace.rounds, ...options }))
})

function readOptions() {
  const { values } = parseArgs({
    options: {
      quick: { type: 'boolean' },
      smoke: { type: 'boolean' },
      docs: { type: 'boolean' },
      list: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' },
      only: { type: 'string' },
      contenders: { type: 'string' },
      rounds: { type: 'string' },
      json: { type: 'string', default: join(root, 'bench/results/latest.json') }
    }
  })
  const { quick, smoke, rounds, json, ...rest } = values
  if (rounds !== undefined && !/^[1-9]\d*$/.test(rounds)) usage('--rounds is a whole number, at least 1')
  const pace = smoke ? 'smoke' : quick ? 'quick' : 'full'
  return { ...rest, pace, json: resolve(json), ...(rounds && { rounds: Number(rounds) }) }
}

function usage(text) {
  console.error(text)
  throw new Stop(2)
}

function list(workloads) {
  for (const { id, title, contenders } of workloads) {
    console.log(`${id.padEnd(16)} ${title}\n    ${contenders.join(', ')}`)
  }
}
