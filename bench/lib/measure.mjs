import { cpus } from 'node:os'
import { contenderOf } from '../contenders/index.mjs'
import { Capped, Crew } from './crew.mjs'
import { between } from './server.mjs'

const OPEN_MS = 30_000
let measurements = 0

/**
 * One contender at one workload, once. Resolves with the metrics, or with `{ failed }` or `{ capped }`: one that cannot
 * do it must not end the run.
 */
export async function measure(server, { jobName, processes, params }, contender) {
  const { conduct } = await import(`../jobs/${jobName}.mjs`)
  const { direct, program } = contenderOf(contender)
  await server.empty()
  const task = { contender, jobName, url: server.url, prefix: `bench-${process.pid}-${++measurements}` }
  const crew = new Crew(processes, program)
  try {
    await crew.ask('open', OPEN_MS, (processIndex) => ({ ...task, params: { ...params, processIndex } }))
    const countKeys = () => server.countKeys()
    return await conduct(crew, params, { watch: (body) => watch(server, direct, body), countKeys })
  } catch (error) {
    return error instanceof Capped ? { capped: error.message } : { failed: error.message }
  } finally {
    await crew.end()
  }
}

/** Does something, and tells what the server did meanwhile, and how busy the machine was. */
async function watch(server, direct, body) {
  const busyBefore = busyMs()
  const before = await server.counters()
  const result = await body()
  const done = between(before, await server.counters(), direct)
  const busy = busyMs() - busyBefore - done.cpuMs
  return { result, ...done, othersCpu: (ourMs) => Math.max(0, busy - ourMs) / (done.elapsedMs * cpus().length) }
}

/** All cores together, since the start of the machine. */
function busyMs() {
  return cpus().reduce((sum, { times }) => sum + times.user + times.nice + times.sys + times.irq, 0)
}
