/** Pages in docs/ for the stores that were measured, with their charts. The page of another store stays as it is. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { chart } from './chart.mjs'
import { mustTable } from './musts.mjs'
import { workloadTable } from './report.mjs'
import { storesOf } from './stores.mjs'
import { othersCpu } from './summary.mjs'

const ON_FILES = ['libsql', 'proper-lockfile']

const ON_SQL = ['kysely', 'mysql2', 'pg', 'postgres']

const PAGES = [
  {
    stores: ['redis'],
    name: 'bench',
    // What is not met is explained there.
    title: 'Benchmarks',
    command: 'npm run bench -- --docs',
    where: 'with the server beside the clients',
    servers: { redis: 'Redis' },
    isListed: (name) => !ON_FILES.includes(name) && !ON_SQL.includes(name),
    words: `"pipelined" is a library on a client that sends the requests of a tick together; "tuned" one that asks again every \
2 ms. All else are defaults.`,
    other: 'There are pages of their own for [SQLite](bench-sqlite.md), for [PostgreSQL and MariaDB](bench-sql.md), and for [etcd](bench-etcd.md).'
  },
  {
    stores: ['sqlite'],
    name: 'bench-sqlite',
    title: 'Benchmarks: SQLite',
    command: 'npm run bench -- --only sqlite --docs',
    where: 'and of its disk',
    servers: { sqlite: 'libsql with SQLite' },
    isListed: (name) => name === 'holdfast' || ON_FILES.includes(name),
    words: `"libsql" is the bare client, with everything set as holdfast sets it: one upsert to lock, one update to unlock; it lets \
SQLite wait for other writers, which stops the event loop, and "trying again" does it in the next turn of the event loop instead. \
"our statements" are holdfast's own two, called by hand. proper-lockfile makes a folder for each lock, and asks again after a second \
and more; "tuned" every 2 ms.`,
    other: 'On Redis: [benchmarks](bench.md).'
  },
  {
    stores: ['postgres', 'mariadb'],
    name: 'bench-sql',
    title: 'Benchmarks: PostgreSQL and MariaDB',
    command: 'npm run bench -- --only postgres,mariadb --docs',
    where: 'with the servers beside the clients, and of its disk',
    servers: { postgres: 'PostgreSQL', mariadb: 'MariaDB' },
    isListed: (name) => ['holdfast', '@verrou/core', ...ON_SQL].includes(name),
    words: `The servers have their default settings: what is committed is on the disk. All have 10 connections, which is the default of \
their clients. "transaction" is the lock of many a design document: BEGIN, SELECT … FOR UPDATE, INSERT, COMMIT, and a DELETE to unlock. \
"our functions" and "our procedures" are holdfast's own two, called by hand, one lock at a time. verrou is its SQL store on Kysely; it asks again after \
250 ms, and "tuned" every 2 ms. "update + NOTIFY" is no lock: one process commits an update and a NOTIFY, and the other hears it.`,
    other: 'On Redis: [benchmarks](bench.md).'
  },
  {
    stores: ['etcd', 'etcd-cluster'],
    name: 'bench-etcd',
    title: 'Benchmarks: etcd',
    command: 'npm run bench -- --only etcd --docs',
    where: 'with the servers beside the clients, and of its disk',
    servers: { etcd: 'etcd' },
    isListed: (name) => name === 'holdfast',
    words: `The server is one member, or a cluster of three where that is said, with its default settings, but that it compacts old revisions, as one does that is used for long; what is \
answered is on the disk. "node:http2" is the client that Node comes with, and two requests by hand: a transaction that puts a key and \
reads who else is there, and a delete; nobody can wait. "clientv3 (Go)" is the Mutex of etcd's own client, of the server's version: one client and one session for a process, and where workers of a process \
want the same key a session for each, as its documentation asks for. It serves waiters strictly in order, as "holdfast strict" does: that is \
like for like. Without it a process serves its own in turns, in memory.`,
    other: 'On Redis: [benchmarks](bench.md).'
  }
]

/** Tells which pages are new. */
export function writeDocs(docs, results) {
  const measured = storesOf(results.workloads)
  return PAGES.filter(({ stores }) => stores.some((store) => measured.includes(store))).map((of) => {
    const workloads = results.workloads.filter(({ store }) => of.stores.includes(store))
    const charts = join(docs, of.name)
    rmSync(charts, { recursive: true, force: true })
    mkdirSync(charts, { recursive: true })
    for (const workload of workloads) writeFileSync(join(charts, `${workload.id}.svg`), chart(workload))
    writeFileSync(join(docs, `${of.name}.md`), page(of, { ...results, workloads }))
    return `${of.name}.md`
  })
}

function page(of, { takenAt, machine, versions, rounds, musts, workloads }) {
  const { node, stores, ...packages } = versions
  const busy = othersCpu(workloads)
  const others = busy ? ` Other processes used ${Math.round(100 * busy.median)} % of the machine.` : ''
  const ours = musts.filter(({ store }) => of.stores.includes(store))
  const limits = ours.every(({ met }) => met) ? '' : '\nWhy what is not met cannot be: [limits](bench-limits.md).\n'
  const servers = Object.entries(of.servers).flatMap(([store, name]) => (store in stores ? `${name} ${stores[store]}` : []))
  const listed = Object.entries(packages).filter(([name]) => of.isListed(name))
  return `# ${of.title}

Made by \`${of.command}\` on ${takenAt.slice(0, 10)}. What is measured and how is in bench/README.md of the \
repository. Absolute numbers are those of one machine, ${of.where}: compare the ratios. ${of.other}

${machine.cores} cores (${machine.cpu}), ${machine.memoryGb} GB, Node ${node}, ${servers.join(', ')}. ${rounds} rounds, in \
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
