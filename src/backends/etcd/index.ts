import type { BackendFactory } from '../../core/backend.js'
import { ConfigurationError } from '../../core/errors.js'
import { EtcdBackend } from './backend.js'
import { createEtcdClient, type EtcdOptions } from './client/client.js'
import { parseEtcdUrl } from './url.js'

export type { EtcdOptions } from './client/client.js'
export type { TlsOptions } from './client/connection.js'

/** Locks on etcd, version 3.4 and later: a URL, or where its servers are and how to get at them. No client has to be installed. */
export function etcdBackend(target: string | EtcdOptions): BackendFactory {
  const options = typeof target === 'string' ? parseEtcdUrl(target) : target
  if (!Array.isArray(options?.endpoints) || options.endpoints.length === 0) {
    throw new ConfigurationError("etcdBackend() takes a URL, or { endpoints: ['http://host:2379'] }.")
  }
  return (scope) => new EtcdBackend(createEtcdClient(options), scope)
}
