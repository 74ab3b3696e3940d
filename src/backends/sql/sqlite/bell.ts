/**
 * Bells: one small file per process, which others write to and its owner watches. What is written is a hint that need not arrive
 * (a process may die between its commit and the ring), so everything that matters is in the database.
 *
 * Not the log of the database itself: watching that wakes every process for every write, which cost an idle one 26 % of a core.
 */
import { createHash } from 'node:crypto'
import {
  chmodSync, closeSync, constants, fstatSync, ftruncateSync, futimesSync, mkdirSync, openSync, readSync, statSync, unlinkSync,
  watch, writeSync, type FSWatcher,
} from 'node:fs'
import { join } from 'node:path'

/** Bells that were read are emptied when they are longer than this. */
const MOST_BYTES = 256 * 1024
/** Where a file cannot be watched. */
const POLL_MS = 25

export class Bells {
  readonly folder: string
  readonly #file: string

  constructor(file: string) {
    this.#file = file
    this.folder = `${file}-bells`
  }

  pathOf(owner: string): string {
    return join(this.folder, createHash('sha1').update(owner).digest('hex'))
  }

  /** One who has no bell does not listen. */
  ring(owner: string, text: string): void {
    let bell: number | undefined
    try {
      bell = openSync(this.pathOf(owner), constants.O_WRONLY | constants.O_APPEND)
      writeSync(bell, text)
    } catch {
      // It finds out by asking.
    } finally {
      if (bell !== undefined) closeSync(bell)
    }
  }

  /** Whoever may write to the database may ring, and nobody else. */
  make(owner: string): string {
    const mode = statSync(this.#file).mode & 0o666
    const folderMode = mode | ((mode & 0o444) >> 2)
    if (mkdirSync(this.folder, { recursive: true, mode: folderMode }) !== undefined) chmodSync(this.folder, folderMode)
    const path = this.pathOf(owner)
    closeSync(openSync(path, 'w', mode))
    chmodSync(path, mode)
    return path
  }
}

export interface BellListener {
  onLine(line: string): void
  /** Something may have been missed. */
  onMissed(): void
  onTrouble(error: Error): void
}

export class Bell {
  readonly #path: string
  readonly #listener: BellListener
  readonly #fd: number
  readonly #buffer = Buffer.allocUnsafe(16 * 1024)
  #offset = 0
  #rest = ''
  #watcher: FSWatcher | undefined
  #poll: NodeJS.Timeout | undefined
  #isClosed = false

  /** `path` is a bell that was made; it is removed at the end. */
  constructor(path: string, listener: BellListener) {
    this.#path = path
    this.#listener = listener
    this.#fd = openSync(path, constants.O_RDWR)
    try {
      this.#watcher = watch(path, { persistent: false }, () => this.#heard())
      this.#watcher.on('error', (error) => this.#pollInstead(error))
    } catch (error) {
      this.#pollInstead(error as Error)
    }
  }

  /** Whether others still find it. */
  touch(): boolean {
    try {
      futimesSync(this.#fd, new Date(), new Date())
      return statSync(this.#path).ino === fstatSync(this.#fd).ino
    } catch {
      return false
    }
  }

  close({ remove }: { readonly remove: boolean }): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#watcher?.close()
    clearInterval(this.#poll)
    closeSync(this.#fd)
    if (!remove) return
    try {
      unlinkSync(this.#path)
    } catch {
      // It is gone.
    }
  }

  #pollInstead(error: Error): void {
    if (this.#isClosed || this.#poll) return
    this.#poll = setInterval(() => this.#heard(), POLL_MS).unref()
    this.#listener.onTrouble(error)
  }

  #heard(): void {
    // Whoever is told of something may close it.
    while (!this.#isClosed) {
      const bytes = readSync(this.#fd, this.#buffer, 0, this.#buffer.length, this.#offset)
      if (bytes === 0) break
      this.#offset += bytes
      // Bytes as characters, until a line is whole: one character's may have come apart.
      const lines = (this.#rest + this.#buffer.toString('latin1', 0, bytes)).split('\n')
      this.#rest = lines.pop()!
      for (const line of lines) if (!this.#isClosed) this.#listener.onLine(Buffer.from(line, 'latin1').toString())
    }
    if (!this.#isClosed && this.#offset > MOST_BYTES) this.#empty()
  }

  /** What is written in between is lost, so everything that waits looks again. */
  #empty(): void {
    ftruncateSync(this.#fd, 0)
    this.#offset = 0
    this.#rest = ''
    this.#listener.onMissed()
  }
}
