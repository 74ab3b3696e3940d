/** PostgreSQL, as the steps see it. */
import { createHash, randomBytes } from 'node:crypto'
import { ConfigurationError } from '../../../core/errors.js'
import { CannotListen, type Database, type Failure, type Listener, type Listening, type StepName } from '../server/database.js'
import type { About, PostgresClient } from './client.js'
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
  readonly #mark = randomBytes(9).toString('base64')
  #asked = 0
  /** While it listens: then there is no pooler, behind which the next statement may meet another process of the server. */
  #isDirect = false

  constructor(client: PostgresClient, schema: PostgresSchema, { migrate }: { readonly migrate: boolean }) {
    this.#client = client
    this.#schema = schema
    this.#mayMigrate = migrate
    this.listen = client.listen ? (owner, listener) => this.#listen(owner, listener) : undefined
  }

  async migrate(): Promise<void> {
    const { name, lastFunction } = this.#schema
    if ((await this.#ask('isThere', [name, lastFunction])) !== '0') return
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
    const isPrivate = step === 'commitKeys'
    try {
      return await this.#ask(step, values, { keep: this.#isDirect, isPrivate })
    } catch (error) {
      if (!isMissing(error) || !this.#mayMigrate) throw error
      // Somebody has dropped them, or some. What was held is lost, as the next renewals will find; others can go on.
      await this.#make()
      return this.#ask(step, values, { isPrivate })
    }
  }

  /**
   * Each answer begins with the mark of what was asked. PgBouncer (1.18) gives what is left of the answers to one who sent several
   * statements at once, and is gone, to whoever comes next; and from then on everybody there has the answer of the one before. That
   * ends with the process of the server that answers too late.
   */
  async #ask(call: keyof PostgresSchema['calls'], values: readonly string[], about?: About): Promise<string> {
    const mark = `${this.#mark}${this.#asked++}:`
    const text = this.#schema.calls[call]
    const answer = await this.#client.query(text, [...values, mark], about)
    if (answer.startsWith(mark)) return answer.slice(mark.length)
    if (call !== 'endBackend') this.#ask('endBackend', []).catch(() => {})
    throw new Error('This is the answer to another statement: somebody between us and the server has mixed them up.')
  }

  failureOf(error: unknown): Failure {
    return postgresFailure(error)
  }

  close(): Promise<void> {
    return this.#client.close()
  }

  async #listen(owner: string, listener: Listener): Promise<Listening> {
    const channel = `holdfast_${createHash('md5').update(owner).digest('hex')}`
    const ear = await Ear.open({
      listener: {
        ...listener,
        onEnd: () => {
          this.#isDirect = false
          listener.onEnd()
        },
      },
      listen: (onNews, onEnd) => this.#client.listen!(channel, onNews, onEnd),
      probe: async (text) => void (await this.#ask('notify', [channel, text])),
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
    if ((await this.#ask('isBackend', [String(ear.pid)])) === '0') {
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
