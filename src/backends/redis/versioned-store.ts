/**
 * Keys with values and versions on Redis: all of a prefix are in one hash, so that a script sees all of them, on a cluster, too. A
 * commit is known on the server by an id for a while: if its answer was lost it is sent again under the same, by us or by the
 * client, and carried out once.
 */
import { isUtf8 } from 'node:buffer'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Commit, CommitState, Snapshot, Versioned, VersionedStore } from '../../core/backend.js'
import type { Clock } from '../../core/clock.js'
import { BackendError, ConnectorError, type HoldfastError } from '../../core/errors.js'
import type { RedisClient } from './client.js'
import { isReply } from './errors.js'
import type { Keys } from './keys.js'
import * as lua from './lua.js'
import { Script } from './script.js'

const see = new Script(lua.see)
const commit = new Script(lua.commit)

/** Whoever waits for the answer has more patience than that, but not much more. */
const GIVE_UP_MS = 2_000
const FIRST_PAUSE_MS = 10

export class RedisVersionedStore implements VersionedStore {
  readonly #client: RedisClient
  readonly #keys: Keys
  readonly #clock: Clock
  #isClosed = false

  constructor(client: RedisClient, keys: Keys, clock: Clock) {
    this.#client = client
    this.#keys = keys
    this.#clock = clock
  }

  async read(keys: readonly string[], at?: bigint): Promise<Snapshot | undefined> {
    const [last, ...found] = await this.#run(see, 1, [this.#keys.entries, at === undefined ? '' : String(at), ...keys])
    return last === undefined ? undefined : { revision: at ?? BigInt(last), values: found.map(parseEntry) }
  }

  async commit({ comparisons, puts, deletes, reads }: Commit): Promise<CommitState> {
    const record = this.#keys.commit(randomBytes(16).toString('hex'))
    const words = [
      ...[comparisons, puts, deletes, reads].map((list) => String(list.length)),
      ...comparisons.flatMap(({ key, is, revision }) => [key, is === 'equal' ? '=' : '<', String(revision)]),
      ...puts.flatMap(({ key, value }) => [key, textOf(value)]),
      ...deletes,
      ...reads,
    ]
    const giveUpAt = this.#clock.now() + GIVE_UP_MS
    let isUnsure = false
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs *= 2) {
      try {
        const answer = await this.#run(commit, 2, [this.#keys.entries, record, isUnsure ? 'again' : '', ...words])
        const [status, revision, ...found] = answer
        if (status === 'committed') return { status, revision: BigInt(revision!) }
        return { status: 'conflict', revision: BigInt(revision!), values: found.map(parseEntry) }
      } catch (error) {
        isUnsure ||= error instanceof BackendError && !isReply(error)
        if (!isUnsure) throw error
        if (this.#isClosed || this.#clock.now() + pauseMs > giveUpAt) return { status: 'unknown', error: error as HoldfastError }
        await sleep(pauseMs * (0.5 + Math.random() / 2))
      }
    }
  }

  close(): void {
    this.#isClosed = true
  }

  async #run(script: Script, numberOfKeys: number, words: readonly string[]): Promise<readonly string[]> {
    if (this.#isClosed) throw new ConnectorError('This Redis backend is closed.')
    const [, , items] = await script.run(this.#client, numberOfKeys, words)
    return items.map(String)
  }
}

/** Text stays readable, for whoever looks; a client could not give other bytes back as they were. */
function textOf(value: Uint8Array): string {
  const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength)
  return isUtf8(bytes) ? `t${bytes.toString()}` : `b${bytes.toString('base64')}`
}

function parseEntry(entry: string): Versioned | undefined {
  if (entry === '') return undefined
  const at = entry.indexOf(' ')
  const value = Buffer.from(entry.slice(at + 2), entry[at + 1] === 't' ? 'utf8' : 'base64')
  return { revision: BigInt(entry.slice(0, at)), value }
}
