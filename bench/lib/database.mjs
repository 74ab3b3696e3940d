/**
 * A private database server on loopback, with what it comes with: what is committed is on the disk. `kind` tells how it is made,
 * started and asked (postgres.mjs is one, and etcd.mjs).
 */
import { execFile, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, mkdirSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { findBinary } from '../../scripts/lib/binaries.mjs'
import { childrenOf } from '../../scripts/lib/children.mjs'
import { startOnFreePort, whileRunning } from './running.mjs'

const READY_MS = 30_000
const STOP_MS = 20_000
/** The unit of /proc. */
const TICK_MS = 10

/** They refuse to be root: then they and their files belong to somebody else. */
const user = process.getuid?.() === 0 ? nobody() : {}

function nobody() {
  const ask = (what) => Number(execFileSync('id', [what, 'nobody'], { encoding: 'utf8' }))
  return { uid: ask('-u'), gid: ask('-g') }
}

export async function withDatabase(kind, parentFolder, body) {
  return whileRunning(await startDatabase(kind, parentFolder), body)
}

/** Whoever starts it stops it. */
export async function startDatabase(kind, parentFolder) {
  const folder = join(parentFolder, kind.name)
  mkdirSync(folder, { recursive: true })
  if (user.uid !== undefined) chownSync(folder, user.uid, user.gid)
  if (kind.install) {
    const [program, args] = kind.install(folder)
    await promisify(execFile)(findBinary(program), args, { ...user, cwd: folder })
  }
  return startOnFreePort((port) => tryToStart(kind, port, folder))
}

async function tryToStart(kind, port, folder) {
  const logFile = join(folder, `${port}.log`)
  const log = openSync(logFile, 'w')
  const child = spawn(findBinary(kind.program), await kind.arguments(port, folder), { ...user, cwd: folder, stdio: ['ignore', log, log] })
  await once(child, 'spawn')
  // Tells the cleaning up after a run that was killed what to kill.
  const pidFile = join(folder, 'server.pid')
  writeFileSync(pidFile, String(child.pid))
  const exited = once(child, 'exit')
  try {
    const session = await connected(kind, port, child)
    return new Database(kind, port, child, exited, session, pidFile)
  } catch (error) {
    child.kill('SIGKILL')
    await exited
    throw new Error(`${kind.program} did not start: ${error.message}\n${readFileSync(logFile, 'utf8').slice(-1000)}`)
  }
}

/** Whoever answers may be another server that was quicker to take the port: ours ends then. */
async function connected(kind, port, child) {
  const giveUpAt = performance.now() + READY_MS
  for (;;) {
    try {
      const session = await kind.connect(port)
      await sleep(50)
      if (child.exitCode === null) return session
      await session.end()
    } catch (error) {
      if (performance.now() > giveUpAt) throw error
    }
    if (child.exitCode !== null) throw new Error(`it ended with ${child.exitCode}`)
    await sleep(20)
  }
}

class Database {
  constructor(kind, port, child, exited, session, pidFile) {
    Object.assign(this, { kind, child, exited, session, pidFile, url: kind.url(port) })
  }

  async stop() {
    await this.session.end().catch(() => {})
    this.child.kill(this.kind.stopSignal)
    const timer = setTimeout(() => this.child.kill('SIGKILL'), STOP_MS)
    await this.exited
    clearTimeout(timer)
    rmSync(this.pidFile, { force: true })
  }

  version() {
    return this.session.version()
  }

  async empty() {
    await this.session.empty()
  }

  /** What it was asked is counted only if it does so itself. */
  async counters() {
    const calls = (await this.session.calls?.()) ?? {}
    const pids = [this.child.pid, ...childrenOf(this.child.pid)]
    return { takenAt: performance.now(), calls, cpuMs: pids.reduce((sum, pid) => sum + cpuMs(pid), 0) }
  }
}

/** With that of its children that have ended. 0 where there is no /proc. */
function cpuMs(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // Fields 14 to 17; the second one is a name that may contain anything.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ').slice(11, 15)
    return fields.reduce((sum, ticks) => sum + Number(ticks) * TICK_MS, 0)
  } catch {
    return 0
  }
}
