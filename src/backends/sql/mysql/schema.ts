/** Where our tables and procedures are, and the statements that make them. */
import { ConfigurationError } from '../../../core/errors.js'
import { GONE_MS } from '../liveness.js'
import { NAME_LENGTH } from '../server/own-claims.js'
import * as sql from './sql.js'

export interface MysqlNames {
  /** Default: the one that the connection is in. It is made if it is not there. */
  readonly database?: string
  /** What the names of tables and procedures begin with. Default: holdfast. */
  readonly tables?: string
}

/** In the names of procedures: processes of an older version go on with theirs. */
const VERSION = 3
const TABLES = ['meta', 'locks', 'claims', 'clients', 'news', 'stores', 'entries', 'commits']
/** What whoever takes and releases locks calls. The last one is also the last that is made: if it is there, all are. */
const STEPS = [
  'claim', 'claim_lock', 'renew', 'release', 'release_lock', 'revoke', 'inspect', 'read_news', 'leave', 'read_keys',
  'commit_keys', 'tidy', 'tidy_page',
]
/** What stands in several of them, by the names that they use. */
const PARTS = new Map(Object.entries(sql.parts).map(([name, text]) => [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), text]))
const DATABASE = /^[A-Za-z0-9_$-]{1,64}$/
const NAME = /^[A-Za-z_][A-Za-z0-9_]{0,39}$/
/** A procedure keeps the SQL mode in which it was made. */
const MODE = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'

export class MysqlSchema {
  readonly database: string | undefined
  readonly #tables: string
  readonly calls: Readonly<Record<keyof typeof sql.calls, string>>

  constructor({ database, tables = 'holdfast' }: MysqlNames = {}) {
    if (database !== undefined && !(typeof database === 'string' && DATABASE.test(database))) {
      throw new ConfigurationError(`database is a name of letters, digits, _, $ and -, at most 64 of them, not ${JSON.stringify(database)}.`)
    }
    if (!(typeof tables === 'string' && NAME.test(tables))) {
      throw new ConfigurationError(`tables is a name of letters, digits and _, at most 40 of them, not ${JSON.stringify(tables)}.`)
    }
    this.database = database
    this.#tables = tables
    this.calls = this.#fillAll(sql.calls)
  }

  /** They can be run again, by several at once. */
  get statements(): readonly string[] {
    const database = this.database === undefined ? [] : [`CREATE DATABASE IF NOT EXISTS \`${this.database}\``]
    return [...database, ...Object.values(this.#fillAll(sql.tables)), ...Object.values(this.#fillAll(sql.procedures))]
  }

  /** Before and after the statements. One at a time, since many that make the same procedures only wait for each other. */
  get before(): readonly string[] {
    return [`SET @holdfast_mode = @@sql_mode, sql_mode = '${MODE}'`, `SELECT GET_LOCK('${this.#lock}', 3)`, ...this.#dropRest]
  }

  /**
   * What belongs together is made anew together, if somebody has dropped a part of it: epochs would begin again with an old floor, and
   * claims be left of rows that are gone. What was held is lost. Only by whoever has the lock: others may just be making them.
   */
  get #dropRest(): readonly string[] {
    const names = ['meta', 'locks', 'claims'].map((name) => `'${this.#tables}_${name}'`).join(', ')
    const count = this.#fill(`SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = {database} AND TABLE_NAME IN (${names})`)
    return [
      `SET @holdfast_drop = IF(IS_USED_LOCK('${this.#lock}') = CONNECTION_ID() AND (${count}) IN (1, 2), '${this.#fill('DROP TABLE IF EXISTS {meta}, {locks}, {claims}')}', 'DO 0')`,
      'PREPARE holdfast_drop FROM @holdfast_drop',
      'EXECUTE holdfast_drop',
      'DEALLOCATE PREPARE holdfast_drop',
      'SET @holdfast_drop = NULL',
    ]
  }

  get after(): readonly string[] {
    return [`SELECT RELEASE_LOCK('${this.#lock}')`, 'SET sql_mode = @holdfast_mode, @holdfast_mode = NULL']
  }

  get #lock(): string {
    return `holdfast ${this.database ?? ''}.${this.#tables}`.slice(0, 64)
  }

  /** What whoever takes and releases locks has to be allowed. */
  grants(user: string): string {
    const at = user.lastIndexOf('@')
    const [name, host] = at > 0 ? [user.slice(0, at), user.slice(at + 1)] : [user, '%']
    const to = `TO ${quote(name)}@${quote(host)}`
    return STEPS.map((step) => `GRANT EXECUTE ON PROCEDURE ${this.#fill(`{${step}}`)} ${to};`).join('\n')
  }

  #fillAll<Texts extends Readonly<Record<string, string>>>(texts: Texts): Texts {
    return Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, this.#fill(text)])) as Texts
  }

  #fill(text: string): string {
    return text.replace(/\{(\w+)\}/g, (_, name: string) => {
      const part = PARTS.get(name)
      if (part !== undefined) return this.#fill(part)
      if (name === 'gone_ms') return String(GONE_MS)
      if (name === 'name_length') return String(NAME_LENGTH)
      if (name === 'database') return this.database === undefined ? 'DATABASE()' : `'${this.database}'`
      if (name === 'last_procedure') return `'${this.#procedure(STEPS.at(-1)!)}'`
      const where = this.database === undefined ? '' : `\`${this.database}\`.`
      return `${where}\`${TABLES.includes(name) ? `${this.#tables}_${name}` : this.#procedure(name)}\``
    })
  }

  #procedure(name: string): string {
    return `${this.#tables}_${VERSION}_${name}`
  }
}

/** In any SQL mode: it may take a backslash as such. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "''")}'`
}
