/**
 * `npm run nemesis -- --backend redis,cluster --minutes 15 --seed 7`: servers and clients are stopped, killed, cut off and deceived
 * while clients contend for locks, and the log of it all is judged. A report of each run is written to `nemesis/`.
 */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { build } from './lib/checks.mjs'
import { ensureInstalled } from './lib/install.mjs'
import { root } from './lib/paths.mjs'
import { main, run, Stop } from './lib/run.mjs'
import { ensureServers } from './lib/servers.mjs'
import { withTestDir } from './lib/test-dir.mjs'

const MINUTES_PER_RUN = 3
const WORK = ['mutex', 'election', 'transfers', 'duties']
const BACKENDS = ['memory', 'sqlite', 'postgres', 'pgbouncer', 'mariadb', 'redis', 'sentinel', 'cluster', 'etcd']

const HELP = `npm run nemesis -- [options]

  --backend <names>  of ${BACKENDS.join(', ')}; with commas. Default: all
  --minutes <n>      of faults, for each backend, in runs of at most ${MINUTES_PER_RUN}. Default: 3
  --seed <n>         what is broken when follows from it; the next run has the next one. Default: a new one, which is told
  --faults <names>   only these, with commas
  --work <names>     beside locks, of ${WORK.join(', ')}; with commas. Default: by the seed
  --failovers <n>    instead of all else: processes that do nothing but lead, and whoever leads is killed, n times
  --controls         also the runs that have to fail: other libraries, and our own with mistakes in it
  --only-controls    nothing else
  --control <text>   only those controls that have this in their name
  --docs             write the summary to docs/nemesis.md
  --help`

await main(async () => {
  const options = read()
  await ensureInstalled()
  await ensureServers()
  await build()
  const folder = join(root, 'nemesis')
  mkdirSync(folder, { recursive: true })
  const plans = options['only-controls'] ? [] : options.backends.flatMap((backend) => options.plans.map((plan) => ({ backend, ...plan })))
  const files = [...(plans.length > 0 ? ['test/fault/runs.nemesis.ts'] : []), ...(options.controls ? ['test/fault/controls.nemesis.ts'] : [])]
  return withTestDir(async (dir) => {
    const env = {
      HOLDFAST_TEST_DIR: dir,
      HOLDFAST_NEMESIS: JSON.stringify({ plans, folder, docs: options.docs }),
      HOLDFAST_CONTROLS: options.control
    }
    const args = ['run', ...files, '--config=vitest.nemesis.config.ts', '--disableConsoleIntercept=true']
    const { code } = await run('vitest', args, { env, stdio: 'inherit' })
    console.log(`reports: ${folder}`)
    return code
  })
})

function read() {
  const { values } = parseArgs({
    options: {
      backend: { type: 'string', default: BACKENDS.join(',') },
      minutes: { type: 'string', default: '3' },
      seed: { type: 'string', default: String(Math.floor(Math.random() * 1_000_000)) },
      faults: { type: 'string' },
      work: { type: 'string' },
      failovers: { type: 'string' },
      controls: { type: 'boolean', default: false },
      control: { type: 'string', default: '' },
      'only-controls': { type: 'boolean', default: false },
      docs: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false }
    }
  })
  const backends = values.backend.split(',')
  const unknown = backends.find((name) => !BACKENDS.includes(name))
  const minutes = Number(values.minutes)
  const seed = Number(values.seed)
  const work = values.work?.split(',')
  const failovers = values.failovers === undefined ? undefined : Number(values.failovers)
  const isWrong = work?.some((kind) => !WORK.includes(kind)) || !(minutes > 0) || !Number.isInteger(seed) || !(failovers === undefined || (Number.isInteger(failovers) && failovers > 0))
  if (values.help || unknown || isWrong) {
    console.error(unknown ? `There is no backend "${unknown}".\n\n${HELP}` : HELP)
    throw new Stop(values.help ? 0 : 2)
  }
  const faults = values.faults?.split(',')
  if (failovers !== undefined) return { ...values, backends, plans: [{ seed, faultsMs: 0, failovers }] }
  // A log of hours would take hours to judge: several runs, each with a seed of its own.
  const runs = Math.ceil(minutes / MINUTES_PER_RUN)
  const plans = Array.from({ length: runs }, (_, i) => ({ seed: seed + i, faultsMs: (minutes / runs) * 60_000, ...(faults && { faults }), ...(work && { work }) }))
  return { ...values, controls: values.controls || values['only-controls'], backends, plans }
}
