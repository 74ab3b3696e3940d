/** Kysely, by what it can do: queries by whichever driver it has. */
export interface KyselyLike {
  executeQuery(query: any): Promise<{ rows: unknown[] }>
  getExecutor(): { readonly adapter: object }
  readonly isTransaction: boolean
  connection(): { execute<T>(work: (db: any) => Promise<T>): Promise<T> }
}

export function isKysely(client: unknown): client is KyselyLike {
  const { executeQuery, getExecutor } = (client ?? {}) as Partial<KyselyLike>
  return typeof executeQuery === 'function' && typeof getExecutor === 'function'
}

/** Of what kind it is, by its class: `MysqlAdapter` or the like. */
export function adapterOf(db: KyselyLike): string {
  return db.getExecutor().adapter.constructor.name
}

export async function runOnKysely(db: Pick<KyselyLike, 'executeQuery'>, text: string, values: readonly string[] = []): Promise<unknown[]> {
  // What `sql.raw()` compiles to.
  const query = { kind: 'RawNode', sqlFragments: [text], parameters: [] }
  const { rows } = await db.executeQuery({ query, sql: text, parameters: values, queryId: { queryId: 'holdfast' } })
  return rows
}
