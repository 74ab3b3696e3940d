import { createLocks } from '../../dist/index.js'
import { etcdBackend } from '../../dist/backends/etcd/index.js'
import { doing } from '../lib/doing.mjs'

/** `lock` is the options of each call. */
export async function open(url, options) {
  const { ttlMs, prefix } = options
  const locks = createLocks(etcdBackend(url), { prefix, ttlMs })
  return doing(locks, options)
}
