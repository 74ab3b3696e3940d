/**
 * One at a time among the processes of this machine: for steps that write into the checkout or the system.
 *
 * The lock is a file that holds its holder's pid. It appears by link(2), which is atomic and never shows a half-written
 * file. One whose holder is dead is cleared away under a second lock, so that two who find it at once cannot remove each
 * other's new one.
 */
import { linkSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pause } from './run.mjs'

const PATIENCE_MS = 15 * 60_000

export async function withFileLock(name, body) {
  const file = join(tmpdir(), `holdfast-${name}.lock`)
  const deadline = performance.now() + PATIENCE_MS
  while (!take(file)) {
    clearIfDead(file)
    if (performance.now() > deadline) throw new Error(`${file} is still held. If nobody is at work here, remove it.`)
    await pause(200)
  }
  try {
    return await body()
  } finally {
    rmSync(file, { force: true })
  }
}

function take(file) {
  const mine = `${file}.${process.pid}`
  writeFileSync(mine, String(process.pid))
  try {
    linkSync(mine, file)
    return true
  } catch (error) {
    if (error.code === 'EEXIST') return false
    throw error
  } finally {
    rmSync(mine, { force: true })
  }
}

function clearIfDead(file) {
  if (!isDead(file) || !take(`${file}.clearing`)) return
  try {
    if (isDead(file)) rmSync(file, { force: true })
  } finally {
    rmSync(`${file}.clearing`, { force: true })
  }
}

function isDead(file) {
  try {
    process.kill(Number(readFileSync(file, 'utf8')), 0)
    return false
  } catch (error) {
    return error.code === 'ESRCH'
  }
}
