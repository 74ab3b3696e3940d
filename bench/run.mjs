/**
 * `npm run bench`: measures holdfast beside its peers, on a server of its own. What it takes to get there is told on stderr,
 * results on stdout.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { cpus, totalmem } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { build } from '../scripts/lib/checks.mjs'
import { ensureInstalled } from '../scripts/lib/install.mjs'
import { root } from '../scripts/lib/paths.mjs'
import { main, pause, Stop } from '../scripts/lib/run.mjs'
import { ensureServers } from '../scripts/lib/servers.mjs'
import { withTestDir } from '../scripts/lib/test-dir.mjs'

const HELP = `npm run bench -- [options]

  --quick              alone, 64 in flight, convoy 4×4, hot key; two rounds; under three minutes
  --only <names>       these workloads, by name or its beginning, with commas: --only convoy,hot-local
  --contenders <names> only these, by name or its beginning, with commas: --contenders holdfast,ioredis
  --rounds <n>         how often each is measured
  --json <file>        where the results go; default: bench/results/latest.json
  --docs               writes the tables and charts of docs/bench
  --smoke              hardly measures anything: whether it works at all
  --list               the workloads and contenders
`

/** They need nothing but what the repository itself has installed. */
const SMOKE = ['holdfast', 'ioredis']

await main(async () => {
  const options = readOptions()
  if (options.help) return void console.log(HELP)
  await ensureInstalled(console.error)
  if (!options.smoke) await ensureInstalled(console.error, join(root, 'bench'))
  // The tests have it built, and must not have it built under their feet.
  if (!options.smoke) await build(console.error)
  await ensureServers()
  const { PACES, workloadsAt } = await import('./workloads.mjs')
  const pace = options.smoke ? PACES.smoke : options.quick ? PACES.quick : PACES.full
  const { contenderOf } = await import('./contenders/index.mjs')
  const workloads = select(workloadsAt(pace), options, contenderOf)
  if (options.list) return list(workloads)
  const rounds = options.rounds ?? pace.rounds
  return withTestDir((folder) => bench(folder, workloads, rounds, options))
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
      json: { type: 'string' }
    }
  })
  const rounds = values.rounds === undefined ? undefined : Number(values.rounds)
  if (rounds !== undefined && !(Number.isInteger(rounds) && rounds > 0)) {
    console.error('--rounds is a whole number, at least 1')
    throw new Stop(2)
  }
  return { ...values, rounds, json: resolve(values.json ?? join(root, 'bench/results/latest.json')) }
}

function select(workloads, { quick, smoke, only, contenders }, contenderOf) {
  const matches = (id, names) => names.split(',').some((name) => id.startsWith(name.trim()))
  const takesPart = (id) => {
    if (smoke) return SMOKE.includes(id)
    return contenders ? matches(id, contenders) : !quick || contenderOf(id).quick
  }
  const selected = workloads
    .filter((workload) => (only ? matches(workload.id, only) : !(quick || smoke) || workload.quick || (smoke && workload.smoke)))
    .map((workload) => ({ ...workload, contenders: workload.contenders.filter(takesPart) }))
    .filter((workload) => workload.contenders.length > 0)
  if (selected.length > 0) return selected
  console.error('Nothing is selected. --list shows what there is.')
  throw new Stop(2)
}

function list(workloads) {
  for (const { id, title, contenders } of workloads) console.log(`${id.padEnd(16)} ${title}\n    ${contenders.join(', ')}`)
}

async function bench(folder, workloads, rounds, options) {
  const { withRedis } = await import('./lib/server.mjs')
  const results = await withRedis(folder, async (server) => ({
    takenAt: new Date().toISOString(),
    rounds,
    machine: { cpu: cpus()[0]?.model, cores: cpus().length, memoryGb: Math.round(totalmem() / 2 ** 30) },
    versions: { node: process.version, redis: await server.version(), ...(await versions()) },
    workloads: await measureAll(server, workloads, rounds)
  }))
  const { checkMusts, mustTable } = await import('./lib/musts.mjs')
  results.musts = checkMusts(results.workloads)
  if (results.musts.length > 0) console.log(`\n## must show\n\n${mustTable(results.musts)}\n`)
  const { othersCpu } = await import('./lib/summary.mjs')
  results.othersCpu = othersCpu(results.workloads)
  if (results.othersCpu) console.error(`other processes used ${percent(results.othersCpu)} of the machine meanwhile`)
  if (options.docs) {
    const { writeDocs } = await import('./lib/docs.mjs')
    writeDocs(join(root, 'docs'), results)
    console.error('written: docs/bench.md, docs/bench/')
  }
  mkdirSync(dirname(options.json), { recursive: true })
  writeFileSync(options.json, `${JSON.stringify(results, null, 1)}\n`)
  console.error(`written: ${options.json}`)
}

function percent({ median, min, max }) {
  const [typical, least, most] = [median, min, max].map((share) => Math.round(100 * share))
  return `${typical} % (${least}–${most} %)`
}

/** All contenders of a workload take turns, and each round begins with another: what the machine does meanwhile hits all. */
async function measureAll(server, workloads, rounds) {
  const { measure } = await import('./lib/measure.mjs')
  const { Progress } = await import('./lib/progress.mjs')
  const { summarise } = await import('./lib/summary.mjs')
  const { write } = await import('./lib/metrics.mjs')
  const { workloadTable } = await import('./lib/report.mjs')
  const progress = new Progress(workloads.reduce((sum, { contenders }) => sum + contenders.length * rounds, 0))
  const summaries = []
  for (const workload of workloads) {
    const measured = []
    for (let round = 0; round < rounds; round++) {
      measured[round] = {}
      const { contenders } = workload
      for (const id of contenders.map((_, turn) => contenders[(turn + round) % contenders.length])) {
        await pause(0)
        const what = `${workload.title}, round ${round + 1}: ${id}`
        progress.now(what)
        const metrics = (measured[round][id] = await measure(server, workload, id))
        progress.done(`${what}  ${metrics.failed ?? metrics.capped ?? write(workload.primary, metrics[workload.primary])}`)
      }
    }
    progress.end()
    const summary = summarise(workload, measured)
    summaries.push(summary)
    console.log(`\n## ${summary.title}\n\n${summary.says}\n\n${workloadTable(summary)}`)
  }
  return summaries
}

async function versions() {
  const { installedVersions } = await import('./lib/versions.mjs')
  return installedVersions()
}
