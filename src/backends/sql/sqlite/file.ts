/** Where the file is, and what kind of place that is. */
import { closeSync, mkdirSync, openSync, statfsSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import { ConfigurationError, ConnectorError } from '../../../core/errors.js'

/** In the user's state folder: what every process of this user on this machine shares. */
export function defaultFile(platform: NodeJS.Platform = process.platform, env: NodeJS.ProcessEnv = process.env, home = homedir()): string {
  const folder = stateFolder(platform, env, home)
  if (!isAbsolute(folder)) throw new ConfigurationError("There is no home folder for the default file. Say where: connect('sqlite:/path/locks.db').")
  return join(folder, 'holdfast', 'locks.db')
}

function stateFolder(platform: NodeJS.Platform, env: NodeJS.ProcessEnv, home: string): string {
  if (platform === 'win32') return env['LOCALAPPDATA'] || join(home, 'AppData', 'Local')
  if (platform === 'darwin') return join(home, 'Library', 'Application Support')
  // What is not absolute is to be ignored, says the specification.
  const state = env['XDG_STATE_HOME'] ?? ''
  return isAbsolute(state) ? state : join(home, '.local', 'state')
}

/**
 * Makes the file, for its user only: claims are secrets. One that is there is left alone, and not even opened: closing a file again
 * would drop every lock that SQLite has on it in this process.
 */
export function ensureFile(file: string, { folder }: { readonly folder: 'make' | 'expect' }): void {
  try {
    if (folder === 'make') mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
    closeSync(openSync(file, 'wx', 0o600))
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (code === 'EEXIST') {
      if (statSync(file).isFile()) return
      throw new ConnectorError(`${file} is no file.`)
    }
    const why = code === 'ENOENT' ? `its folder ${dirname(file)} does not exist` : message
    throw new ConnectorError(`The file ${file} cannot be made: ${why}.`, { cause: error })
  }
}

/** What Linux calls file systems that are somewhere else, or may be. */
const ELSEWHERE: Readonly<Record<number, string>> = {
  0x6969: 'NFS', 0x517b: 'SMB', 0xff534d42: 'CIFS', 0xfe534d42: 'SMB2', 0x65735546: 'FUSE', 0x01021997: '9P', 0x00c36400: 'Ceph',
  0x5346414f: 'AFS', 0x6b414653: 'AFS', 0x73757245: 'Coda', 0x0bd00bd0: 'Lustre', 0x7461636f: 'OCFS2', 0x01161970: 'GFS2',
  0x786f4256: 'vboxsf', 0x7c7c6673: 'prl_fs', 0x564c: 'NCP',
}

/** The network file system that a file is on, if it is on one. */
export function networkOf(file: string): string | undefined {
  if (process.platform === 'win32') return file.startsWith('\\\\') ? 'a network share' : undefined
  if (process.platform !== 'linux') return undefined
  try {
    // It has 32 bits, of which the first may come as a sign.
    return ELSEWHERE[statfsSync(file).type >>> 0]
  } catch {
    return undefined
  }
}
