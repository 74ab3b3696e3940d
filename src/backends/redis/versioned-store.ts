/**
 * Keys with values and versions on Redis: all of a prefix are in one hash, so that a script sees all of them, on a cluster, too. A
 * commit is known on the server by an id for a while: if its answer was lost it is sent again under the same, by us or by the
 * client, and carried out once.
 */
import { isUtf8 } from 'node:buffer'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Commit, CommitState, Scope, Snapshot, Versioned, VersionedStore } from '../../core/backend.js'
import { BackendError, ConfigurationError, ConnectorError, type HoldfastError } from '../../core/errors.js'
import { tokenOf } from '../../core/token.js'
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

const APART =
  'On a cluster, locks and what transactions write are on different nodes: none can require a lock, unless the prefix has "{…}", such as "{app}".'

export class RedisVersionedStore implements VersionedStore {
  readonly #client: RedisClient
  readonly #keys: Keys
  readonly #scope: Pick<Scope, 'clock' | 'owner'>
  #isClosed = false

  constructor(client: RedisClient, keys: Keys, scope: Pick<Scope, 'clock' | 'owner'>) {
    this.#client = client
    this.#keys = keys
    this.#scope = scope
  }

  async read(keys: readonly string[], at?: bigint): Promise<Snapshot | undefined> {
    const [last, ...found] = await this.#run(see, 1, [this.#keys.entries, at === undefined ? '' : String(at), ...keys])
    return last === undefined ? undefined : { revision: at ?? BigInt(last), values: found.map(parseEntry) }
  }

  async commit({ comparisons, holds = [], puts, deletes, reads }: Commit): Promise<CommitState> {
    if (holds.length > 0 && !this.#keys.areTogether) throw new ConfigurationError(APART)
    const { clock, owner } = this.#scope
    const record = this.#keys.commit(randomBytes(16).toString('hex'))
    const locks = holds.map(({ claim }) => this.#keys.lockOf(claim.resource))
    const words = [
      ...[comparisons, puts, deletes, reads].map((list) => String(list.length)),
      ...comparisons.flatMap(({ key, is, revision }) => [key, is === 'equal' ? '=' : '<', String(revision)]),
      ...puts.flatMap(({ key, value }) => [key, textOf(value)]),
      ...deletes,
      ...reads,
      ...holds.map(({ claim, epoch }) => tokenOf(claim.id, epoch, owner)),
    ]
    const giveUpAt = clock.now() + GIVE_UP_MS
    let isUnsure = false
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs *= 2) {
      try {
        const keys = [this.#keys.entries, record, ...locks]
        const [status, number, ...found] = await this.#run(commit, keys.length, [...keys, isUnsure ? 'again' : '', ...words])
        if (status === 'committed') return { status, revision: BigInt(number!) }
        if (status === 'not-held') return { status, claim: holds[Number(number) - 1]!.claim }
        return { status: 'conflict', revision: BigInt(number!), values: found.map(parseEntry) }
      } catch (error) {
        isUnsure ||= error instanceof BackendError && !isReply(error)
        if (!isUnsure) throw error
        if (this.#isClosed || clock.now() + pauseMs > giveUpAt) return { status: 'unknown', error: error as HoldfastError }
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
