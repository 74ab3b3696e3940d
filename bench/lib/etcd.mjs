/** How a private etcd is started and asked. It forgets what is old, as one does that is used for long. */
import { join } from 'node:path'
import { freePort } from './ports.mjs'

const EVERYTHING = { key: 'AA==', range_end: 'AA==' }

export const etcd = {
  name: 'etcd',
  program: 'etcd',
  stopSignal: 'SIGTERM',
  url: (port) => `etcd://127.0.0.1:${port}`,

  async arguments(port, folder) {
    const client = `http://127.0.0.1:${port}`
    const peer = `http://127.0.0.1:${await freePort()}`
    const settings = {
      // If a port was taken, the next attempt has others, and must not find what this one has noted of its own.
      'data-dir': join(folder, `data-${port}`),
      'listen-client-urls': client,
      'advertise-client-urls': client,
      'listen-peer-urls': peer,
      'initial-advertise-peer-urls': peer,
      'initial-cluster': `default=${peer}`,
      'auto-compaction-mode': 'revision',
      'auto-compaction-retention': 1000,
      logger: 'zap'
    }
    return Object.entries(settings).map(([name, value]) => `--${name}=${value}`)
  },

  async connect(port) {
    const url = `http://127.0.0.1:${port}`
    const ask = async (path, body) => {
      const response = await fetch(`${url}${path}`, body && { method: 'POST', body: JSON.stringify(body) })
      if (!response.ok) throw new Error(`etcd: ${response.status} to ${path}`)
      return response
    }
    const tell = async (path, body = {}) => (await ask(`/v3/${path}`, body)).json()
    await ask('/health')
    return {
      version: async () => (await tell('maintenance/status')).version,
      // With the leases of who is gone: their ends would be written while the next one is measured.
      empty: async () => {
        const { header } = await tell('kv/deleterange', EVERYTHING)
        const { leases = [] } = await tell('lease/leases')
        for (const { ID } of leases) await tell('lease/revoke', { ID }).catch(() => {})
        await tell('kv/compaction', { revision: header.revision, physical: true }).catch(() => {})
      },
      calls: async () => ({ message: received(await (await ask('/metrics')).text()) }),
      end: async () => {}
    }
  }
}

/** Each request, and each message on a stream that stays open. */
function received(metrics) {
  return [...metrics.matchAll(/^grpc_server_msg_received_total\{.*\} (\S+)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0)
}
