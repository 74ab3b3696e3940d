/** What was asked of an etcd, as the server counts. */
import type { EtcdServer } from './etcd-server.js'

/** How often each method was called. */
export function callsDuring(server: EtcdServer, work: () => Promise<unknown>): Promise<Record<string, number>> {
  return countDuring(server, 'grpc_server_started_total', work)
}

/** How many messages each got: those that are streams get many in one call. */
export function messagesDuring(server: EtcdServer, work: () => Promise<unknown>): Promise<Record<string, number>> {
  return countDuring(server, 'grpc_server_msg_received_total', work)
}

/** How many watches there are. */
export async function watchersOf(server: EtcdServer): Promise<number> {
  return Number(/^etcd_debugging_mvcc_watcher_total (\d+)$/m.exec(await metrics(server))![1])
}

async function countDuring(server: EtcdServer, metric: string, work: () => Promise<unknown>): Promise<Record<string, number>> {
  const before = await counts(server, metric)
  await work()
  const after = await counts(server, metric)
  return Object.fromEntries([...after].map(([method, count]) => [method, count - (before.get(method) ?? 0)] as const).filter(([, count]) => count > 0))
}

async function counts(server: EtcdServer, metric: string): Promise<Map<string, number>> {
  const found = [...(await metrics(server)).matchAll(new RegExp(`^${metric}\\{grpc_method="(\\w+)".*\\} (\\d+)$`, 'gm'))]
  return new Map(found.map(([, method, count]) => [method!, Number(count)]))
}

async function metrics({ endpoint }: EtcdServer): Promise<string> {
  return (await fetch(`${endpoint}/metrics`)).text()
}
