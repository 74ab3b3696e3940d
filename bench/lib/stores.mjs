/** Where locks are kept: servers, of which those are started that somebody needs, and files. */
import { Files } from './files.mjs'
import { mariadb } from './mariadb.mjs'
import { postgres } from './postgres.mjs'
import { withRedis } from './server.mjs'
import { withSqlServer } from './sql-server.mjs'

const STORES = {
  redis: { needs: ['redis-server'], open: withRedis },
  postgres: { needs: ['postgres'], open: (folder, body) => withSqlServer(postgres, folder, body) },
  mariadb: { needs: ['mariadbd'], open: (folder, body) => withSqlServer(mariadb, folder, body) },
  sqlite: { needs: [], open: (folder, body) => body(new Files(folder)) }
}

/** `names` are those that are needed; `body` gets them by their names. */
export function withStores(folder, names, body, opened = {}) {
  const [name, ...others] = names
  if (name === undefined) return body(opened)
  return STORES[name].open(folder, (store) => withStores(folder, others, body, { ...opened, [name]: store }))
}

/** What has to be installed for them. */
export const programsOf = (names) => names.flatMap((name) => STORES[name].needs)

export const storesOf = (workloads) => [...new Set(workloads.map(({ store }) => store))]
