/** Where locks are kept: a server if somebody needs one, and files. */
import { Files } from './files.mjs'
import { withRedis } from './server.mjs'

/** `names` are those that are needed. */
export function withStores(folder, names, body) {
  const sqlite = new Files(folder)
  return names.includes('redis') ? withRedis(folder, (redis) => body({ redis, sqlite })) : body({ sqlite })
}

export const storesOf = (workloads) => [...new Set(workloads.map(({ store }) => store))]
