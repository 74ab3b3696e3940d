/**
 * A process that measures: opens one contender, does one job, tells the result. Every measurement has fresh ones, so that
 * nobody inherits another's heap, or code that was optimised for another.
 */
import { once } from 'node:events'
import { openContender } from '../contenders/index.mjs'
import { JOBS } from '../jobs/index.mjs'

const [{ contender, job, url, prefix, params }] = await once(process, 'message')
const tell = (message) => new Promise((resolve) => process.send(message, resolve))

process.once('disconnect', () => process.exit(1))
// redis-semaphore throws from a timer when a lock is lost; that is a result as well.
process.on('uncaughtException', fail)
process.on('unhandledRejection', fail)

try {
  const locks = await openContender(contender, url, { prefix, ttlMs: params.ttlMs })
  const ready = async () => {
    await tell({ type: 'ready' })
    const [message] = await once(process, 'message')
    return message
  }
  await tell({ type: 'done', result: await JOBS[job](locks, params, ready) })
} catch (error) {
  await fail(error)
}

/** The parent ends this process when it has the results of all. */
async function fail(error) {
  await tell({ type: 'failed', message: `${error?.name ?? 'Error'}: ${error?.message ?? error}`.slice(0, 300) })
}
