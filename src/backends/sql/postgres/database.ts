/** PostgreSQL, as the steps see it. */
import { createHash } from 'node:crypto'
import { ConfigurationError } from '../../../core/errors.js'
import { CannotListen, type Database, type Failure, type Listener, type Listening, type StepName } from '../server/database.js'
import type { PostgresClient } from './client.js'
import { isForbidden, isMissing, postgresFailure } from './errors.js'
import { Ear } from './ear.js'
import type { PostgresSchema } from './schema.js'

/** So many connections in a row of which the server knows nothing. */
const SURELY_A_POOLER = 3

export class PostgresDatabase implements Database {
  readonly name = 'postgres'
  /** A list of one is no dearer here. */
  readonly hasShortSteps = false
  readonly showsEarly = false
  readonly listen: Database['listen']
  readonly #client: PostgresClient
  readonly #schema: PostgresSchema
  readonly #mayMigrate: boolean
  #strangers = 0
  /** While it listens: then there is no pooler, behind which the next statement may meet another process of the server. */
  #isDirect = false

  constructor(client: PostgresClient, schema: PostgresSchema, { migrate }: { readonly migrate: boolean }) {
    this.#client = client
    this.#schema = schema
    this.#mayMigrate = migrate
    this.listen = client.listen ? (owner, listener) => this.#listen(owner, listener) : undefined
  }

  async migrate(): Promise<void> {
    const { name, calls, lastFunction } = this.#schema
    if (await this.#client.query(calls.isThere, [name, lastFunction]) !== '0') return
    if (!this.#mayMigrate) {
      throw new ConfigurationError(`There are no tables and functions of ours in the schema "${name}". Run what postgresMigration() prints first.`)
    }
    await this.#make()
  }

  async #make(): Promise<void> {
    const { name, script } = this.#schema
    try {
      await this.#client.script(script)
    } catch (error) {
      if (!isForbidden(error)) throw error
      throw new ConfigurationError(
        `This user may not make tables and functions in the schema "${name}" (${(error as Error).message}). Have somebody who may run what `
          + 'postgresMigration() prints, and what postgresGrants(user) prints.',
        { cause: error },
      )
    }
  }

  async call(step: StepName, values: readonly string[]): Promise<string> {
    const text = this.#schema.calls[step]
    const isPrivate = step === 'commitKeys'
    try {
      return await this.#client.query(text, values, { keep: this.#isDirect, isPrivate })
    } catch (error) {
      if (!isMissing(error) || !this.#mayMigrate) throw error
      // Somebody has dropped them, or some. What was held is lost, as the next renewals will find; others can go on.
      await this.#make()
      return this.#client.query(text, values, { isPrivate })
    }
  }

  failureOf(error: unknown): Failure {
    return postgresFailure(error)
  }

  close(): Promise<void> {
    return this.#client.close()
  }

  async #listen(owner: string, listener: Listener): Promise<Listening> {
    const channel = `holdfast_${createHash('md5').update(owner).digest('hex')}`
    const { calls } = this.#schema
    const ear = await Ear.open({
      listener: {
        ...listener,
        onEnd: () => {
          this.#isDirect = false
          listener.onEnd()
        },
      },
      listen: (onNews, onEnd) => this.#client.listen!(channel, onNews, onEnd),
      probe: async (text) => void (await this.#client.query(calls.notify, [channel, text])),
    })
    try {
      await this.#checkDirect(ear)
    } catch (error) {
      void ear.close()
      throw error
    }
    this.#isDirect = true
    return ear
  }

  /**
   * A pooler tells a number of its own; and what it listens to is heard by whoever has that connection at the time. In PgBouncer's session
   * mode that would be us, but its number says nothing about the mode.
   */
  async #checkDirect(ear: Ear): Promise<void> {
    if ((await this.#client.query(this.#schema.calls.isBackend, [String(ear.pid)])) === '0') {
      this.#strangers++
      const message = 'There is a pooler between us and the server, through which nothing can be heard.'
      // A connection that was cut just now is not there either.
      throw this.#strangers < SURELY_A_POOLER ? new Error(message) : new CannotListen(message)
    }
    this.#strangers = 0
    // Cut while that was asked, and nobody was there to be told.
    if (ear.isOver) throw new Error('The connection that should listen was lost at once.')
  }
}
