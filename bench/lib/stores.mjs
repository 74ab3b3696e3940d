/** Where locks are kept: servers, of which those are started that somebody needs, and files. */
import { contenderOf } from '../contenders/index.mjs'
import { withDatabase } from './database.mjs'
import { etcd } from './etcd.mjs'
import { withEtcdCluster } from './etcd-cluster.mjs'
import { Files } from './files.mjs'
import { mariadb } from './mariadb.mjs'
import { postgres } from './postgres.mjs'
import { withRedis } from './server.mjs'

const STORES = {
  redis: { needs: ['redis-server'], open: withRedis },
  postgres: { needs: ['postgres'], open: (folder, body) => withDatabase(postgres, folder, body) },
  mariadb: { needs: ['mariadbd'], open: (folder, body) => withDatabase(mariadb, folder, body) },
  etcd: { needs: ['etcd'], open: (folder, body) => withDatabase(etcd, folder, body) },
  'etcd-cluster': { needs: ['etcd'], open: withEtcdCluster },
  sqlite: { needs: [], open: (folder, body) => body(new Files(folder)) }
}

/** It runs while `body` does, which gets it. */
export function withStore(name, folder, body) {
  return STORES[name].open(folder, body)
}

/** What has to be installed for them, and for who takes part. */
export function programsOf(workloads) {
  const ofContenders = workloads.flatMap(({ contenders }) => contenders.flatMap((id) => contenderOf(id).needs))
  return [...storesOf(workloads).flatMap((name) => STORES[name].needs), ...new Set(ofContenders)]
}

export const storesOf = (workloads) => [...new Set(workloads.map(({ store }) => store))]
