/**
 * The machine: its clock, its boots and its processes.
 *
 * The clock is the monotonic one, which is the same in all processes of a machine and cannot be set. (Only in a time namespace of
 * its own, which a container can have, a process sees another.) It starts anew with each boot, so what it says is worth nothing
 * without the boot's id.
 */
import { execFileSync } from 'node:child_process'
import { readFileSync, readlinkSync } from 'node:fs'
import { isMainThread } from 'node:worker_threads'
import { ConfigurationError } from '../../../core/errors.js'

export interface Machine {
  /** Milliseconds since some moment of this boot. */
  now(): number
  readonly boot: string
  readonly pid: number
  /** It may end while its process goes on. */
  readonly isThread: boolean
  /** Where pids mean the same as here. */
  readonly pidSpace: string
  /** Gone is also one that has died and whose parent did not notice; idle is one that is stopped, and cannot answer. */
  stateOf(pid: number): 'running' | 'idle' | 'gone'
}

export function thisMachine(): Machine {
  return { now, boot: bootId(), pid: process.pid, isThread: !isMainThread, pidSpace: pidSpace(), stateOf }
}

function now(): number {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1e3 + nanoseconds / 1e6
}

let knownBoot: string | undefined

/** Nothing made from the time of day: it may be set while locks are held. */
function bootId(): string {
  knownBoot ??= READ_BOOT[process.platform]?.()
  if (knownBoot) return knownBoot
  throw new ConfigurationError(`SQLite as a store needs to know when the machine was booted, and on ${process.platform} it cannot.`)
}

const READ_BOOT: Readonly<Partial<Record<NodeJS.Platform, () => string>>> = {
  linux: () => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim(),
  android: () => readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim(),
  darwin: () => execFileSync('/usr/sbin/sysctl', ['-n', 'kern.bootsessionuuid'], { encoding: 'utf8' }).trim(),
  // A count that Windows raises with each boot.
  win32: () => {
    const path = String.raw`HKLM\SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters`
    return /0x[0-9a-f]+/i.exec(execFileSync('reg', ['query', path, '/v', 'BootId'], { encoding: 'utf8' }))?.[0] ?? ''
  },
}

function pidSpace(): string {
  try {
    return readlinkSync('/proc/self/ns/pid')
  } catch {
    // Only Linux has several.
    return ''
  }
}

function stateOf(pid: number): 'running' | 'idle' | 'gone' {
  try {
    process.kill(pid, 0)
  } catch (error) {
    // One that is somebody else's runs, too.
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return 'gone'
  }
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1')
    // After its name, which is in brackets and may contain anything.
    const state = stat.charAt(stat.lastIndexOf(')') + 2)
    if (state === 'Z' || state === 'X') return 'gone'
    return state === 'T' || state === 't' ? 'idle' : 'running'
  } catch {
    // Only Linux says so.
    return 'running'
  }
}
