import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir, uptime } from 'node:os'
import { join } from 'node:path'
import { childrenOf } from './children.mjs'

/** A folder for the length of a run. Tests keep their servers' files in it, each server with a `*.pid`. */
export async function withTestDir(body) {
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-test-'))
  // Some servers refuse to be root. Run as somebody else, they have to get to their files.
  if (process.getuid?.() === 0) chmodSync(folder, 0o711)
  try {
    return await body(folder)
  } finally {
    killLeftOver(folder)
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
  }
}

/** A test that was cut short leaves its servers running. Nothing they know is worth a clean shutdown. */
function killLeftOver(folder) {
  const seen = new Set()
  for (const name of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!name.endsWith('.pid')) continue
    const file = join(folder, name)
    const pid = Number.parseInt(readFileSync(file, 'utf8'), 10)
    // Some servers write a pid file of their own, next to ours.
    if (!(pid > 1) || seen.has(pid) || wasReused(pid, statSync(file).mtimeMs)) continue
    seen.add(pid)
    // Those of a server that was paused would not notice that it is gone.
    const children = childrenOf(pid)
    if (kill(pid)) console.error(`killed ${name.slice(0, -4)} (pid ${pid}), which a test left running`)
    children.forEach(kill)
  }
}

function kill(pid) {
  try {
    return process.kill(pid, 'SIGKILL')
  } catch (error) {
    if (error.code !== 'ESRCH') throw error
    return false
  }
}

/**
 * A server that a test killed leaves its pid file behind, and its pid may belong to somebody else by now: to a process
 * that is younger than the file. Where there is no /proc that is taken not to be so.
 */
function wasReused(pid, writtenAtMs) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // Field 22, in hundredths of a second since boot; the second field is a name that may contain anything.
    const startedAfterBootS = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]) / 100
    const ageS = uptime() - startedAfterBootS
    return ageS + 2 < (Date.now() - writtenAtMs) / 1000
  } catch {
    return false
  }
}
