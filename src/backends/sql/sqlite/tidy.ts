/** Clears away what nobody uses any more: rows of resources, of processes that waited, and bells. */
import { readdirSync, statSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'
import { toView, type Bytes } from '../rows.js'
import { IDLE_MS } from '../tidying.js'
import type { Connection } from './connection.js'
import type { Steps } from './steps.js'
import type { Turns } from './turns.js'

/** So many rows are looked at in one go; then others have their turn. */
const PAGE = 500
/** Its owner touches a bell every minute. */
const SILENT_BELL_MS = 600_000

interface Row {
  readonly prefix: Bytes
  readonly key: Bytes
  readonly slots: number
  readonly used: number
  readonly waiting: number
  readonly expires_at: number
  readonly updated_at: number
}

const NOTHING: Uint8Array = new Uint8Array()

export class Tidy {
  readonly #connection: Connection
  readonly #turns: Turns
  readonly #steps: Steps
  readonly #now: () => number

  constructor(connection: Connection, turns: Turns, steps: Steps, now: () => number) {
    this.#connection = connection
    this.#turns = turns
    this.#steps = steps
    this.#now = now
  }

  /** One process does it for all. */
  async run(): Promise<void> {
    const { meta, clients, locks } = this.#connection
    const now = this.#now()
    const isOurTurn = await this.#write(() => {
      if (Number(meta.tidy.run(now, now - IDLE_MS / 2).changes) === 0) return false
      clients.forget.run(now - IDLE_MS)
      return true
    })
    if (!isOurTurn) return
    let [prefix, key] = [NOTHING, NOTHING]
    for (;;) {
      const rows = await this.#turns.run(() => this.#connection.snapshot(() => locks.pageOfAll.all(prefix, prefix, key, PAGE) as Row[]))
      await this.#tidy(rows, now - IDLE_MS)
      if (rows.length < PAGE) return
      const last = rows.at(-1)!
      ;[prefix, key] = [toView(last.prefix), toView(last.key)]
    }
  }

  async #tidy(rows: readonly Row[], idleSince: number): Promise<void> {
    const old = rows.filter(({ updated_at }) => updated_at <= idleSince)
    const isIdle = ({ waiting, used, slots, expires_at }: Row) => waiting === 0 && (used === 0 || (slots === 1 && expires_at <= idleSince))
    const idle = old.filter(isIdle)
    if (idle.length > 0) await this.#write(() => this.#remove(idle, idleSince))
    for (const row of old) {
      // Held or waited for, and nobody came near it for long: perhaps by the dead.
      if (!isIdle(row)) await this.#turns.run(() => this.#steps.settle(Buffer.from(toView(row.prefix)), row.key))
    }
  }

  #write<T>(body: () => T): Promise<T> {
    return this.#turns.run(() => this.#connection.transaction(body))
  }

  /** Raises the floor in the same transaction: a row that is made anew goes on from there. */
  #remove(idle: readonly Row[], idleSince: number): void {
    const { locks, meta } = this.#connection
    let highest = 0n
    for (const { prefix, key } of idle) {
      // Looked at again: somebody may have come meanwhile.
      const [removed] = locks.removeIdle.all(toView(prefix), toView(key), idleSince, idleSince) as { last: string }[]
      if (removed && BigInt(removed.last) > highest) highest = BigInt(removed.last)
    }
    meta.raise.run(String(highest), 1)
  }
}

/** Bells of processes that have died. */
export function removeSilentBells(folder: string): void {
  let names: string[]
  try {
    names = readdirSync(folder)
  } catch {
    return
  }
  for (const name of names) {
    const bell = join(folder, name)
    try {
      // The time of day, on both sides: at worst one goes too early, and its owner makes another.
      if (Date.now() - statSync(bell).mtimeMs > SILENT_BELL_MS) unlinkSync(bell)
    } catch {
      // It is gone.
    }
  }
}
