/** A folder of its own for each measurement on files. Nobody serves it, so what a server would tell of itself is nothing. */
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'

export class Files {
  #folder
  #made = 0

  constructor(parentFolder) {
    this.#folder = join(parentFolder, 'files')
  }

  /** The database; a contender that needs other files puts them beside it. */
  get url() {
    return join(this.#folder, String(this.#made), 'locks.db')
  }

  async version() {
    const { default: Database } = await import('libsql')
    const database = new Database(':memory:')
    const { version } = database.prepare('SELECT sqlite_version() AS version').get()
    database.close()
    return version
  }

  async empty() {
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 5 })
    this.#made++
    mkdirSync(join(this.#folder, String(this.#made)), { recursive: true })
  }

  async counters() {
    return { takenAt: performance.now(), calls: {}, cpuMs: 0 }
  }
}
