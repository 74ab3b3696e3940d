/** A watch of etcd that notes what it is told. */
import type { EtcdClient } from '../../src/backends/etcd/client/client.js'
import type { EtcdError } from '../../src/backends/etcd/client/errors.js'
import type { WatchEvent, WatchRequest } from '../../src/backends/etcd/client/messages.js'
import { until } from './until.js'

export interface Watching {
  /** In order: 'created', 'lost', 'refused', and 'put key' or 'delete key'. */
  readonly heard: readonly string[]
  readonly events: readonly WatchEvent[]
  /** How many events came at once. */
  readonly batches: readonly number[]
  readonly revisions: readonly bigint[]
  readonly refusals: readonly EtcdError[]
  count(what: string): number
  /** Until it has heard this, for the nth time. */
  hears(what: string, times?: number): Promise<void>
  close(): void
}

export function watching(client: EtcdClient, request: WatchRequest): Watching {
  const heard: string[] = []
  const events: WatchEvent[] = []
  const batches: number[] = []
  const revisions: bigint[] = []
  const refusals: EtcdError[] = []
  const watch = client.watch(request, {
    onCreated: (revision) => {
      heard.push('created')
      revisions.push(revision)
    },
    onEvents: (some) => {
      heard.push(...some.map(({ type, key }) => `${type} ${key.toString()}`))
      events.push(...some)
      batches.push(some.length)
    },
    onLost: () => void heard.push('lost'),
    onRefused: (error) => {
      heard.push('refused')
      refusals.push(error)
    },
  })
  const count = (what: string) => heard.filter((one) => one === what).length
  const hears = (what: string, times = 1) => until(`"${what}" in ${heard}`, async () => count(what) >= times)
  return { heard, events, batches, revisions, refusals, count, hears, close: () => watch.close() }
}
