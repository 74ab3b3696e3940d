import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { DEBIAN_GO, findBinary } from './binaries.mjs'
import { withFileLock } from './file-lock.mjs'
import { pause, run, step, Stop } from './run.mjs'

/** The servers that the tests start for themselves, on ports of their own. All must be there: a missing one is no skip. */
const SERVERS = [
  { command: 'redis-server', debian: 'redis-server', brew: 'redis' },
  { command: 'postgres', debian: 'postgresql', brew: 'postgresql' },
  { command: 'pgbouncer', debian: 'pgbouncer', brew: 'pgbouncer' },
  { command: 'mariadbd', debian: 'mariadb-server', brew: 'mariadb' },
  { command: 'etcd', debian: 'etcd-server', brew: 'etcd' },
  // For the tests to look at etcd with other eyes than ours.
  { command: 'etcdctl', debian: 'etcd-client', brew: 'etcd' },
  // For the certificates of servers.
  { command: 'openssl', debian: 'openssl', brew: 'openssl' },
  // For the faults of a machine: test/fault/machine.
  { command: 'gcc', debian: 'gcc libc6-dev', brew: 'gcc' }
]

/** Only who asks for them needs them: a peer that is measured. Of etcd's client in Go, the sources that Debian has are used. */
const PEERS = [
  { command: 'go', debian: 'golang-go', brew: 'go' },
  { command: 'clientv3', folder: join(DEBIAN_GO, 'src/go.etcd.io/etcd/clientv3'), debian: 'golang-etcd-server-dev' }
]

const POLICY = '/usr/sbin/policy-rc.d'
const NO_SERVICES = '#!/bin/sh\nexit 101\n'
const APT = ['-q', '-o', 'DPkg::Lock::Timeout=300']

/** `commands`: only these. */
export async function ensureServers(commands = SERVERS.map(({ command }) => command)) {
  const isThere = ({ command, folder }) => (folder ? existsSync(folder) : findBinary(command) !== undefined)
  const missing = () => [...SERVERS, ...PEERS].filter((one) => commands.includes(one.command) && !isThere(one))
  const names = (how) => missing().map((server) => server[how]).join(' ')
  if (missing().length === 0) return
  if (process.getuid?.() !== 0 || !findBinary('apt-get')) {
    console.error(`This needs ${names('command')}. Install with one of`)
    console.error(`  sudo apt-get install ${names('debian')}`)
    if (missing().every(({ brew }) => brew)) console.error(`  brew install ${names('brew')}`)
    throw new Stop()
  }
  // For the whole machine, since two runs would otherwise take the policy file away from each other.
  await withFileLock('apt', async () => {
    if (missing().length > 0) await install(names('debian').split(' '))
  })
  if (missing().length > 0) throw new Error(`installed, but still not found: ${names('command')}`)
}

async function install(packages) {
  const env = { DEBIAN_FRONTEND: 'noninteractive' }
  // Debian starts a service as soon as its package is installed, on the default port. This policy forbids it.
  const ours = create(POLICY, NO_SERVICES)
  try {
    console.log(`… apt-get install ${packages.join(' ')}`)
    await updateLists(env)
    await step('apt-get install', 'apt-get', [...APT, 'install', '-y', '--no-install-recommends', ...packages], { env })
  } finally {
    if (ours) rmSync(POLICY)
  }
}

/** The lists have a lock of their own, for which apt does not know how to wait. */
async function updateLists(env) {
  for (let tries = 60; tries > 0; tries--) {
    const { code, output } = await run('apt-get', [...APT, 'update'], { env })
    if (code === 0) return
    if (!output.includes('Could not get lock') || tries === 1) {
      // Old lists may do; if not, the install says what is wrong.
      console.log(output.trimEnd())
      return
    }
    await pause(5_000)
  }
}

function create(file, text) {
  try {
    writeFileSync(file, text, { flag: 'wx', mode: 0o755 })
    return true
  } catch (error) {
    if (error.code !== 'EEXIST') throw error
    // One like ours was left behind by a run that was killed.
    return readFileSync(file, 'utf8') === text
  }
}
