/** How private members of etcd are started and asked. They forget what is old, as those do that are used for long. */
import { join } from 'node:path'
import { freePort } from './ports.mjs'

const EVERYTHING = { key: 'AA==', range_end: 'AA==' }

const SHARED = {
  program: 'etcd',
  stopSignal: 'SIGTERM',
  url: (port) => `etcd://127.0.0.1:${port}`,

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

/** One member alone. */
export const etcd = {
  ...SHARED,
  name: 'etcd',
  arguments: async (port, folder) => argumentsOf('etcd', port, folder, { etcd: await freePort() })
}

/** One of several, of which the others are at these ports. */
export function member(name, peerPorts) {
  return { ...SHARED, name, arguments: (port, folder) => argumentsOf(name, port, folder, peerPorts) }
}

function argumentsOf(name, port, folder, peerPorts) {
  const on = (port) => `http://127.0.0.1:${port}`
  const settings = {
    name,
    // If a port was taken, the next attempt has others, and must not find what this one has noted of its own.
    'data-dir': join(folder, `data-${port}`),
    'listen-client-urls': on(port),
    'advertise-client-urls': on(port),
    'listen-peer-urls': on(peerPorts[name]),
    'initial-advertise-peer-urls': on(peerPorts[name]),
    'initial-cluster': Object.entries(peerPorts).map(([peer, port]) => `${peer}=${on(port)}`).join(),
    'auto-compaction-mode': 'revision',
    'auto-compaction-retention': 1000,
    logger: 'zap'
  }
  return Object.entries(settings).map(([setting, value]) => `--${setting}=${value}`)
}

/** Each request, and each message on a stream that stays open. */
function received(metrics) {
  return [...metrics.matchAll(/^grpc_server_msg_received_total\{.*\} (\S+)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0)
}
