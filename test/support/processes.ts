/** What servers and workers have in common: they are processes that get stopped, continued and killed. */
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** With the folder that goes when they go. */
const running = new Map<ChildProcess, string>()

function killAll(): void {
  for (const [child, folder] of running) {
    child.kill('SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  }
  running.clear()
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
  return mkdtempSync(join(parent, `holdfast-${prefix}-`))
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
  await until(child, (state) => state === 'T')
}

export async function resumeProcess(child: ChildProcess): Promise<void> {
  signal(child, 'SIGCONT')
  await until(child, (state) => state !== 'T')
}

function signal(child: ChildProcess, name: 'SIGSTOP' | 'SIGCONT'): void {
  if (hasExited(child) || !child.kill(name)) throw new Error(`${name}: process ${child.pid} is gone`)
}

async function until(child: ChildProcess, reached: (state: string) => boolean): Promise<void> {
  const giveUpAt = performance.now() + 5_000
  for (;;) {
    const state = stateOf(child.pid)
    // No /proc, as on macOS: the best that can be done is to give it some time.
    if (state === undefined) return void (await sleep(10))
    if (reached(state)) return
    if (performance.now() > giveUpAt) throw new Error(`Process ${child.pid} stays in state ${state}`)
    await sleep(1)
  }
}

function stateOf(pid: number | undefined): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The name before it is in brackets and may contain anything.
    return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3)
  } catch {
    return undefined
  }
}
