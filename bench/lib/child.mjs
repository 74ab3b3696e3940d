/**
 * A process that measures: opens one contender and does what the parent asks of its job. Every measurement has fresh
 * ones, so that nobody inherits another's heap, or code that was optimised for another.
 */
import { openContender } from '../contenders/index.mjs'

let job

process.on('message', (request) => void answer(request).catch(fail))
process.once('disconnect', () => process.exit(1))
// redis-semaphore throws from a timer when a lock is lost; that is a result as well.
process.on('uncaughtException', fail)
process.on('unhandledRejection', fail)

async function answer({ method, argument }) {
  const reply = method === 'open' ? await open(argument) : await job[method](argument)
  process.send({ reply })
}

async function open({ contender, jobName, url, prefix, params }) {
  const locks = await openContender(contender, url, { prefix, ttlMs: params.ttlMs, processIndex: params.processIndex, what: params.what })
  const { start } = await import(`../jobs/${jobName}.mjs`)
  job = await start(locks, params)
}

/** The parent ends this process when it has heard from all. */
function fail(error) {
  process.send({ failed: `${error?.name ?? 'Error'}: ${error?.message ?? error}`.slice(0, 300) })
}
