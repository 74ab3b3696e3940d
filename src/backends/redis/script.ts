import { createHash } from 'node:crypto'
import type { RedisClient } from './client.js'
import { isNoScript, redisError } from './errors.js'
import type { Item } from './replies.js'

/**
 * What every script replies; the node's id is empty unless it is one of a cluster. Where a reply is nothing but its only item, the
 * time is not told.
 */
export type Reply = readonly [serverMs: number, node: string, items: readonly Item[]]

export class Script {
  readonly #source: string
  readonly #sha: string

  constructor(source: string) {
    this.#source = source
    this.#sha = createHash('sha1').update(source).digest('hex')
  }

  /** EVAL only if the server does not know the script: any other error must not run it a second time. */
  async run(client: RedisClient, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<Reply> {
    try {
      return read(await client.run('evalsha', this.#sha, numberOfKeys, keysAndArgs))
    } catch (error) {
      if (!isNoScript(error)) throw redisError(error)
    }
    try {
      // In a cluster it finds its node anew: the one that was asked may be about to give the slot away.
      return read(await client.run('eval', this.#source, numberOfKeys, keysAndArgs))
    } catch (error) {
      throw redisError(error)
    }
  }
}

/** A client may be set to give numbers as strings. */
function read(reply: unknown): Reply {
  if (!Array.isArray(reply)) return [Number.NaN, '', [reply as Item]]
  const [serverMs, node, items] = reply as unknown as Reply
  return [Number(serverMs), node, items]
}
