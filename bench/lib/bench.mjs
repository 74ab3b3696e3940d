/** A whole run, from the stores to what is written. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { cpus, totalmem } from 'node:os'
import { dirname, join } from 'node:path'
import { root } from '../../scripts/lib/paths.mjs'
import { pause } from '../../scripts/lib/run.mjs'
import { writeDocs } from './docs.mjs'
import { measure } from './measure.mjs'
import { write } from './metrics.mjs'
import { checkMusts, mustTable } from './musts.mjs'
import { Progress } from './progress.mjs'
import { workloadTable } from './report.mjs'
import { storesOf, withStore } from './stores.mjs'
import { othersCpu, summarise } from './summary.mjs'
import { installedVersions } from './versions.mjs'

const TOO_BUSY = 0.1

export async function bench(folder, workloads, { rounds, json, docs }) {
  const takenAt = new Date().toISOString()
  const { stores, summaries } = await measureAll(folder, workloads, rounds)
  const results = {
    takenAt,
    rounds,
    machine: { cpu: cpus()[0]?.model, cores: cpus().length, memoryGb: Math.round(totalmem() / 2 ** 30) },
    versions: { node: process.version, stores, ...installedVersions() },
    workloads: workloads.map(({ id }) => summaries.find((summary) => summary.id === id))
  }
  results.musts = checkMusts(results.workloads)
  results.othersCpu = othersCpu(results.workloads)
  console.log(`\n## must show\n\n${mustTable(results.musts)}\n`)
  if (results.othersCpu) console.error(`other processes used ${percent(results.othersCpu)} of the machine meanwhile`)
  if (results.othersCpu?.median > TOO_BUSY) console.error('that is too much: do not rely on what depends on time')
  mkdirSync(dirname(json), { recursive: true })
  writeFileSync(json, `${JSON.stringify(results, null, 1)}\n`)
  console.error(`written: ${json}`)
  if (docs) {
    const written = writeDocs(join(root, 'docs'), results)
    console.error(`written: ${written.map((file) => `docs/${file}`).join(', ')}`)
  }
}

function percent({ median, min, max }) {
  const [typical, least, most] = [median, min, max].map((share) => Math.round(100 * share))
  return `${typical} % (${least}–${most} %)`
}

/** One store after the other: servers that nobody asks take their part of the machine, too. */
async function measureAll(folder, workloads, rounds) {
  const progress = new Progress(workloads.reduce((sum, { contenders }) => sum + contenders.length * rounds, 0))
  const stores = {}
  const summaries = []
  for (const name of storesOf(workloads)) {
    await withStore(name, folder, async (store) => {
      stores[name] = await store.version()
      for (const workload of workloads.filter((each) => each.store === name)) {
        summaries.push(await measureWorkload(store, workload, rounds, progress))
      }
    })
  }
  return { stores, summaries }
}

async function measureWorkload(store, workload, rounds, progress) {
  const measured = []
  for (let round = 0; round < rounds; round++) measured.push(await measureRound(store, workload, round, progress))
  progress.end()
  const summary = summarise(workload, measured)
  console.log(`\n## ${summary.title}\n\n${summary.says}\n\n${workloadTable(summary)}`)
  return summary
}

/** All take turns, and each round begins with another: what the machine does meanwhile hits all of them. */
async function measureRound(server, workload, round, progress) {
  const { contenders, title, primary } = workload
  const measured = {}
  for (const id of contenders.map((_, turn) => contenders[(turn + round) % contenders.length])) {
    // A signal ends the run here.
    await pause(0)
    const what = `${title}, round ${round + 1}: ${id}`
    progress.now(what)
    const metrics = (measured[id] = await measure(server, workload, id))
    progress.done(`${what}  ${metrics.failed ?? metrics.capped ?? metrics.note ?? write(primary, metrics[primary])}`)
  }
  return measured
}
