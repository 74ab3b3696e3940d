/** The processes that a process has started and that still run. */
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'

export function childrenOf(pid) {
  return processes()
    .filter(([, parent]) => parent === pid)
    .map(([child]) => child)
}

/** Each with its parent. */
function processes() {
  const pids = list('/proc').map(Number).filter(Number.isInteger)
  return pids.length > 0 ? pids.flatMap(withParent) : toldByPs()
}

function list(folder) {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Nothing of one that has ended in the meantime. */
function withParent(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The fourth field; the second is a name that may contain anything.
    return [[pid, Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])]]
  } catch {
    return []
  }
}

/** Where there is no /proc, as on macOS. */
function toldByPs() {
  const lines = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' }).trim().split('\n')
  return lines.map((line) => line.trim().split(/\s+/).map(Number))
}
