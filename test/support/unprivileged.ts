/** Servers of databases refuse to be root. When the tests are, those servers and their files belong to somebody else. */
import { execFile, execFileSync } from 'node:child_process'
import { chownSync } from 'node:fs'
import { promisify } from 'node:util'
import { findBinary } from '../../scripts/lib/binaries.mjs'

export interface Program {
  readonly name: string
  /** The package of Debian that has it. */
  readonly debian: string
}

interface User {
  readonly uid: number
  readonly gid: number
}

/** For `spawn`: nothing to say if the tests are not root. */
export const unprivileged: User | Record<string, never> = process.getuid?.() === 0 ? nobody() : {}

function nobody(): User {
  const ask = (what: string) => Number(execFileSync('id', [what, 'nobody'], { encoding: 'utf8' }))
  return { uid: ask('-u'), gid: ask('-g') }
}

export function giveAway(...files: string[]): void {
  const { uid, gid } = unprivileged
  if (uid === undefined || gid === undefined) return
  for (const file of files) chownSync(file, uid, gid)
}

export function pathOf({ name, debian }: Program): string {
  const path = findBinary(name)
  if (path === undefined) throw new Error(`${name} was not found. The tests start their own: apt-get install ${debian}.`)
  return path
}

/** Runs it to its end, in a folder of the user that it runs as. */
export async function runUnprivileged(program: Program, args: readonly string[], cwd: string, env = process.env): Promise<void> {
  await promisify(execFile)(pathOf(program), args, { ...unprivileged, cwd, env })
}
