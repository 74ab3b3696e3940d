/**
 * Child processes, and what a signal means: it goes to the children that run, and once they are gone becomes an exception
 * here, so that every `finally` on the way out (locks, temporary folders, servers) does its work.
 */
import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { delimiter, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { root } from './paths.mjs'

const KILL_AFTER_MS = 10_000
/** etcd's programs end if a setting is in the environment, as whoever works with etcd has it, and on the command line, as ours are. */
const OF_ETCD = /^ETCD(CTL)?_/
const children = new Set()
let interrupted

/** Has been reported already; only the exit code is left to set. */
export class Stop extends Error {
  constructor(exitCode = 1) {
    super(`exit ${exitCode}`)
    this.exitCode = exitCode
  }
}

/** Runs a command's main function, turns how it ended into the exit code, and calls `last` when all else has been said. */
export async function main(body, last) {
  for (const name of Object.keys(process.env)) if (OF_ETCD.test(name)) delete process.env[name]
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, interrupt)
  // npm runs scripts through a shell, which dies of a signal without passing it on.
  const parent = process.ppid
  if (process.env.npm_lifecycle_event) setInterval(() => process.ppid === parent || interrupt('SIGTERM'), 500).unref()
  // Who read our output may be gone as well; that is no reason not to clean up.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
  try {
    process.exitCode = (await body()) ?? 0
  } catch (error) {
    if (!(error instanceof Stop)) console.error(error)
    process.exitCode = error instanceof Stop ? error.exitCode : 1
  }
  last?.()
}

function throwIfInterrupted() {
  if (interrupted) throw new Stop(128 + constants.signals[interrupted])
}

/** A sleep that a signal cuts short. */
export async function pause(ms) {
  for (let left = ms; left > 0; left -= 100) {
    throwIfInterrupted()
    await sleep(Math.min(left, 100))
  }
  throwIfInterrupted()
}

/** Runs a program, found in node_modules/.bin too. Its output is gathered, unless `stdio` is 'inherit'. */
export async function run(command, args, { env = {}, stdio = 'pipe', cwd = root } = {}) {
  throwIfInterrupted()
  const PATH = `${join(root, 'node_modules/.bin')}${delimiter}${process.env.PATH}`
  const child = spawn(command, args, {
    cwd,
    env: { ...process.env, PATH, ...env },
    stdio: stdio === 'inherit' ? 'inherit' : ['ignore', 'pipe', 'pipe']
  })
  children.add(child)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream?.setEncoding('utf8').on('data', (text) => (output += text))
  const code = await new Promise((resolve) => {
    child.on('error', (error) => {
      output += `${command}: ${error.message}\n`
      resolve(127)
    })
    child.on('close', (exitCode, signal) => resolve(exitCode ?? 128 + constants.signals[signal]))
  })
  children.delete(child)
  throwIfInterrupted()
  return { code, output }
}

/** One line with its time if green; everything it said, and the end, if red. */
export async function step(name, command, args, { log = console.log, ...options } = {}) {
  const started = performance.now()
  const { code, output } = await run(command, args, options)
  const time = `${((performance.now() - started) / 1000).toFixed(1)} s`
  log(`${code === 0 ? '✓' : '✗'} ${name} (${time})`)
  if (code === 0) return
  log(output.trimEnd())
  throw new Stop()
}

function interrupt(signal) {
  if (interrupted === undefined) setTimeout(() => children.forEach((child) => child.kill('SIGKILL')), KILL_AFTER_MS).unref()
  interrupted ??= signal
  for (const child of children) child.kill(signal)
}
