/** No database: a folder for each lock, made by whoever has it. Who waits tries again. */
import { dirname, join } from 'node:path'
import lockfile from 'proper-lockfile'

export async function open(file, { ttlMs, retries }) {
  const folder = dirname(file)
  // What is locked need not be there.
  const options = { realpath: false, stale: ttlMs, retries }
  return {
    acquire: (key) => lockfile.lock(join(folder, key), options),
    release: (release) => release()
  }
}
