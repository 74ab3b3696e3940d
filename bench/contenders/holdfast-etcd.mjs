import { createLocks } from '../../dist/index.js'
import { etcdBackend } from '../../dist/backends/etcd/index.js'

/** `lock` is the options of each call. */
export async function open(url, { ttlMs, prefix, lock }) {
  const locks = createLocks(etcdBackend(url), { prefix, ttlMs })
  return {
    acquire: (key) => locks.lock(key, lock),
    release: (held) => held.release()
  }
}
