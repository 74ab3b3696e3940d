/** What servers and workers have in common: they are processes that get stopped, continued and killed. */
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { childrenOf } from '../../scripts/lib/children.mjs'

/** With the folder that goes when they go. */
const running = new Map<ChildProcess, string>()
const folders = new Set<string>()

function killAll(): void {
  for (const child of running.keys()) {
    const others = childrenOf(child.pid!)
    child.kill('SIGKILL')
    for (const pid of others) sendSignal(pid, 'SIGKILL')
  }
  // One that is just dying may still leave something behind.
  for (const folder of [...running.values(), ...folders]) rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
  running.clear()
  folders.clear()
}

process.on('exit', killAll)
// This is how vitest ends its workers, and it is no 'exit'.
process.once('SIGTERM', () => {
  killAll()
  if (process.listenerCount('SIGTERM') === 0) process.kill(process.pid, 'SIGTERM')
})

/**
 * Has a child killed when this process ends. If this process is killed itself, the pid file tells the script that runs
 * the tests what to kill.
 */
export function track(child: ChildProcess, folder: string, name: string): void {
  const pidFile = join(folder, `${name}.pid`)
  writeFileSync(pidFile, String(child.pid))
  running.set(child, folder)
  child.once('exit', () => {
    running.delete(child)
    rmSync(pidFile, { force: true })
  })
}

/** A new folder, below the one of this test run if there is one. */
export function makeFolder(prefix: string): string {
  const parent = process.env['HOLDFAST_TEST_DIR'] ?? tmpdir()
  mkdirSync(parent, { recursive: true })
  const folder = mkdtempSync(join(parent, `holdfast-${prefix}-`))
  // What refuses to run as root runs as somebody else, who has to get in.
  if (process.getuid?.() === 0) chmodSync(folder, 0o711)
  return folder
}

/** For one that is used until this process ends. */
export function removeAtEnd(folder: string): void {
  folders.add(folder)
}

export function hasExited(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null
}

export async function exited(child: ChildProcess): Promise<void> {
  if (!hasExited(child)) await once(child, 'exit')
}

/** Resolves once it is gone. A stopped process dies of SIGKILL as well, but of no other signal. */
export async function killAndWait(child: ChildProcess): Promise<void> {
  if (hasExited(child)) return
  child.kill('SIGKILL')
  await exited(child)
}

/** SIGSTOP, and resolves when the process really does nothing any more: the signal alone only asks for it. */
export async function pauseProcess(child: ChildProcess): Promise<void> {
  signal(child, 'SIGSTOP')
  await until(child.pid!, (state) => state === 'T')
}

export async function resumeProcess(child: ChildProcess): Promise<void> {
  signal(child, 'SIGCONT')
  await until(child.pid!, (state) => state !== 'T')
}

/** Together with the processes that it has started. Resolves with those once all stand still. */
export async function pauseFamily(child: ChildProcess): Promise<number[]> {
  // First of all, and from here on it starts no others.
  await pauseProcess(child)
  const others = childrenOf(child.pid!).filter((pid) => sendSignal(pid, 'SIGSTOP'))
  await Promise.all(others.map((pid) => until(pid, (state) => state === 'T' || state === 'Z')))
  return others
}

export async function resumeFamily(child: ChildProcess): Promise<void> {
  const others = childrenOf(child.pid!).filter((pid) => sendSignal(pid, 'SIGCONT'))
  await Promise.all(others.map((pid) => until(pid, (state) => state !== 'T')))
  await resumeProcess(child)
}

/** SIGKILL for all at once: none of them sees another one die. Resolves when all are gone. */
export async function killFamily(child: ChildProcess): Promise<void> {
  if (hasExited(child)) return
  const others = await pauseFamily(child)
  for (const pid of others) sendSignal(pid, 'SIGKILL')
  await killAndWait(child)
  await Promise.all(others.map((pid) => until(pid, (state) => state === 'Z')))
}

/** One that is dead but that nobody has buried is not. */
export function isAlive(pid: number): boolean {
  return sendSignal(pid, 0) && stateOf(pid) !== 'Z'
}

function signal(child: ChildProcess, name: 'SIGSTOP' | 'SIGCONT'): void {
  if (hasExited(child) || !child.kill(name)) throw new Error(`${name}: process ${child.pid} is gone`)
}

/** False if there is no such process any more. */
function sendSignal(pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, name)
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ESRCH') return false
    throw error
  }
}

/** Or until it is gone. */
async function until(pid: number, reached: (state: string) => boolean): Promise<void> {
  const giveUpAt = performance.now() + 5_000
  for (;;) {
    const state = stateOf(pid)
    // No /proc, as on macOS: the best that can be done is to give it some time.
    if (state === undefined) return void (await sleep(10))
    if (reached(state)) return
    if (performance.now() > giveUpAt) throw new Error(`Process ${pid} stays in state ${state}`)
    await sleep(1)
  }
}

function stateOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The name before it is in brackets and may contain anything.
    return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3)
  } catch {
    return undefined
  }
}
