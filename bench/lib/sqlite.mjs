/** A bare connection to a file, with everything set as holdfast sets it: its layout, pages, log and synchronisation. */
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import Database from 'libsql'
import { schema } from '../../dist/backends/sql/sqlite/sql.js'

const SETTINGS = `
  PRAGMA page_size = 1024;
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = NORMAL;
  PRAGMA wal_autocheckpoint = 4000;
  PRAGMA journal_size_limit = 16777216;
  ${schema}
  INSERT OR IGNORE INTO holdfast_meta (one, version, floor, boot, tidied_at) VALUES (1, 1, 0, '', 0)`

/** `busyTimeoutMs` is how long SQLite itself waits for another writer, and this process with it. */
export async function openDatabase(file, busyTimeoutMs) {
  for (;;) {
    const database = new Database(file, { timeout: busyTimeoutMs })
    try {
      database.exec(SETTINGS)
      return database
    } catch (error) {
      database.close()
      if (!isBusy(error)) throw error
      // Others make the file at the same moment.
      await sleep(Math.random() * 10)
    }
  }
}

/** What one writes around a client that says at once that the file is busy: again, in the next turn of the event loop. */
export async function untilDone(step) {
  for (;;) {
    try {
      return step()
    } catch (error) {
      if (!isBusy(error)) throw error
    }
    await nextTurn()
  }
}

const isBusy = ({ code }) => String(code).startsWith('SQLITE_BUSY')
