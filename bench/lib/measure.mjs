/** One measurement: starts the processes, starts them off together, watches the server meanwhile, and adds up. */
import { fork } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { contenderOf } from '../contenders/index.mjs'
import { sharedNow } from './clock.mjs'
import { between } from './server.mjs'

const CHILD = fileURLToPath(new URL('child.mjs', import.meta.url))
/** From the word to the start, so that it reaches all before. */
const HEAD_START_MS = 30
const OPEN_MS = 30_000
const GRACE_MS = 10_000
const children = new Set()
let measurements = 0

process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')))

/**
 * Resolves with the metrics, or with `{ failed }` or `{ capped }`: one contender that cannot do it must not end the run.
 * `workload.evaluate` makes metrics of what the processes and the server tell.
 */
export async function measure(server, workload, contenderId) {
  const { job, processes = 1, params, evaluate } = workload
  const { direct } = contenderOf(contenderId)
  await server.empty()
  const prefix = `bench-${process.pid}-${++measurements}`
  const crew = Array.from({ length: processes }, (_, processIndex) =>
    startChild({ contender: contenderId, job, url: server.url, prefix, params: { ...params, processIndex } })
  )
  try {
    await within(OPEN_MS, Promise.all(crew.map((child) => child.heard('ready'))))
    const from = sharedNow() + HEAD_START_MS + (params.warmUpMs ?? 0)
    const until = from + (params.durationMs ?? 0)
    for (const child of crew) child.process.send({ from, until })
    const results = Promise.all(crew.map((child) => child.heard('done')))
    // Looked at below, after the snapshots.
    results.catch(() => {})
    const observed = params.durationMs ? await observe(server, from, until, direct, results) : {}
    const told = await within(workload.capMs ?? GRACE_MS, results)
    return evaluate(told.map(({ result }) => result), { ...observed, from, until })
  } catch (error) {
    return error instanceof Capped ? { capped: error.message } : { failed: error.message }
  } finally {
    for (const child of crew) child.process.kill('SIGKILL')
    await Promise.all(crew.map((child) => child.gone))
  }
}

async function observe(server, from, until, direct, results) {
  const failed = results.then(() => new Promise(() => {}))
  await Promise.race([sleep(from - sharedNow()), failed])
  const before = await server.counters()
  await Promise.race([sleep(until - sharedNow()), failed])
  return between(before, await server.counters(), direct)
}

class Capped extends Error {}

async function within(ms, promise) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Capped(`not done within ${Math.round(ms / 1000)} s`)), ms)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

function startChild(task) {
  const child = fork(CHILD, { execArgv: ['--expose-gc'], stdio: ['ignore', 'ignore', 'ignore', 'ipc'] })
  children.add(child)
  const gone = new Promise((resolve) => child.once('exit', resolve))
  const waiting = new Map()
  const arrived = new Map()
  let trouble

  function fail(error) {
    trouble ??= error
    for (const { reject } of waiting.values()) reject(trouble)
    waiting.clear()
  }
  child.on('message', (message) => {
    if (message.type === 'failed') return fail(new Error(message.message))
    arrived.set(message.type, message)
    waiting.get(message.type)?.resolve(message)
    waiting.delete(message.type)
  })
  child.on('error', fail)
  void gone.then((code) => {
    children.delete(child)
    fail(new Error(`its process ended with ${code}`))
  })
  child.send(task)

  return {
    process: child,
    gone,
    heard: (type) =>
      new Promise((resolve, reject) => {
        if (arrived.has(type)) resolve(arrived.get(type))
        else if (trouble) reject(trouble)
        else waiting.set(type, { resolve, reject })
      })
  }
}
