/** A page in docs/ for each store that was measured, with its charts. The page of another store stays as it is. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { chart } from './chart.mjs'
import { mustTable } from './musts.mjs'
import { workloadTable } from './report.mjs'
import { storesOf } from './stores.mjs'
import { othersCpu } from './summary.mjs'

const ON_FILES = ['libsql', 'proper-lockfile']

const PAGES = {
  redis: {
    name: 'bench',
    title: 'Benchmarks',
    command: 'npm run bench -- --docs',
    where: 'with the server beside the clients',
    server: (version) => `Redis ${version}`,
    isListed: (name) => !ON_FILES.includes(name),
    words: `"pipelined" is a library on a client that sends the requests of a tick together; "tuned" one that asks again every \
2 ms. All else are defaults.`,
    other: 'On SQLite: [a page of its own](bench-sqlite.md).'
  },
  sqlite: {
    name: 'bench-sqlite',
    title: 'Benchmarks: SQLite',
    command: 'npm run bench -- --only sqlite --docs',
    where: 'and of its disk',
    server: (version) => `SQLite ${version} in libsql`,
    isListed: (name) => name === 'holdfast' || ON_FILES.includes(name),
    words: `"libsql" is the bare client, with everything set as holdfast sets it: one upsert to lock, one update to unlock; it lets \
SQLite wait for other writers, which stops the event loop, and "trying again" does it in the next turn of the event loop instead. \
"our statements" are holdfast's own two, called by hand. proper-lockfile makes a folder for each lock, and asks again after a second \
and more; "tuned" every 2 ms.`,
    other: 'On Redis: [benchmarks](bench.md).'
  }
}

/** Tells which pages are new. */
export function writeDocs(docs, results) {
  return storesOf(results.workloads).map((store) => {
    const of = PAGES[store]
    const workloads = results.workloads.filter((workload) => workload.store === store)
    const charts = join(docs, of.name)
    rmSync(charts, { recursive: true, force: true })
    mkdirSync(charts, { recursive: true })
    for (const workload of workloads) writeFileSync(join(charts, `${workload.id}.svg`), chart(workload))
    writeFileSync(join(docs, `${of.name}.md`), page(of, store, { ...results, workloads }))
    return `${of.name}.md`
  })
}

function page(of, store, { takenAt, machine, versions, rounds, musts, workloads }) {
  const { node, stores, ...packages } = versions
  const busy = othersCpu(workloads)
  const others = busy ? ` Other processes used ${Math.round(100 * busy.median)} % of the machine.` : ''
  const ours = musts.filter((must) => must.store === store)
  const limits = ours.every(({ met }) => met) ? '' : '\nWhy what is not met cannot be: [limits](bench-limits.md).\n'
  const listed = Object.entries(packages).filter(([name]) => of.isListed(name))
  return `# ${of.title}

Made by \`${of.command}\` on ${takenAt.slice(0, 10)}. What is measured and how is in bench/README.md of the \
repository. Absolute numbers are those of one machine, ${of.where}: compare the ratios. ${of.other}

${machine.cores} cores (${machine.cpu}), ${machine.memoryGb} GB, Node ${node}, ${of.server(stores[store])}. ${rounds} rounds, in \
which all take turns; medians, with the least and the most.${others}

${listed.map(([name, version]) => `${name} ${version}`).join(' · ')}

${of.words}

## What must be shown

${mustTable(ours)}
${limits}
${workloads.map((workload) => section(workload, of.name)).join('\n')}`
}

function section(workload, folder) {
  return `## ${workload.title}

${workload.says}

![${workload.title}](${folder}/${workload.id}.svg)

${workloadTable(workload)}
`
}
