/**
 * A key on a lease, as in etcd's own recipes: who has it holds until its session ends, and that ends when a renewal says so. A process
 * that stood still, or is cut off, has heard of nothing and goes on.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createEtcdClient } from '../../../dist/backends/etcd/client/client.js'
import { parseEtcdUrl } from '../../../dist/backends/etcd/url.js'

const SILENT_MS = 500

export function connect(url, { prefix }) {
  const client = createEtcdClient(parseEtcdUrl(url))

  async function lock(name, { ttlMs }) {
    const key = Buffer.from(`${prefix}/${name}/session`)
    const { id: lease } = await client.leaseGrant(Math.ceil(ttlMs / 1_000))
    const session = new AbortController()
    const renew = async () => {
      if ((await client.keepAlive(lease, SILENT_MS).catch(() => 1)) <= 0) session.abort(new Error('the session is over'))
    }
    const timer = setInterval(() => void renew(), ttlMs / 3)
    const end = async () => {
      clearInterval(timer)
      await client.leaseRevoke(lease)
    }
    try {
      const isFree = { key, target: 'create', value: 0n }
      for (;;) {
        const { succeeded, revision } = await client.txn({ compare: [isFree], success: [{ kind: 'put', key, lease }] })
        if (succeeded) return held(name, revision, session.signal, end)
        await sleep(5)
      }
    } catch (error) {
      await end().catch(() => {})
      throw error
    }
  }

  return { lock, close: () => client.close() }
}

function held(key, fence, signal, end) {
  return {
    key,
    fence,
    remainingMs: 1,
    signal,
    assertHeld: () => signal.throwIfAborted(),
    release: async () => (await end(), true),
  }
}
