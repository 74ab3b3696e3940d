/** Where a program is that is to be started by its path. */
import { accessSync, constants, readdirSync } from 'node:fs'
import { delimiter, join } from 'node:path'

const DEBIAN_POSTGRES = '/usr/lib/postgresql'
/** Where its packages put the sources of Go's libraries. */
export const DEBIAN_GO = '/usr/share/gocode'

export function findBinary(name) {
  // On Debian, PostgreSQL is in no folder of PATH, and other servers are in one that only root has there.
  const folders = [...debianPostgres(), ...(process.env.PATH ?? '').split(delimiter), '/usr/sbin']
  return folders.map((folder) => join(folder, name)).find(isExecutable)
}

/** The newest first. */
function debianPostgres() {
  const versions = list(DEBIAN_POSTGRES).sort((a, b) => Number(b) - Number(a))
  return versions.map((version) => join(DEBIAN_POSTGRES, version, 'bin'))
}

function list(folder) {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}
