/** MySQL and MariaDB, as the steps see them. Nothing can be listened to. */
import { ConfigurationError } from '../../../core/errors.js'
import type { Database, Failure, ShortStepName, StepName } from '../server/database.js'
import type { MysqlClient } from './client.js'
import { isForbidden, isMissing, mysqlFailure } from './errors.js'
import type { MysqlSchema } from './schema.js'

/** The first that know JSON_TABLE, SKIP LOCKED and CREATE PROCEDURE IF NOT EXISTS. */
const OLDEST = { MariaDB: [10, 6, 0], MySQL: [8, 0, 29] } as const

/** What `releaseLock` means by no answer. */
const RELEASED = '[null,["released"]]'

export class MysqlDatabase implements Database {
  readonly name = 'mysql'
  readonly hasShortSteps = true
  readonly showsEarly = true
  readonly #client: MysqlClient
  readonly #schema: MysqlSchema
  readonly #mayMigrate: boolean

  constructor(client: MysqlClient, schema: MysqlSchema, { migrate }: { readonly migrate: boolean }) {
    this.#client = client
    this.#schema = schema
    this.#mayMigrate = migrate
  }

  async migrate(): Promise<void> {
    const { calls } = this.#schema
    const [count, isInDatabase, version = ''] = (await this.#client.query(calls.isThere, []))!.split(' ')
    if (count !== '0') return
    if (isInDatabase === '0') {
      throw new ConfigurationError('The connections are in no database, and none was named: mysqlBackend(pool, { database: \'app\' }).')
    }
    checkVersion(version)
    if (!this.#mayMigrate) {
      throw new ConfigurationError(`There are no tables and procedures of ours in ${this.#where}. Run what mysqlMigration() prints first.`)
    }
    await this.#make()
  }

  get #where(): string {
    return this.#schema.database === undefined ? 'the database' : `the database "${this.#schema.database}"`
  }

  async #make(): Promise<void> {
    const { before, statements, after } = this.#schema
    try {
      await this.#client.script([...before, ...statements], after)
    } catch (error) {
      if (!isForbidden(error)) throw error
      throw new ConfigurationError(
        `This user may not make tables and procedures in ${this.#where} (${mysqlFailure(error).message}). Have somebody who may run what `
          + 'mysqlMigration() prints, and what mysqlGrants(user) prints.',
        { cause: mysqlFailure(error).cause },
      )
    }
  }

  async call(step: StepName | ShortStepName, values: readonly string[]): Promise<string> {
    const text = this.#schema.calls[step]
    // Whether it hears what it is told, the last word of a claim, is no question here.
    const sent = (step === 'claim' || step === 'claimLock' ? values.slice(0, -1) : values).map((value) => Buffer.from(value).toString('hex'))
    const ask = async () => {
      const answer = (await this.#client.query(text, sent)) ?? (step === 'releaseLock' ? RELEASED : undefined)
      if (answer === undefined) throw new Error('The database gave no answer.')
      return answer
    }
    try {
      return await ask()
    } catch (error) {
      if (!isMissing(error) || !this.#mayMigrate) throw error
      // Somebody has dropped them, or some. What was held is lost, as the next renewals will find; others can go on.
      await this.#make()
      return ask()
    }
  }

  failureOf(error: unknown): Failure {
    return mysqlFailure(error)
  }

  close(): Promise<void> {
    return this.#client.close()
  }
}

function checkVersion(version: string): void {
  const kind = /mariadb/i.test(version) ? 'MariaDB' : 'MySQL'
  const parts = version.split(/[.-]/).map(Number)
  const i = OLDEST[kind].findIndex((least, at) => parts[at] !== least)
  if (i < 0 || parts[i]! > OLDEST[kind][i]!) return
  throw new ConfigurationError(`This server is too old (${version}): it takes MariaDB ${OLDEST.MariaDB.join('.')} or MySQL ${OLDEST.MySQL.join('.')}.`)
}
