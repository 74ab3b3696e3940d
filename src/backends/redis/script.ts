import { createHash } from 'node:crypto'
import type { RedisClient } from './client.js'
import { isNoScript } from './errors.js'

export class Script {
  readonly #source: string
  readonly #sha: string

  constructor(source: string) {
    this.#source = source
    this.#sha = createHash('sha1').update(source).digest('hex')
  }

  /** EVAL only if the server does not know the script: any other error must not run it a second time. */
  async run(client: RedisClient, numberOfKeys: number, keysAndArgs: readonly string[]): Promise<unknown> {
    try {
      return await client.run('evalsha', this.#sha, numberOfKeys, keysAndArgs)
    } catch (error) {
      if (!isNoScript(error)) throw error
      // In a cluster it finds its node anew: the one that was asked may be about to give the slot away.
      return client.run('eval', this.#source, numberOfKeys, keysAndArgs)
    }
  }
}
