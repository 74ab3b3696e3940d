/** Where our tables and functions are, and the statements that make them. */
import { ConfigurationError } from '../../../core/errors.js'
import { GONE_MS } from '../liveness.js'
import { NAME_LENGTH } from '../server/own-claims.js'
import * as sql from './sql.js'

export interface PostgresNames {
  /** Default: public. It is made if it is not there. */
  readonly schema?: string
  /** What the names of tables and functions begin with. Default: holdfast. */
  readonly tables?: string
}

/** In the names of functions: processes of an older version go on with theirs. */
const VERSION = 2
const TABLES = ['meta', 'locks', 'claims', 'clients', 'news', 'stores', 'entries', 'commits']
/** The last one that is made: if it is there, all are. */
const LAST = 'tidy_page'
/** Also those that only others of them call: they run with the rights of whoever calls the first. */
const FUNCTIONS = [...sql.functions.matchAll(/^CREATE OR REPLACE FUNCTION (\{\w+\})/gm)].map(([, name]) => name!)
const NAME = /^[A-Za-z_][A-Za-z0-9_]{0,39}$/

export class PostgresSchema {
  readonly name: string
  readonly #tables: string
  readonly calls: Readonly<Record<keyof typeof sql.calls, string>>

  constructor({ schema = 'public', tables = 'holdfast' }: PostgresNames = {}) {
    for (const [option, value] of Object.entries({ schema, tables })) {
      if (typeof value === 'string' && NAME.test(value)) continue
      throw new ConfigurationError(`${option} is a name of letters, digits and _, at most 40 of them, not ${JSON.stringify(value)}.`)
    }
    this.name = schema
    this.#tables = tables
    this.calls = Object.fromEntries(Object.entries(sql.calls).map(([name, text]) => [name, marked(this.#fill(text))])) as typeof sql.calls
  }

  get lastFunction(): string {
    return this.#function(LAST)
  }

  /**
   * For one at a time: PostgreSQL's IF NOT EXISTS is not enough for several. Sent as one text it is one transaction; a BEGIN of our own
   * would leave it open on a connection from somebody's pool if something fails.
   */
  get script(): string {
    return `SELECT pg_advisory_xact_lock(hashtext('holdfast'), hashtext('${this.name}.${this.#tables}'));\n${this.statements}`
  }

  get statements(): string {
    const schema = `DO $$ BEGIN IF to_regnamespace('"${this.name}"') IS NULL THEN CREATE SCHEMA "${this.name}"; END IF; END $$;`
    return [schema, this.#fill(sql.tables), this.#fill(sql.functions)].join('\n')
  }

  /** What whoever takes and releases locks has to be allowed. */
  grants(role: string): string {
    const to = `TO "${role.replaceAll('"', '""')}"`
    const tables = TABLES.map((name) => this.#fill(`{${name}}`)).join(', ')
    return [
      `GRANT USAGE ON SCHEMA "${this.name}" ${to};`,
      `GRANT SELECT, INSERT, UPDATE, DELETE ON ${tables} ${to};`,
      // Everybody may, unless the database was told otherwise.
      `GRANT EXECUTE ON FUNCTION ${FUNCTIONS.map((name) => this.#fill(name)).join(', ')} ${to};`,
    ].join('\n')
  }

  #fill(text: string): string {
    return text.replace(/\{(\w+)\}/g, (_, name: string) => {
      if (name === 'gone_ms') return String(GONE_MS)
      if (name === 'name_length') return String(NAME_LENGTH)
      // An index is in the schema of its table, and not to be told where.
      if (name === 'claims_by_id') return `"${this.#tables}_${name}"`
      return `"${this.name}"."${TABLES.includes(name) ? `${this.#tables}_${name}` : this.#function(name)}"`
    })
  }

  #function(name: string): string {
    return `${this.#tables}_${VERSION}_${name}`
  }
}

/** With one value more, which the answer begins with. */
function marked(call: string): string {
  const values = new Set(call.match(/\$\d+/g)).size
  return call.replace('SELECT ', `SELECT $${values + 1}::text || `)
}
