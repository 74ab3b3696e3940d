/** docs/bench.md and its charts. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { chart } from './chart.mjs'
import { mustTable } from './musts.mjs'
import { workloadTable } from './report.mjs'

export function writeDocs(docs, results) {
  const charts = join(docs, 'bench')
  rmSync(charts, { recursive: true, force: true })
  mkdirSync(charts, { recursive: true })
  for (const workload of results.workloads) writeFileSync(join(charts, `${workload.id}.svg`), chart(workload))
  writeFileSync(join(docs, 'bench.md'), page(results))
}

function page({ takenAt, machine, versions, rounds, othersCpu, musts, workloads }) {
  const { node, server, ...packages } = versions
  const others = othersCpu ? ` Other processes used ${Math.round(100 * othersCpu.median)} % of the machine.` : ''
  return `# Benchmarks

Made by \`npm run bench -- --docs\` on ${takenAt.slice(0, 10)}. What is measured and how is in bench/README.md of the \
repository. Absolute numbers are those of one machine, with the server beside the clients: compare the ratios.

${machine.cores} cores (${machine.cpu}), ${machine.memoryGb} GB, Node ${node}, Redis ${server}. ${rounds} rounds, in \
which all take turns; medians, with the least and the most.${others}

${Object.entries(packages).map(([name, version]) => `${name} ${version}`).join(' · ')}

"pipelined" is a library on a client that sends the requests of a tick together; "tuned" one that asks again every \
2 ms. All else are defaults.

## What must be shown

${mustTable(musts)}

Why what is not met cannot be: [limits](bench-limits.md).

${workloads.map(section).join('\n')}`
}

function section(workload) {
  return `## ${workload.title}

${workload.says}

![${workload.title}](bench/${workload.id}.svg)

${workloadTable(workload)}
`
}
